"""Files are replaced completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from itl import atomic
from itl.atomic import append, atomic_write, create_file, overwrite, write_text_atomic


def test_text_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "a.txt", "old")
    write_text_atomic(tmp_path / "a.txt", "n\u00e9w")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "n\u00e9w"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")

    def interrupted() -> None:
        with atomic_write(tmp_path / "a.bin") as file:
            file.write(b"half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_failed_rename_removes_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomic(tmp_path / "a.txt", "new")
    assert os.listdir(tmp_path) == []


def test_temporary_file_is_unpredictable_and_keeps_the_suffix(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with atomic_write(tmp_path / "model.onnx"):
            (temporary,) = (path for path in tmp_path.iterdir() if path.name != "model.onnx")
            names.add(temporary.name)
            assert temporary.suffix == ".onnx"
            assert temporary.name.startswith(".model.")
    assert len(names) == 2


def test_existing_temporary_file_or_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: "0")
    victim = tmp_path / "victim"
    victim.write_text("safe")
    (tmp_path / ".a.0.tmp.txt").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_text_atomic(tmp_path / "a.txt", "new")
    assert victim.read_text() == "safe"


def test_no_function_writes_through_a_link(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("safe")
    link.symlink_to(victim)
    for write in (append, overwrite):
        with pytest.raises(OSError, match="symbolic links"):
            write(link, b"attack")
    with pytest.raises(FileExistsError), create_file(link) as file:
        file.write(b"attack")
    write_text_atomic(link, "new")
    assert not link.is_symlink()
    assert link.read_text() == "new"
    assert victim.read_text() == "safe"


def test_folders_and_devices_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("folder", "link"):
        with pytest.raises(OSError, match=r"directory|Not a regular file"):
            write_text_atomic(tmp_path / name, "new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_file_and_folder_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(atomic.os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}")))
    write_text_atomic(tmp_path / "a.txt", "new")
    assert Path(flushed[0]).name.startswith(".a.")
    assert flushed[1:] == [str(tmp_path)]
    flushed.clear()
    atomic.make_folder(tmp_path / "b" / "c")
    assert flushed == [str(tmp_path), str(tmp_path / "b")]


def test_changes_of_an_existing_file_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    flushed: list[bytes] = []
    monkeypatch.setattr(atomic.os, "fsync", lambda _: flushed.append((tmp_path / "a").read_bytes()))
    append(tmp_path / "a", b"er")
    overwrite(tmp_path / "a", b"new")
    assert flushed == [b"older", b"newer"]


def test_leftovers_of_the_named_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = [".result.0123456789abcdef.tmp.json", ".CURRENT.0123456789abcdef.tmp"]
    others = [".result.tmp.json", ".result.0123.tmp.json", ".other.0123456789abcdef.tmp.json", "result.json"]
    for name in (*ours, *others):
        (tmp_path / name).write_text("x")
    atomic.remove_leftovers(tmp_path, ["result.json", "CURRENT"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    atomic.remove_leftovers(tmp_path / "absent", ["result.json"])
