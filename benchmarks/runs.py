"""Runs made in bulk: what is recorded already, one more, several side by side on a GPU."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from itl.config import Config
from itl.errors import UserError

Key = tuple[str, str | None, int, int]


def recorded(folder: Path, split: str = "test") -> dict[Key, dict[str, Any]]:
    """The results anywhere below a folder by (method, variant, buffer, seed)."""
    out = {}
    for path in sorted(folder.glob("**/result.json")):
        result = json.loads(path.read_text())
        if result["split"] == split:
            out[result["method"], result["variant"], result["buffer"], result["seed"]] = result
    return out


def not_recorded(configs: Sequence[Config], folder: Path, split: str = "test") -> list[Config]:
    """Those of some runs that are not recorded there yet."""
    done = recorded(folder, split)
    return [c for c in configs if (c.method, c.variant, c.buffer, c.seed) not in done]


def one(config: Config, out: Path, data: str, device: str) -> str:
    """Run and record one, in this process; what came of it in a line. A run that fails leaves nothing behind."""
    from itl.run import run

    begun = time.perf_counter()
    draft = out.with_name(f".{out.name}")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        result = run(config, config.load_stream(data), draft, device=device, save=False)
    except UserError as error:
        shutil.rmtree(draft, ignore_errors=True)
        return f"{config.name}: failed: {error}"
    os.replace(draft, out)
    return (
        f"{config.name}: Class-IL {result['class_il']:.1f}, Task-IL {result['task_il']:.1f}, "
        f"{time.perf_counter() - begun:.0f} s"
    )


def on_device(
    todo: Sequence[Config],
    place: Callable[[Config], Path],
    data: str,
    device: str,
    lanes: int,
    until: float = float("inf"),
) -> None:
    """Several runs side by side in this process; none is begun `until` seconds from now or later."""
    from itl.engine.device import choose_engine
    from itl.engine.lanes import side_by_side

    begun = time.monotonic()

    def job(config: Config) -> None:
        if time.monotonic() - begun < until:
            print(one(config, place(config), data, device), flush=True)

    side_by_side([partial(job, config) for config in todo], lanes, choose_engine(device).device)
