"""Download of dataset files: resumable, checked by md5, never overwriting an existing file."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from itl.atomic import flush_to_disk, open_without_links
from itl.errors import UserError
from itl.streams.base import Progress
from itl.streams.checked_files import md5_of_file

MAX_CONNECTIONS = 3  # each resumes where the previous one was interrupted
TIMEOUT_SECONDS = 30.0  # without receiving a byte
_BLOCK_BYTES = 1 << 18


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path`, unless there is a file already.

    The bytes are written to `<path>.part`, which a later call resumes, and renamed once their md5 is correct.

    Args:
        url: Address of the file.
        path: Where to write it; its folder is created.
        md5: Expected md5.
        progress: Called with (bytes done, total bytes).

    Returns:
        `path`.

    Raises:
        UserError: The download failed, or the file is not the expected one.
    """
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempts_left in reversed(range(MAX_CONNECTIONS)):
            if _transfer(url, part, md5, progress):
                break
            if not attempts_left:
                raise UserError(
                    f"{url} was interrupted after {_size(part):,} bytes; run the same command again to resume"
                )
    except OSError as error:
        raise UserError(
            f"cannot write {part}: {error.strerror or error}; free some space or choose another folder"
        ) from error
    found = md5_of_file(part)
    if found != md5:
        part.unlink()
        raise UserError(f"{url} sent a wrong file (md5 {found}, expected {md5}); it was deleted; try again later")
    os.replace(part, path)
    flush_to_disk(path.parent)
    return path


def _transfer(url: str, part: Path, md5: str, progress: Progress | None) -> bool:
    """Download the rest of `part` over one connection; returns whether it is complete."""
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # 416: the file has no bytes from `start` on
            raise UserError(
                f"{url} cannot be downloaded ({error.code} {error.reason}); put {part.stem} there by hand"
            ) from error
        if md5_of_file(part) == md5:
            return True
        part.unlink()  # at least as long as the file, but not the file: start over
        return False
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"no connection to {url} ({reason}); check the network or put {part.stem} there by hand"
        ) from error
    with response:
        return _receive(response, part, start, progress)


def _receive(response: http.client.HTTPResponse, part: Path, start: int, progress: Progress | None) -> bool:
    """Write the response to `part`: appended if the server resumes at byte `start`, else from the beginning."""
    resumes = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
    done = start if resumes else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length else None
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumes else os.O_TRUNC)
    with open_without_links(part, flags) as file:
        while block := _next_block(response):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return total is None or done >= total


def _next_block(response: http.client.HTTPResponse) -> bytes:
    """The next bytes; none at the end or when the connection is lost (the caller counts the bytes)."""
    try:
        return response.read(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException):
        return b""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
