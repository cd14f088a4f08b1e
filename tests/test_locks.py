"""File locks: exclusion, waiting, release from another thread, the holder's name, symbolic links."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread, Timer

import pytest

from itl.locks import acquire_lock, describe_holder, holder_file, write_holder


def test_lock_is_held_until_release_and_until_the_end_of_a_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    lock = acquire_lock(path)
    assert lock is not None
    assert acquire_lock(path) is None
    lock.release()
    again = acquire_lock(path)
    assert again is not None
    with again:
        assert acquire_lock(path) is None
    assert acquire_lock(path) is not None


def test_lock_can_be_released_by_another_thread_while_a_second_one_waits(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path / "file")
    assert lock is not None
    Timer(0.1, lock.release).start()
    found = []
    waiting = Thread(target=lambda: found.append(acquire_lock(tmp_path / "file", -1)))
    waiting.start()
    waiting.join(60)
    assert found[0] is not None


def test_contenders_do_not_erase_the_name_of_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lock = acquire_lock(path)
    assert describe_holder(path) == "another process"
    write_holder(path)
    assert acquire_lock(path) is None
    assert describe_holder(path).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    assert lock is not None


def test_process_that_has_ended_is_not_named(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    holder = {"pid": ended.pid, "host": socket.gethostname(), "since": "2026-01-31 12:00:00"}
    holder_file(tmp_path / "file").write_text(json.dumps(holder))
    assert describe_holder(tmp_path / "file") == "another process"


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("content")
    path.symlink_to(target)
    holder_file(path).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        acquire_lock(path)
    write_holder(path)
    assert target.read_text() == "content"
