"""Packed experiments have the same content as the run folders, and are read in the same way."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from itl import UserError
from itl.report.run_selection import report_data
from itl.results import RunFolder, find_runs, pack, read_run, render, unpack
from itl.results import packed_runs as packed_module
from itl.results.table import build
from support.fuzzing import time_limit
from support.run_records import fake_run


def content(folder: Path) -> dict[str, object]:
    """Every file of the run folders below `folder`: text, or arrays with their types."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*/*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".npz":
            with np.load(path) as file:
                found[name] = {key: (file[key].dtype, file[key].tolist()) for key in file.files}
        else:
            found[name] = path.read_text()
    return found


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A folder with three run folders."""
    for seed in (0, 1, 2):
        fake_run(tmp_path / "runs" / f"run-seed{seed}", seed=seed, pictures=8)
    return tmp_path / "runs"


def test_unpacked_runs_equal_the_packed_folders(experiment: Path, tmp_path: Path) -> None:
    before = content(experiment)
    with RunFolder(experiment / "run-seed0").lock():  # leaves a lock file, which is no part of the record
        pass
    assert pack(experiment) == ["run-seed0", "run-seed1", "run-seed2"]
    files = {"records.jsonl", "metrics.jsonl.gz", "predictions.npz", "pictures.npz", "memory.npz"}
    assert {path.name for path in experiment.iterdir()} == files
    unpack(experiment, tmp_path / "again")
    assert content(tmp_path / "again") == before
    unpack(experiment, tmp_path / "one", ["run-seed1"])
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run-seed1"]
    with pytest.raises(UserError, match="has no run 'other'"):
        unpack(experiment, tmp_path / "one", ["other"])


def test_table_and_report_are_the_same_for_both_forms(experiment: Path) -> None:
    def shown() -> tuple[str, list[object]]:
        runs, damaged = find_runs([experiment.parent])
        assert damaged == []
        data = report_data(runs)
        details = [[run.name, run.run.lines, run.matrices, run.class_names, run.result] for run in data.runs]
        predicted = [{k: v.tolist() for k, v in (run.run.predictions or {}).items()} for run in data.runs]
        return render.as_json(build(runs)), [details, predicted]

    before = shown()
    pack(experiment)
    assert shown() == before


def test_single_packed_run_is_read_by_its_path(experiment: Path) -> None:
    result = read_run(experiment / "run-seed1").result
    pack(experiment)
    assert read_run(experiment / "run-seed1").result == result
    (run,) = find_runs([experiment / "run-seed1"])[0]
    assert run.metadata["seed"] == 1
    with pytest.raises(UserError, match="not a folder"):
        read_run(experiment / "run-seed7")


def test_run_folder_replaces_the_packed_run_of_its_name(experiment: Path) -> None:
    pack(experiment)
    fake_run(experiment / "run-seed1", seed=1, class_il=12.5)
    fake_run(experiment / "run-seed3", seed=3)
    runs, _ = find_runs([experiment])
    assert sorted((run.metadata["seed"], run.metadata["class_il"] == 12.5) for run in runs) == [
        (0, False),
        (1, True),
        (2, False),
        (3, False),
    ]
    before = {run.path.name: run.result for run in runs}
    assert pack(experiment) == ["run-seed1", "run-seed3"]
    assert {run.path.name: run.result for run in find_runs([experiment])[0]} == before


def test_large_archives_are_split(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(experiment)
    monkeypatch.setattr(packed_module, "MAX_ARCHIVE_BYTES", 1)
    pack(experiment)
    names = {path.name for path in experiment.glob("predictions*")}
    assert names == {"predictions.npz", "predictions-2.npz", "predictions-3.npz"}
    monkeypatch.undo()
    pack(experiment)  # packing again merges them
    assert {path.name for path in experiment.glob("predictions*")} == {"predictions.npz"}
    unpack(experiment, tmp_path / "again")
    assert content(tmp_path / "again") == before


def test_unfinished_runs_and_models_are_not_packed(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", stop=3)
    with pytest.raises(UserError, match="run is unfinished"):
        pack(tmp_path)
    fake_run(tmp_path / "other")
    (tmp_path / "other" / "model").mkdir()
    (path / "config.json").unlink()
    with pytest.raises(UserError, match="other has model, which records do not include"):
        pack(tmp_path)
    with pytest.raises(UserError, match="no run in"):
        pack(path)


def test_nothing_is_deleted_if_the_packed_files_differ(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(experiment)
    monkeypatch.setattr(packed_module, "_compact", lambda value: json.dumps({**value, "config": None}))
    with pytest.raises(RuntimeError, match="differ from the runs"):
        pack(experiment)
    assert content(experiment) == before
    assert {path.name for path in experiment.iterdir()} == {"run-seed0", "run-seed1", "run-seed2"}


@pytest.mark.parametrize("name", ["records.jsonl", "metrics.jsonl.gz", "predictions.npz", "memory.npz"])
def test_damaged_packed_file_is_reported_in_one_line(experiment: Path, name: str) -> None:
    pack(experiment)
    path = experiment / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = ""
    try:
        runs, damaged = find_runs([experiment])
        message = "".join(damaged[:1])
        for run in runs:
            _ = run.lines, run.predictions
    except UserError as error:
        message = str(error)
    assert name in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "line", [b'{"run": []}', b'{"run": {}}', b"{}", b"\n", b'{"run": "run-seed0"}\xff', b'{"run": "x"}\n' * 600_000]
)
def test_damaged_line_of_packed_metrics_is_reported_in_one_line(experiment: Path, line: bytes) -> None:
    pack(experiment)
    path = experiment / "metrics.jsonl.gz"
    path.write_bytes(gzip.compress(line + b"\n" + gzip.decompress(path.read_bytes())))
    with pytest.raises(UserError, match=r"metrics\.jsonl\.gz.*; restore the file$"), time_limit():
        _ = read_run(experiment / "run-seed0").lines


@pytest.mark.parametrize("value", [5, "x", [1]])
def test_packed_record_of_another_type_is_reported_in_one_line(experiment: Path, value: object) -> None:
    pack(experiment)
    path = experiment / "records.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "result": value}), *others]))
    runs, damaged = find_runs([experiment])
    assert len(runs) == 2
    assert damaged == [f"{experiment}/run-seed0/result.json is not a result of itl: it has no format version"]


@pytest.mark.parametrize("name", ["predictions.npz", "memory.npz"])
def test_member_of_an_archive_that_is_no_array_is_reported_in_one_line(experiment: Path, name: str) -> None:
    pack(experiment)
    with zipfile.ZipFile(experiment / name) as archive:
        members = archive.namelist()
    with zipfile.ZipFile(experiment / name, "w") as archive:
        for member in members:
            archive.writestr(member, b"not an array")
    with pytest.raises(UserError, match=f"{name} is damaged: 'run-seed0/label' is not an array"):
        _ = read_run(experiment / "run-seed0").predictions
