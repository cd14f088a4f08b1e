"""Pipes, devices and folders in place of files are refused at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from itl import UserError
from itl.apps.images.picture_list import read_list
from itl.regular_files import open_regular, read_regular
from itl.results import packed
from itl.results.packed import METRICS, PackedExperiment, pack
from support.command_line import assert_refused
from support.run_records import fake_run

KINDS = ("pipe", "device", "folder")


def put(kind: str, path: Path) -> None:
    """Replace a file with a pipe, an endless device or a folder."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "a")
    with pytest.raises(OSError, match="not a regular file") as caught:
        open_regular(tmp_path / "a")
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path / "a"))


def test_links_to_regular_files_are_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b") == b"content"
    os.truncate(tmp_path / "a", 8 << 30)
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_regular(tmp_path / "b", 1 << 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "predictions.npz", "pictures.npz"])
def test_record_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    run = fake_run(tmp_path / "run")
    put(kind, run / name)
    assert_refused("report", str(run), word="not a regular file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [METRICS, "predictions.npz"])
def test_packed_record_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    fake_run(tmp_path / "run")
    pack(tmp_path)
    put(kind, tmp_path / name)
    with pytest.raises(UserError, match="not a regular file"):
        PackedExperiment(tmp_path).run("run").content()


def test_packed_lines_are_not_inflated_beyond_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(tmp_path / "run")
    pack(tmp_path)
    monkeypatch.setattr(packed, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="of lines"):
        _ = PackedExperiment(tmp_path).lines


@pytest.mark.parametrize("kind", KINDS)
def test_grid_configuration_and_list_that_are_not_regular_files_are_refused(tmp_path: Path, kind: str) -> None:
    put(kind, tmp_path / "grid.json")
    assert_refused("sweep", str(tmp_path / "grid.json"), "--out", str(tmp_path / "out"), word="not a regular file")
    assert_refused("run", "--config", str(tmp_path / "grid.json"), word="not a regular file")
    put(kind, tmp_path / "itl-pictures.json")
    with pytest.raises(UserError, match="not a regular file"):
        read_list(tmp_path)
