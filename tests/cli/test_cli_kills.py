"""A command that is killed at random times and repeated ends with the same bits as one that was never killed."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.checkpoint import store
from support.cli_process import ForkServer
from support.image_folders import IMAGE_SETTINGS, as_options
from support.interrupted_commands import image_folders, model_of
from support.records import without_keys

MIN_KILLS = 30  # per command
SAVE_EVERY_ROUND = {"ITL_SAVE_EVERY": "0", "ITL_CACHE": "off"}
MOMENTA = {"specialist.momentum": 0.9, "tangent.momentum": 0.9, "projection.momentum": 0.9}
STAGES = {"specialist", "generalist", "projection", "done"}
KILLED = -9
VARYING = ("seconds", "date", "hardware", "generations")  # a kill may skip numbers of generations

RUN = {**MOMENTA, "net.width": 4, "specialist.epochs": 3, "tangent.epochs": 16, "projection.epochs": 16}
LEARN = {**IMAGE_SETTINGS, **MOMENTA, "specialist.epochs": 8, "tangent.epochs": 16, "projection.epochs": 16}
COMMANDS = {
    "run itl": ["run", "--resume", "--quiet", "--out", "out", "--tasks", "2", *as_options(RUN)],
    "run itl-l": ["run", "--resume", "--quiet", "--out", "out", "--method", "itl-l", "--tasks", "2", *as_options(RUN)],
    "learn": ["learn", "out", "one", "two", "--quiet", "--size", "8", "--buffer", "12", *as_options(LEARN)],
}


def result(folder: Path) -> dict[str, Any]:
    """Everything a command has written, without times: weights, memory, images, records."""
    model = model_of(folder)
    tensors, state = store.read(model)
    out: dict[str, Any] = {f"tensor {name}": tensor.numpy().tobytes() for name, tensor in tensors.items()}
    out["state"] = without_keys(state, *VARYING)
    current = model / store.current(model)
    out |= {str(path.relative_to(current)): path.read_bytes() for path in current.rglob("*.png")}
    for path in (folder / "out").iterdir():
        if path.suffix == ".json":
            out[path.name] = without_keys(json.loads(path.read_text()), *VARYING)
        elif path.suffix == ".jsonl":
            out[path.name] = path.read_bytes()
        elif path.suffix == ".npz":
            out |= {f"{path.name} {name}": array.tobytes() for name, array in np.load(path).items()}
    return out


def kill_until_done(
    fork_server: ForkServer, words: list[str], root: Path, longest: float
) -> Iterator[tuple[Path, list[str]]]:
    """Repeat the command, killing it at random times, until it finishes; do so in new folders.

    Yields:
        The folder of a finished command, and the stage that each kill interrupted.
    """
    rng = np.random.default_rng(11)
    for number in range(100):
        folder = image_folders(root / str(number))
        interrupted_stages = []
        while True:
            done = fork_server.run(words, folder, kill_after=float(rng.uniform(0.01, longest)), env=SAVE_EVERY_ROUND)
            if done.code == 0:
                break
            assert done.code == KILLED, done.err
            interrupted_stages.append(position(folder))
        yield folder, interrupted_stages


def position(folder: Path) -> str:
    """The stage of the state that a kill left behind; reading it verifies its checksums."""
    try:
        model = model_of(folder)
        return str(store.read(model)[1]["position"][0]) if (model / "CURRENT").exists() else "nothing yet"
    except OSError:
        return "nothing yet"


@pytest.mark.slow
@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_killed_thirty_times_ends_with_the_same_bits(
    fork_server: ForkServer, tmp_path: Path, what: str
) -> None:
    words = COMMANDS[what]
    image_folders(tmp_path / "uninterrupted")
    began = time.monotonic()
    done = fork_server.run(words, tmp_path / "uninterrupted", env=SAVE_EVERY_ROUND)
    seconds = time.monotonic() - began
    assert done.code == 0, done.err
    expected = result(tmp_path / "uninterrupted")
    assert len(expected) > 20
    interrupted_stages: Counter[str] = Counter()
    for folder, where in kill_until_done(fork_server, words, tmp_path, longest=0.5 * seconds):
        ended = result(folder)
        assert ended.keys() == expected.keys()
        assert [name for name in ended if ended[name] != expected[name]] == []
        interrupted_stages.update(where)
        if interrupted_stages.total() >= MIN_KILLS and interrupted_stages.keys() >= STAGES:
            break
    assert interrupted_stages.total() >= MIN_KILLS, interrupted_stages
    assert interrupted_stages.keys() >= STAGES, interrupted_stages
    assert not re.search(r"\.draft", " ".join(str(path) for path in (tmp_path / "uninterrupted").rglob("*")))
