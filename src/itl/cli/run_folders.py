"""Where a run goes: a new folder, or the one to go on with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.config import Config

RUNS = Path("runs")


def choose(config: Config, out: str | None, several: bool, resume: bool) -> Path:
    """The folder for a run. `--out` is the run's own, or where several runs put theirs."""
    from itl.experiments.run import fresh_folder

    if out is None:
        return (_to_resume(config) if resume else None) or fresh_folder(RUNS, config.name)
    path = Path(out) / config.name if several else Path(out)
    if not resume and (path / "config.json").exists():
        raise UserError(f"{path} holds a run already; choose another --out, or --resume to go on with it")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another --out")
    return path


def _to_resume(config: Config) -> Path | None:
    """The newest unfinished run of this name, else the newest finished one under the same options.

    Unfinished runs under other options come last: going on with one is refused, by name, not silently begun anew.
    """
    found = []
    for path in _of_name(config.name):
        same, finished = _same(path, config), (path / "result.json").exists()
        if same or not finished:
            found.append((same, not finished, (path / "config.json").stat().st_mtime_ns, path))
    return max(found)[-1] if found else None


def _of_name(name: str) -> list[Path]:
    pattern = re.compile(re.escape(name) + r"(-\d+)?")
    there = RUNS.iterdir() if RUNS.is_dir() else []
    return [path for path in there if pattern.fullmatch(path.name) and (path / "config.json").exists()]


def _same(path: Path, config: Config) -> bool:
    from itl.experiments.config import Config
    from itl.results import read_config

    return Config.of(read_config(path)) == config
