"""What a run measures, as TensorBoard's event files while it goes on."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"  # in a run's folder
NAMES = {"class_il": "Class-IL", "task_il": "Task-IL"}


class Events(Callback):
    """Writes every line that the recorder tells of: `tensorboard --logdir runs` shows the curves as they grow.

    Within stages the step is the line's number in metrics.jsonl, at the ends of stages and tasks it is the task. A
    resumed run hears its old lines again; what an earlier process wrote is then declared void, so nothing is there
    twice.
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        try:
            import tensorboard  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UserError("--tensorboard needs tensorboard; install it with pip install 'itl[tensorboard]'") from None
        self.folder = Path(run) / FOLDER
        self.count = 0
        self.writer: SummaryWriter | None = None

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def recorded(self, line: dict[str, Any]) -> None:
        """Accuracies over the tasks seen and of each of them, and the loss."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=0)  # type: ignore[no-untyped-call]
        for tag, value, step in scalars(line, self.count):
            self.writer.add_scalar(tag, value, step)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]  # whoever looks, sees it now
        self.count += 1


def scalars(line: dict[str, Any], number: int) -> list[tuple[str, float, int]]:
    """(tag, value, step) of a line of metrics.jsonl, the `number`th of its run."""
    task, stage, kind = line["task"], line["stage"], line["kind"]
    if kind in ("end", "expert"):
        return [(f"{name} after each task/{stage}", line[key], task) for key, name in NAMES.items()]
    out = []
    for key, name in NAMES.items():
        out.append((f"{name}/tasks seen", line[key], number))
        out += [(f"{name}/task {k + 1:02d}", value, number) for k, value in enumerate(line[f"{key}_tasks"][:task])]
    if line.get("loss") is not None:
        out.append((f"loss/{stage}", line["loss"], number))
    return out
