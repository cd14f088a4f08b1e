"""Pipes, devices and folders in place of files, and records of any size, are refused at once."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from itl import UserError
from itl.apps.images.picture_list import read_list
from itl.regular_files import open_regular, read_regular
from itl.results import RunFolder, find_runs, packed_runs, record
from itl.results.packed_runs import METRICS, PackedExperiment, pack, unpack
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


@pytest.mark.parametrize("is_packed", [False, True])
def test_arrays_are_not_inflated_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    fake_run(tmp_path / "run")
    if is_packed:
        pack(tmp_path)
    run = PackedExperiment(tmp_path).run("run") if is_packed else RunFolder(tmp_path / "run")
    monkeypatch.setattr(record, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="MiB of arrays"):
        run.read_arrays("predictions.npz")


@pytest.mark.parametrize("start", [b"", b"\x93NUMPY"])
def test_array_in_the_place_of_several_is_refused(tmp_path: Path, start: bytes) -> None:
    path = fake_run(tmp_path / "run") / "predictions.npz"
    if start:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"predictions\.npz is damaged: it is not an \.npz file"):
        _ = find_runs([tmp_path])[0][0].predictions


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/b", "..", ".", "", "a\\b", 3])
def test_packed_run_cannot_be_unpacked_elsewhere(tmp_path: Path, name: object) -> None:
    fake_run(tmp_path / "packed" / "run")
    pack(tmp_path / "packed")
    records = tmp_path / "packed" / "records.jsonl"
    records.write_text(json.dumps({**json.loads(records.read_text()), "name": name}))
    with pytest.raises(UserError, match="is not a run's record"):
        unpack(tmp_path / "packed", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_packed_lines_are_not_inflated_beyond_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(tmp_path / "run")
    pack(tmp_path)
    monkeypatch.setattr(packed_runs, "MAX_METRICS_BYTES", 1000)
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
