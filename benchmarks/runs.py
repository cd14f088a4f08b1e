"""Runs made in bulk: what is recorded already, one more, several side by side on a GPU."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jobs import Job, work_off

from itl.experiments.config import Config

Key = tuple[str, str | None, int, int]


def recorded(folder: Path, split: str = "test") -> dict[Key, dict[str, Any]]:
    """The results anywhere below a folder by (method, variant, buffer, seed)."""
    out = {}
    for path in sorted(folder.glob("**/result.json")):
        result = json.loads(path.read_text())
        if result["split"] == split:
            out[result["method"], result["variant"], result["buffer"], result["seed"]] = result
    return out


def key(config: Config) -> Key:
    """What a run's record is found by."""
    return config.method, config.variant, config.buffer, config.seed


def not_recorded(configs: Sequence[Config], folder: Path, split: str = "test") -> list[Config]:
    """Those of some runs that are not recorded there yet."""
    done = recorded(folder, split)
    return [c for c in configs if key(c) not in done]


def one(config: Config, out: Path, data: str, device: str) -> str:
    """Run and record one, in this process; what came of it in a line. A run that fails leaves all as it was."""
    from itl.experiments.run import run

    draft = out.with_name(f".{out.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        result = run(config, config.load_stream(data), draft, device=device, save=False)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(out, ignore_errors=True)
    os.replace(draft, out)
    return f"Class-IL {result['class_il']:.1f}, Task-IL {result['task_il']:.1f}"


def on_device(
    todo: Sequence[Config],
    place: Callable[[Config], Path],
    data: str,
    device: str,
    lanes: int,
    until: float = float("inf"),
) -> None:
    """Several runs side by side in this process, none that would end later than `until` seconds from now."""
    work_off([Job(c.name, partial(one, c, place(c), data, device)) for c in todo], lanes, device, until)
