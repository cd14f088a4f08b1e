"""Fetch a dataset's file: resumed where it stopped, checked before it gets its name, never over one already there."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from itl.errors import UserError
from itl.streams.base import Progress
from itl.streams.checked_files import md5_of_file

TRIES = 3  # connections, each going on where the last one broke off
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Bring `url` to `path` and return it; a file already there is left as it is.

    The bytes go to `<path>.part`, which a later call continues, and get their name only once their md5 is right.
    """
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(TRIES)):
            if _transfer(url, part, md5, progress):
                break
            if not left:
                raise UserError(f"{url} broke off after {_size(part):,} bytes; run the same again to go on from there")
    except OSError as error:
        raise UserError(
            f"cannot write {part}: {error.strerror or error}; free some space or choose another folder"
        ) from error
    found = md5_of_file(part)
    if found != md5:
        part.unlink()
        raise UserError(f"{url} sent a wrong file (md5 {found}, expected {md5}); it was deleted: try again later")
    os.replace(part, path)
    return path


def _transfer(url: str, part: Path, md5: str, progress: Progress | None) -> bool:
    """Add to `part` what it lacks, over one connection; whether all of it is there now."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # 416: there is nothing from byte `have` on
            raise UserError(
                f"{url} cannot be had ({error.code} {error.reason}); put {part.stem} there by hand"
            ) from error
        if md5_of_file(part) == md5:
            return True
        part.unlink()  # as long as the file or longer, and not the file: start over
        return False
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"no connection to {url} ({reason}); check the network or put {part.stem} there by hand"
        ) from error
    with answer:
        return _receive(answer, part, have, progress)


def _receive(answer: http.client.HTTPResponse, part: Path, have: int, progress: Progress | None) -> bool:
    """Write the answer's body to `part`: after what is there if the server goes on from byte `have`, else anew."""
    goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    done = have if goes_on else 0
    length = answer.headers.get("Content-Length")
    total = done + int(length) if length else None
    with part.open("ab" if goes_on else "wb") as file:
        while block := _next_block(answer):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, total)
    return total is None or done >= total


def _next_block(answer: http.client.HTTPResponse) -> bytes:
    """The next bytes; none at the end, or where the connection breaks (the caller counts what came)."""
    try:
        return answer.read(_BLOCK)
    except (OSError, http.client.HTTPException):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
