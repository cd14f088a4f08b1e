"""A run's folder: config.json, metrics.jsonl, result.json, predictions.npz, pictures.npz, model/."""

from __future__ import annotations

import json
import os
import platform
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itl.errors import UserError

if TYPE_CHECKING:
    import torch

# 1: the first. 2: lines of the kind `start`, pictures.npz. Older ones stay readable.
FORMAT = 2


class RunFolder:
    """The files of one run. Small files are replaced in one step, so that a reader never sees half of one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def model(self) -> Path:
        """Where the learner is saved."""
        return self.path / "model"

    def specialist(self, task: int) -> Path:
        """Where the specialist of a task (from 1) is kept for `itl refine`."""
        return self.path / "specialists" / f"task-{task:02d}"

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder for a new run; one that holds a run already is never written over."""
        if (self.path / "config.json").exists():
            raise UserError(f"{self.path} holds a run already; choose another --out, or --resume to go on with it")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write("config.json", config)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}; choose another --out") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else goes on with this run meanwhile. The lock, on config.json, ends with the process that holds it.

        A file system that cannot lock is taken as it is.
        """
        handle = self._lock()
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _lock(self) -> int | None:
        try:
            import fcntl

            handle = os.open(self.path / "config.json", os.O_RDONLY)
        except (ImportError, OSError):
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(f"another process is at work on {self.path}; wait for it to end") from None
        except OSError:
            os.close(handle)
            return None
        return handle

    def read(self, name: str) -> Any:
        """A JSON file of the folder."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {name}; is it the folder of a run?") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}") from None

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file."""
        draft = self.path / f".{name}.draft"
        draft.write_text(json.dumps(value, indent=1) + "\n")
        os.replace(draft, self.path / name)

    def lines(self, count: int | None = None) -> list[dict[str, Any]]:
        """What metrics.jsonl holds, or its first `count` lines; a last line cut short by a crash is passed over."""
        path = self.path / "metrics.jsonl"
        text = path.read_text().splitlines()[:count] if path.exists() else []
        out: list[dict[str, Any]] = []
        for number, line in enumerate(text, 1):
            try:
                out.append(json.loads(line))
            except ValueError:
                if number < len(text):
                    raise UserError(f"{path}, line {number}, is damaged; run it again") from None
        return out

    def truncate_lines(self, count: int) -> list[dict[str, Any]]:
        """Cut metrics.jsonl back to its first `count` lines (those that the saved state knows of) and return them."""
        lines = self.lines(count)
        if len(lines) < count:
            path = self.path / "metrics.jsonl"
            raise UserError(f"{path} has {len(lines)} of the {count} lines that the saved state knows of; run it again")
        draft = self.path / ".metrics.draft"
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.replace(draft, self.path / "metrics.jsonl")
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl. It is on the disk before a state that knows of it is."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_arrays(self, name: str, **arrays: np.ndarray) -> None:
        """Replace an .npz file."""
        draft = self.path / f".{name}"
        np.savez_compressed(draft, **arrays)  # type: ignore[arg-type]
        os.replace(draft, self.path / name)

    def read_arrays(self, name: str) -> dict[str, np.ndarray] | None:
        """What an .npz file holds; None where there is none."""
        if not (self.path / name).exists():
            return None
        try:
            with np.load(self.path / name, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{self.path / name} is damaged: {error}; run it again") from None


def stage_scores(lines: list[dict[str, Any]], task: int) -> dict[str, dict[str, float]]:
    """What each stage of a task (from 1) reached, by a run's lines: specialist, tangent (or the ablation's), expert."""
    return {
        line["stage"]: {"class_il": line["class_il"], "task_il": line["task_il"]}
        for line in lines
        if line["task"] == task and line["kind"] in ("end", "expert") and line["stage"] != "projection"
    }


def environment(device: torch.device) -> dict[str, Any]:
    """What the run ran on: `hardware` and `versions` of result.json. No host names, no paths."""
    import torch  # here, so that a table of results need not wait for it

    import itl

    hardware: dict[str, Any] = {"device": device.type, "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    versions = {
        "itl": itl.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return {"hardware": hardware, "versions": versions}
