"""`WandbCallback`: logs the metrics of a run to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.callbacks.scalars import parameters, scalars
from itl.errors import UserError

if TYPE_CHECKING:
    from itl.experiments import Config


class WandbCallback(Callback):
    """Logs every line of metrics.jsonl to a run of Weights & Biases, and the configuration as its config.

    Use it as a context manager; the run of Weights & Biases ends with the block, as failed if the block raises an
    error.

    Args:
        config: Configuration of the run, or any parameters by name.
        project: Name of the project.
        name: Name of the run. Default: Weights & Biases chooses one.
        mode: `online`, `offline` (nothing is sent until `wandb sync`) or `disabled`. Default: `WANDB_MODE`, or online.
        folder: Folder of the local files. Default: the current folder.

    Raises:
        UserError: wandb is not installed.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any],
        project: str = "itl",
        name: str | None = None,
        mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UserError("WandbCallback needs wandb; install it with pip install 'itl[wandb]'") from None
        self.wandb, self.line_count = wandb, 0
        self.arguments = {
            "project": project,
            "name": name,
            "mode": mode,
            "dir": None if folder is None else os.fspath(folder),
            "config": parameters(config),
        }
        self.run: Any = None

    def __enter__(self) -> WandbCallback:
        self.run = self.wandb.init(**self.arguments)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.finish(exit_code=0 if error is None else 1)

    def on_record(self, line: dict[str, Any]) -> None:
        """Log the accuracies over the tasks seen and of each task, and the loss."""
        if self.run is None:
            raise UserError("WandbCallback has no run; use it in a with statement")
        self.run.log({tag: value for tag, value, _ in scalars(line, self.line_count)} | {"task": line["task"]})
        self.line_count += 1
