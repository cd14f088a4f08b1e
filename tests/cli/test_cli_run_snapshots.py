"""The output of `itl run` at 80 and 120 columns, on a terminal and elsewhere, compared with files.

The run is replayed from a record, with a clock that the test sets, so the output is always the same. After an intended
change, `ITL_UPDATE_SNAPSHOTS=1 pytest tests/cli/test_cli_run_snapshots.py` writes the files again; review the
difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import itl.experiments.run
from itl.cli.app import cli
from itl.cli.display import live, progress, stage_log, tables
from itl.engine.stage import OptimizerConfig, Stage
from itl.experiments.config import Config
from itl.learner.stage_estimate import StageEstimate
from itl.results import RunFolder
from support.run_records import fake_run
from support.snapshots import compare_with_snapshot, terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
TASKS, ROUNDS, STEPS, SECONDS_PER_LINE = 3, 12, 120, 5.0
FRAME = (3, "tangent", 8)  # task, stage and epoch at which the live display is printed
OUTPUTS = {
    "run": ["--seed", "0"],
    "run-seeds": ["--seeds", "0,1"],
}
PLANNER = SimpleNamespace(
    epochs_done=lambda index: index + 1,
    first_step=lambda index: STEPS // ROUNDS * index,
    total_steps=STEPS,
    num_rounds=ROUNDS,
)


class Clock:
    """Seconds that pass only when a line is recorded."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def replay(clock: Clock, config: Any, folder: Path, callbacks: list[Any]) -> Any:
    """Write a run folder and send its record to the callbacks; print the live display in the middle of the run."""
    fake_run(
        folder,
        method="itl",
        stream=config.stream,
        seed=config.seed,
        tasks=TASKS,
        points=ROUNDS,
        level=66.5 + config.seed,
    )
    engine, timer = SimpleNamespace(device="cpu"), SimpleNamespace(seconds={})
    learner = SimpleNamespace(engine=engine, timer=timer, settings=None, buffer=200, tasks=[], position=("", 0))
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        clock.now += SECONDS_PER_LINE
        if line["kind"] == "curve":
            stage = Stage(line["stage"], {}, OptimizerConfig(0.1), PLANNER, lambda inputs: inputs["x"])  # type: ignore[arg-type]
            learner.tasks, learner.position = [None] * line["task"], (line["stage"], line["epoch"] - 1)
            for callback in callbacks:
                callback.on_stage_start(learner, stage)
                learner.position = (line["stage"], line["epoch"])
                callback.on_round_end(learner, stage, line["epoch"], line["loss"])
        for callback in callbacks:
            callback.on_record(line)
            if isinstance(callback, progress.RunDisplay) and (line["task"], line["stage"], line["epoch"]) == FRAME:
                callback.console.print(callback.render())
    return RunFolder(folder).read("result.json")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_run_prints_its_snapshot(
    name: str,
    on_terminal: bool,
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    estimates = [
        StageEstimate(task, stage, STEPS, 32)
        for task in range(1, TASKS + 1)
        for stage in ("specialist", "generalist", "projection")
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    for module in (progress, stage_log):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(progress, "estimate_run", lambda *_: estimates)
    monkeypatch.setattr(live.LiveDisplay, "__enter__", lambda self: self)  # no frames from a background thread
    monkeypatch.setattr(Config, "load_stream", lambda *_: [SimpleNamespace(train=[])] * TASKS)
    monkeypatch.setattr(
        itl.experiments.run,
        "run",
        lambda config, stream, folder, *, callbacks, **_: replay(clock, config, folder, callbacks),
    )
    if on_terminal:
        monkeypatch.setattr(tables, "open_console", lambda piped_width=None: terminal(width))
        monkeypatch.setattr(live, "live_console", lambda given: terminal(width))
    cli.main(
        ["run", "--stream", "seq-cifar10", "--buffer", "200", "--device", "cpu", *OUTPUTS[name]], standalone_mode=False
    )
    place = "terminal" if on_terminal else "pipe"
    lines = compare_with_snapshot(capsys.readouterr().out, SNAPSHOTS / f"{name}-{place}-{width}.txt")
    assert all(len(line) <= width for line in lines)
