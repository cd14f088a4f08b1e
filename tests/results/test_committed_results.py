"""The committed records are complete and consistent, and the documents show them."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from itl._deprecated import SETTING_VALUES
from itl.experiments.config import Config
from itl.presets import settings_for
from itl.results import find_runs, scores_from_predictions
from itl.results.packed_runs import MAX_ARCHIVE_BYTES, RECORDS, experiment_at
from itl.results.runs import Run
from itl.results.seed_groups import current_settings, group_by_seed, run_settings
from itl.settings import flatten

HOME = Path(__file__).parents[2]
FOLDERS = (HOME / "results", HOME / "benchmarks" / "results")
DIGITS = runpy.run_path(str(HOME / "benchmarks" / "digits.py"))
EXPERIMENTS = sorted(path.parent for folder in FOLDERS for path in folder.rglob("records.jsonl"))
MAX_FILES = 120
MAX_RECORDS_BYTES = 4 << 20  # 6 kB per run


def title(path: Path) -> str:
    """A path relative to the repository."""
    return str(path.relative_to(HOME))


@cache
def runs_of(experiment: Path) -> list[Run]:
    """All runs of an experiment; none may be damaged."""
    runs, damaged = find_runs([experiment])
    assert damaged == []
    return runs


def test_digits_tables_match_the_records() -> None:
    assert DIGITS["table"]() in (HOME / "docs" / "digits.md").read_text()
    assert DIGITS["comparison"]() in (HOME / "docs" / "digits.md").read_text()
    assert DIGITS["validation_table"]() in (HOME / "docs" / "digits.md").read_text()


def test_itl_is_better_than_er_and_er_than_sgd_over_ten_seeds() -> None:
    found: dict[tuple[str, str | None], list[dict[str, Any]]] = DIGITS["results"]("test")
    assert {len(runs) for runs in found.values()} == {10}
    assert found.keys() == {(method, None) for method in DIGITS["DESCRIPTIONS"]}
    groups = group_by_seed(runs_of(HOME / "results" / "seq-digits" / "test"))
    assert [len(group.runs) for group in groups] == [10] * len(found)  # defaults written differently do not separate
    itl, er, sgd = (mean(r["class_il"] for r in found[method, None]) for method in ("itl", "er", "sgd"))
    assert itl > er > sgd


def test_records_are_few_files_and_every_folder_has_a_readme() -> None:
    files = [path for folder in FOLDERS for path in folder.rglob("*") if path.is_file()]
    assert len(files) <= MAX_FILES, "pack new run folders with python benchmarks/pack.py"
    for path in files:
        limit = MAX_RECORDS_BYTES if path.name == RECORDS else MAX_ARCHIVE_BYTES
        assert path.stat().st_size <= limit, path
    for folder in {path.parent for path in files}:
        assert (folder / "README.md").is_file(), folder


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=title)
def test_committed_scores_equal_those_of_their_predictions(experiment: Path) -> None:
    """Records without predictions are marked, and none of them is an accuracy result."""
    for run in runs_of(experiment):
        marked = experiment_at(experiment).records[run.path.name]["predictions"]
        assert marked is (run.predictions is not None), run.path.name
        assert marked or experiment.is_relative_to(HOME / "benchmarks"), run.path.name
        if run.predictions is None or run.result is None:
            continue
        for name, per_task in scores_from_predictions(run.predictions).items():
            assert run.result[f"{name}_matrix"][-1] == pytest.approx(per_task, abs=1e-9), run.path.name
            assert run.result[name] == pytest.approx(mean(per_task), abs=1e-9), run.path.name


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=title)
def test_forgetting_of_older_records_is_computed_again_from_their_matrices(experiment: Path) -> None:
    """Older versions stored, under the name `forgetting`, what is `signed_forgetting` now."""
    for run in runs_of(experiment):
        stored = experiment_at(experiment).records[run.path.name]["result"]
        matrix = np.tril(stored["class_il_matrix"])
        expected = (matrix.max(0) - matrix[-1])[:-1].mean() if len(matrix) > 1 else None
        assert run.metadata["forgetting"] == pytest.approx(expected, abs=1e-9), run.path.name
        name = "forgetting" if "signed_forgetting" in stored else "signed_forgetting"
        if stored.get("forgetting") is not None:
            assert run.metadata[name] == pytest.approx(stored["forgetting"], abs=0.05), run.path.name


def test_restated_records_keep_their_old_scores_and_a_reason() -> None:
    results = [path for path in EXPERIMENTS if path.is_relative_to(FOLDERS[0])]
    restated = [run for experiment in results for run in runs_of(experiment) if "restated" in run.metadata]
    assert len(restated) == 17
    for run in restated:
        note = run.metadata["restated"]
        assert "predictions" in note["reason"]
        for name in {"class_il", "task_il"} & note["before"].keys():
            assert 0 < abs(note["before"][name] - run.metadata[name]) < 0.05
        assert run.path.name in (run.path.parent / "README.md").read_text()


def with_current_values(command: str) -> str:
    """A recorded command with the current names of setting values that were renamed since."""
    for (name, old), new in SETTING_VALUES.items():
        command = re.sub(rf"{re.escape(f'{name}={old}')}(?!\S)", f"{name}={new}", command)
    return command


@pytest.mark.parametrize("experiment", [path for path in EXPERIMENTS if path.is_relative_to(FOLDERS[0])], ids=title)
def test_commands_in_tables_repeat_the_recorded_settings(experiment: Path) -> None:
    for group in group_by_seed(runs_of(experiment)):
        run = group.runs[0]
        names = ("method", "stream", "buffer")
        given = {**current_settings(run.config["settings"]), **group.earlier_defaults}
        now = flatten(settings_for(*(run.metadata[name] for name in names), given).model_dump())
        recorded = run_settings(run)
        different = [name for name in now.keys() & recorded.keys() if now[name] != recorded[name]]
        assert not different, (run.path.name, different)


@pytest.mark.parametrize("experiment", [path for path in EXPERIMENTS if path.is_relative_to(FOLDERS[0])], ids=title)
def test_records_name_the_command_that_repeats_them(experiment: Path) -> None:
    for run in runs_of(experiment):
        result, config = run.metadata, Config.from_dict(run.config)
        command = with_current_values(result["command"])
        assert config.command in (command, f"{command} --curves 16")  # older records omit 16, a former default
        assert (result["method"], result["seed"], result["split"]) == (config.method, config.seed, config.split)
        assert run.lines
