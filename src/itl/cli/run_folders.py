"""Choose the folder of a run: a new one, or an interrupted run to resume."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments.config import Config

RUNS_FOLDER = Path("runs")


def choose_run_folder(config: Config, out: str | None, several: bool, resume: bool) -> Path:
    """The folder for a run.

    Args:
        config: Configuration of the run.
        out: Value of `--out`: the folder of a single run, the parent folder of several runs.
        several: Whether the command starts several runs.
        resume: Whether an interrupted run may be resumed.
    """
    from itl.experiments.run import fresh_folder

    if out is None:
        return (_run_to_resume(config) if resume else None) or fresh_folder(RUNS_FOLDER, config.name)
    path = Path(out) / config.name if several else Path(out)
    if not resume and (path / "config.json").exists():
        raise UserError(f"{path} already contains a run. Choose another --out, or add --resume to continue it.")
    check_out_folder(path)
    return path


def resume_remark(configs: Sequence[Config], folders: Sequence[Path], out: str | None) -> str | None:
    """One line on what `--resume` found, or None if the run in a folder has other options, which is an error.

    Args:
        configs: Configurations of the runs.
        folders: Their folders, from `choose_run_folder`.
        out: Value of `--out`.
    """
    started = [(folder / "config.json").exists() for folder in folders]
    pairs = zip(configs, folders, strict=True)
    if not all(_has_config(folder, config) for (config, folder), exists in zip(pairs, started, strict=True) if exists):
        return None
    finished = [folder for folder in folders if (folder / "result.json").exists()]
    unfinished, new = sum(started) - len(finished), len(folders) - sum(started)
    if not any(started):
        goal = folders[0] if len(folders) == 1 else f"{new} runs"
        return f"No unfinished run with these options{_nearest(configs[0], out)}. Starting {goal}."
    if len(folders) > 1:
        return f"Of {len(folders)} runs, {len(finished)} finished before, {unfinished} resumed, {new} new."
    return f"{folders[0]} is finished; nothing to resume." if finished else f"Resuming {folders[0]}."


def _nearest(config: Config, out: str | None) -> str:
    """The latest unfinished run of the same method, and in which options it differs; empty if there is none."""
    from itl.experiments.config import Config, first_few
    from itl.results import read_config

    paths = [] if out is not None or not RUNS_FOLDER.is_dir() else list(RUNS_FOLDER.glob("*/config.json"))
    for path in sorted(paths, key=_modified, reverse=True):
        with suppress(UserError, OSError, TypeError, ValueError):  # it is not this command's run that is damaged
            other = Config.from_dict(read_config(path.parent))
            if other.method == config.method and not (path.parent / "result.json").exists():
                return f"; the latest one of {config.method}, {path.parent}, has {first_few(config.differences(other))}"
    return ""


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def check_out_folder(path: Path) -> None:
    """Raise a `UserError` if `path` exists and is not a folder."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder. Choose another --out.")


def _run_to_resume(config: Config) -> Path | None:
    """The newest unfinished run with these options, else the newest finished one.

    Unfinished runs with other options come last: they are refused by name later, rather than silently started anew.
    """
    candidates = []
    for path in _runs_named(config.name):
        same, finished = _has_config(path, config), (path / "result.json").exists()
        if same or not finished:
            candidates.append((same, not finished, (path / "config.json").stat().st_mtime_ns, path))
    return max(candidates)[-1] if candidates else None


def _runs_named(name: str) -> list[Path]:
    """Folders called `name`, `name-2`, … that contain a run."""
    pattern = re.compile(re.escape(name) + r"(-\d+)?")
    paths = RUNS_FOLDER.iterdir() if RUNS_FOLDER.is_dir() else []
    return [path for path in paths if pattern.fullmatch(path.name) and (path / "config.json").exists()]


def _has_config(path: Path, config: Config) -> bool:
    from itl.experiments.config import Config
    from itl.results import read_config

    return Config.from_dict(read_config(path)) == config
