"""A damaged or foreign record is refused in one line when its run is resumed, and names of other files are no error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl import UserError
from itl.checkpoint import store
from itl.experiments.refine import refine, saved_specialists, write_attempts
from itl.experiments.run import Config, run
from itl.results import RunFolder
from support.tiny import TINY, tiny_stream

CONFIG = Config(stream="arrays", method="er", buffer=8, settings=dict(TINY), curves=1, keep_specialists=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    run(CONFIG, tiny_stream(), folder, device="cpu")
    return folder


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """A run whose process was killed before it wrote the result."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


def resume(folder: Path) -> dict[str, Any]:
    return run(CONFIG, tiny_stream(), folder, device="cpu", resume=True)


Lines = list[dict[str, Any]]
LINES: dict[str, Callable[[Lines], Lines]] = {
    "other objects": lambda lines: [{} for _ in lines],
    "texts for numbers": lambda lines: [{**line, "class_il_tasks": "abc"} for line in lines],
    "an object for a stage": lambda lines: [{**line, "stage": {}} for line in lines],
    "text for the memory": lambda lines: [{**line, "memory": "x"} for line in lines],
    "no accuracies": lambda lines: [{**line, "class_il_tasks": []} for line in lines],
    "no untrained network": lambda lines: [*lines[1:], lines[-1]],
    "no experts": lambda lines: [{**line, "kind": "end"} for line in lines],
    "more tasks": lambda lines: [{**line, "task_il_tasks": line["task_il_tasks"] * 2} for line in lines],
}


@pytest.mark.parametrize("name", LINES)
def test_damaged_metrics_are_not_resumed(unfinished: Path, name: str) -> None:
    folder = RunFolder(unfinished)
    folder.replace_lines(LINES[name](folder.read_lines()))
    before = (unfinished / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"metrics\.jsonl.*; run it again$"):
        resume(unfinished)
    assert (unfinished / "metrics.jsonl").read_bytes() == before
    assert not (unfinished / "result.json").exists()


@pytest.mark.parametrize("change", [{"notes": {}}, {"notes": {"lines": "x"}}, {"notes": {"lines": -1}}, {"tasks": []}])
def test_model_of_another_run_is_not_resumed(unfinished: Path, change: dict[str, Any]) -> None:
    generation = unfinished / "model" / store.current(unfinished / "model")
    state = json.loads((generation / "state.json").read_text())
    (generation / "state.json").write_text(json.dumps({**state, **change}))
    store.write_checksums(generation)
    store.set_current(unfinished / "model", generation.name)
    with pytest.raises(UserError, match=r"does not fit the saved model|is not the model of a run"):
        resume(unfinished)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"a": np.zeros(3)}, "'label' is missing"),
        ({name: np.zeros(3, np.int16) for name in ("label", "task", "class_il", "task_il")}, "'confidence' is missing"),
        (
            {
                **{name: np.zeros(3, np.int16) for name in ("label", "task", "class_il", "task_il")},
                "confidence": np.zeros(3, np.float16),
            },
            "does not have one row per test image",
        ),
    ],
)
def test_damaged_predictions_are_not_resumed(unfinished: Path, arrays: dict[str, np.ndarray], problem: str) -> None:
    RunFolder(unfinished).write_arrays("predictions.npz", **arrays)
    with pytest.raises(UserError, match=rf"predictions\.npz.*{problem}"):
        resume(unfinished)


def test_folders_that_are_no_specialists_are_ignored(unfinished: Path) -> None:
    assert saved_specialists(RunFolder(unfinished)) == [1, 2]
    for name in ("task-abc", "task-²", "task-"):
        shutil.copytree(unfinished / "specialists" / "task-01", unfinished / "specialists" / name)
    assert saved_specialists(RunFolder(unfinished)) == [1, 2]
    shutil.copytree(unfinished / "specialists" / "task-01", unfinished / "specialists" / "task-09")
    with pytest.raises(UserError, match="its stream has 2 tasks"):
        refine(unfinished, tiny_stream(), 9, device="cpu")


def test_files_that_are_no_attempts_are_ignored(tmp_path: Path) -> None:
    for name in ("refine-²²².json", "refine-x.json", "refine-004.json"):
        (tmp_path / name).write_text("x")
    assert write_attempts(RunFolder(tmp_path), "itl refine", []).name == "refine-005.json"
