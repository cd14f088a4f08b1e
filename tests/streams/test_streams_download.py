"""Tests of downloads: resuming, md5 checks and error messages."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from itl.errors import UserError
from itl.streams import download
from itl.streams.download import fetch

DATA = bytes(range(256)) * 4096  # 1 MiB
MD5 = hashlib.md5(DATA).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves DATA at /file.

    `ranges`: whether it honors Range headers; `breaks`: how many responses end after `after` bytes.
    """

    ranges = True
    breaks = 0
    after = 300_000
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        byte_range = self.headers.get("Range")
        self.server.requests.append(byte_range)
        if self.path != "/file":
            return self.send_error(404)
        start = int(byte_range.removeprefix("bytes=").rstrip("-")) if byte_range and self.server.ranges else 0
        if byte_range and self.server.ranges and start >= len(DATA):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(len(DATA) - start))
        self.end_headers()
        body = DATA[start:]
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: self.server.after]
        self.wfile.write(body)
        return None

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_fetch_writes_the_file_and_reports_progress(server: Server, tmp_path: Path):
    progress = []
    path = fetch(server.url, tmp_path / "deep" / "file", MD5, lambda done, total: progress.append((done, total)))
    assert path.read_bytes() == DATA
    assert progress[-1] == (len(DATA), len(DATA))
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_fetch_resumes_a_partial_file(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA[:1000])
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.requests == ["bytes=1000-"]


def test_fetch_resumes_after_a_lost_connection(server: Server, tmp_path: Path):
    server.breaks = 2
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.requests == [None, "bytes=300000-", "bytes=600000-"]


def test_fetch_keeps_the_partial_file_after_repeated_failures(server: Server, tmp_path: Path):
    server.breaks, server.after = 3, 1000
    with pytest.raises(UserError, match="interrupted after 3,000 bytes; run the same command again"):
        fetch(server.url, tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists()
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.requests[-1] == "bytes=3000-"


def test_fetch_starts_over_if_the_server_ignores_ranges(server: Server, tmp_path: Path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(b"something else entirely")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA


def test_fetch_renames_a_complete_partial_file(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA)
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.requests == [f"bytes={len(DATA)}-"]


def test_fetch_discards_a_partial_file_that_is_too_long(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA + b"x")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.requests[-1] is None


def test_fetch_deletes_a_file_with_a_wrong_md5(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match=r"wrong file .* it was deleted"):
        fetch(server.url, tmp_path / "file", "0" * 32)
    assert not list(tmp_path.iterdir())


def test_fetch_rejects_a_corrupted_partial_file(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(bytes(1000))
    with pytest.raises(UserError, match="wrong file"):
        fetch(server.url, tmp_path / "file", MD5)
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA


def test_fetch_reports_not_found(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match=r"404 Not Found.*put file there by hand"):
        fetch(server.url + "s", tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists()


def test_fetch_reports_a_refused_connection(tmp_path: Path):
    with Server() as closed:
        url = closed.url
    with pytest.raises(UserError, match=r"no connection to .*refused"):
        fetch(url, tmp_path / "file", MD5)


def test_fetch_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    with (
        Server() as silent,
        pytest.raises(UserError, match=r"no connection to .*timed out"),
    ):  # accepts connections but never responds
        fetch(silent.url, tmp_path / "file", MD5)


def test_fetch_never_overwrites_an_existing_file(server: Server, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"mine")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == b"mine"
    assert server.requests == []


def test_fetch_reports_a_folder_that_cannot_be_created(server: Server, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match="cannot write"):
        fetch(server.url, tmp_path / "taken" / "file", MD5)
