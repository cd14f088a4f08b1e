"""Downloads resume, are checked before they get their name, and fail with one clear line."""

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
    """Serves DATA at /file. ranges: whether it honours Range; breaks: how many answers end after `after` bytes."""

    ranges = True
    breaks = 0
    after = 300_000
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.path != "/file":
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if asked and self.server.ranges and start >= len(DATA):
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


def test_a_file_arrives_whole_and_progress_is_told(server: Server, tmp_path: Path):
    told = []
    path = fetch(server.url, tmp_path / "deep" / "file", MD5, lambda done, total: told.append((done, total)))
    assert path.read_bytes() == DATA
    assert told[-1] == (len(DATA), len(DATA))
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_part_from_an_earlier_run_is_continued(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA[:1000])
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.asked == ["bytes=1000-"]


def test_a_broken_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path):
    server.breaks = 2
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.asked == [None, "bytes=300000-", "bytes=600000-"]


def test_a_transfer_that_keeps_breaking_keeps_its_part_for_the_next_run(server: Server, tmp_path: Path):
    server.breaks, server.after = 3, 1000
    with pytest.raises(UserError, match="broke off after 3,000 bytes; run the same again"):
        fetch(server.url, tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists()
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.asked[-1] == "bytes=3000-"


def test_a_server_that_ignores_range_makes_it_start_over(server: Server, tmp_path: Path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(b"something else entirely")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA


def test_a_part_that_is_already_whole_only_gets_its_name(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA)
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.asked == [f"bytes={len(DATA)}-"]


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(DATA + b"x")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA
    assert server.asked[-1] is None


def test_a_wrong_checksum_deletes_what_came(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match=r"wrong file .* it was deleted"):
        fetch(server.url, tmp_path / "file", "0" * 32)
    assert not list(tmp_path.iterdir())


def test_a_part_with_wrong_bytes_does_not_become_the_file(server: Server, tmp_path: Path):
    (tmp_path / "file.part").write_bytes(bytes(1000))
    with pytest.raises(UserError, match="wrong file"):
        fetch(server.url, tmp_path / "file", MD5)
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == DATA


def test_not_found_is_said(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match=r"404 Not Found.*put file there by hand"):
        fetch(server.url + "s", tmp_path / "file", MD5)
    assert not (tmp_path / "file").exists()


def test_no_network_is_said(tmp_path: Path):
    with Server() as closed:
        url = closed.url
    with pytest.raises(UserError, match=r"no connection to .*refused"):
        fetch(url, tmp_path / "file", MD5)


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    with (
        Server() as silent,
        pytest.raises(UserError, match=r"no connection to .*timed out"),
    ):  # it accepts, nobody answers
        fetch(silent.url, tmp_path / "file", MD5)


def test_a_file_already_there_is_never_touched(server: Server, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"mine")
    assert fetch(server.url, tmp_path / "file", MD5).read_bytes() == b"mine"
    assert server.asked == []


def test_a_folder_that_cannot_be_made_is_one_clear_line(server: Server, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match="cannot write"):
        fetch(server.url, tmp_path / "taken" / "file", MD5)
