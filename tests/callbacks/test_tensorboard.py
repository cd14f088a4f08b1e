"""TensorBoardCallback: the event files contain every number of metrics.jsonl exactly once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from itl import UserError
from itl.callbacks.tensorboard import TensorBoardCallback, scalars
from itl.experiments.run import Config, run
from support.packages import require
from support.records import lines_of
from support.tiny import TINY, Interrupted, LambdaCallback, tiny_stream

require("tensorboard")

# Raised by TensorBoard's modules when they are first imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def read(folder: Path) -> dict[tuple[str, int], float]:
    """Values by (tag, step), read by TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    found = [((tag, event.step), event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
    assert len(found) == len(dict(found)), "a value occurs twice"
    return dict(found)


def expected(folder: Path) -> dict[tuple[str, int], float]:
    return {(tag, step): value for n, line in enumerate(lines_of(folder)) for tag, value, step in scalars(line, n)}


def config(**options: Any) -> Config:
    return Config("arrays", "itl", 8, 0, dict(TINY), **{"curves": 16, **options})


def test_events_equal_the_recorded_metrics(tmp_path: Path) -> None:
    with TensorBoardCallback(tmp_path) as events:
        run(config(), tiny_stream(), tmp_path, device="cpu", callbacks=[events], save=False)
    found, lines = read(tmp_path), expected(tmp_path)
    assert found.keys() == lines.keys()
    for key, value in lines.items():
        assert found[key] == pytest.approx(value, rel=1e-6)
    tags = {tag for tag, _ in found}
    assert {"Class-IL/tasks seen", "Class-IL/task 02", "loss/tangent", "Task-IL after each task/expert"} <= tags


def test_events_of_a_resumed_run_occur_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(event: str, learner: Any, stage: Any, epoch: int) -> None:
        if event == "on_round_end" and len(learner.tasks) == 2 and stage == "projection":
            raise Interrupted

    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    with pytest.raises(Interrupted), TensorBoardCallback(tmp_path) as events:
        run(config(), tiny_stream(), tmp_path, device="cpu", callbacks=[events, LambdaCallback(interrupt)])
    with TensorBoardCallback(tmp_path) as events:
        run(config(), tiny_stream(), tmp_path, device="cpu", callbacks=[events], resume=True)
    assert read(tmp_path).keys() == expected(tmp_path).keys()


def test_missing_tensorboard_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'itl\[tensorboard\]'"):
        TensorBoardCallback(tmp_path)
