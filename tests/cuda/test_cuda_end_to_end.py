"""User scenarios on a GPU: killed commands, too little memory, concurrent sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from itl.checkpoint import store
from itl.cli import main
from itl.experiments.config import Config
from itl.experiments.run import run
from itl.experiments.search.local_backend import LocalBackend
from itl.experiments.search.progress import ProgressTracker
from itl.experiments.search.sweep import sweep
from itl.experiments.search.sweep_jobs import SweepJobs
from support.image_folders import IMAGE_SETTINGS, as_options
from support.interrupted_commands import image_folders, model_of

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

LONG = {
    "specialist.epochs": 30,
    "specialist.momentum": 0.9,
    "tangent.epochs": 60,
    "projection.epochs": 60,
    "exact": True,
}
RUN = ["run", "--resume", "--quiet", "--out", "out", "--tasks", "2", "--curves", "0", "--device", DEVICE]
LEARN = ["learn", "out", "one", "two", "--quiet", "--size", "8", "--buffer", "12", "--device", DEVICE]
COMMANDS = {
    "run": [*RUN, *as_options({**LONG, "net.width": 8})],
    "learn": [*LEARN, *as_options({**IMAGE_SETTINGS, **LONG})],
}
STAGES = ("specialist", "generalist", "projection")


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Run the command in a separate process that saves its state after every round."""
    env = {**os.environ, "ITL_SAVE_EVERY": "0", "ITL_CACHE": "off", "OMP_NUM_THREADS": "1"}
    line = "import sys; from itl.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", line, *words], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
    )


def position(folder: Path) -> tuple[int, str]:
    """Number of tasks started and stage of the saved state; (0, "") before the first save."""
    try:
        state = store.read(model_of(folder))[1]
    except Exception:  # no state yet, or it was replaced while being read
        return 0, ""
    return len(state["tasks"]), str(state["position"][0])


def content(folder: Path) -> dict[str, Any]:
    """All tensors of a saved state."""
    return {name: tensor.numpy().tobytes() for name, tensor in store.read(model_of(folder))[0].items()}


@pytest.mark.parametrize("what", COMMANDS)
def test_command_killed_in_every_stage_resumes_bit_equal(what: str, tmp_path: Path) -> None:
    reference, interrupted = image_folders(tmp_path / "reference"), image_folders(tmp_path / "interrupted")
    finished = start(COMMANDS[what], reference)
    _, message = finished.communicate(timeout=120)
    assert finished.returncode == 0, message
    killed = []
    for stage in STAGES:
        process = start(COMMANDS[what], interrupted)
        limit = time.monotonic() + 60
        while process.poll() is None and position(interrupted)[1] != stage and time.monotonic() < limit:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed.append(position(interrupted)[1])
        process.communicate()
    finished = start(COMMANDS[what], interrupted)
    _, message = finished.communicate(timeout=120)
    assert finished.returncode == 0, message
    assert len(killed) >= 2, killed
    assert content(interrupted) == content(reference)


def test_out_of_memory_is_one_line_and_leaves_the_model_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(image_folders(tmp_path))
    small = as_options({**IMAGE_SETTINGS, "specialist.epochs": 1})
    with pytest.raises(SystemExit) as done:
        main(["learn", "out", "one", "--quiet", "--size", "8", "--buffer", "12", "--device", DEVICE, *small])
    assert done.value.code == 0
    before = content(tmp_path)
    capfd.readouterr()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(SystemExit) as done:
            main(["learn", "out", "two", "--quiet", "--device", DEVICE])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    message = capfd.readouterr().err.strip()
    assert done.value.code == 2
    assert "not enough GPU memory" in message
    assert len(message.splitlines()) == 1
    assert content(tmp_path) == before


def test_concurrent_sweep_equals_single_runs(tmp_path: Path) -> None:
    short = {"net.width": 8, "specialist.epochs": 2, "tangent.epochs": 4, "projection.epochs": 4, "exact": True}
    base = Config(settings=short, tasks=2, curves=0)
    configs = [replace(base, seed=seed, method=method) for method in ("er", "itl") for seed in (0, 1, 2)]
    cells, tracker = SweepJobs(tmp_path / "sweep", configs), ProgressTracker(config.name for config in configs)
    sweep(cells, LocalBackend(runs_per_gpu=3, device=DEVICE), tracker)
    assert len(tracker.in_state("done")) == len(configs)
    stream = base.load_stream("data")
    for config in configs:
        alone = run(config, stream, tmp_path / "alone" / config.name, device=DEVICE)
        concurrent = json.loads((cells.out / config.name / "result.json").read_text())
        assert concurrent["stages"] == alone["stages"]
        assert concurrent["memory"] == alone["memory"]
