"""`TensorBoardCallback`: writes the metrics of a run as TensorBoard event files."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from itl.callbacks.base import Callback
from itl.callbacks.scalars import scalars
from itl.errors import UserError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENT_FOLDER = "tensorboard"  # in the folder of a run


class TensorBoardCallback(Callback):
    """Writes every line of metrics.jsonl as TensorBoard events; `tensorboard --logdir runs` shows the curves.

    Within stages the step is the number of the line in metrics.jsonl; at the ends of stages and tasks it is the task. A
    resumed run repeats its earlier lines, and the events of earlier processes are purged, so no value appears twice.

    Args:
        run: Folder of the run.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        try:
            import tensorboard  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UserError("--tensorboard needs tensorboard; install it with pip install 'itl[tensorboard]'") from None
        self.folder = Path(run) / EVENT_FOLDER
        self.line_count = 0
        self.writer: SummaryWriter | None = None

    def __enter__(self) -> TensorBoardCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            self.writer.close()

    def on_record(self, line: dict[str, Any]) -> None:
        """Write the accuracies over the tasks seen and of each task, and the loss."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=0)  # type: ignore[no-untyped-call]
        for tag, value, step in scalars(line, self.line_count):
            self.writer.add_scalar(tag, value, step)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]  # shows the curves without delay
        self.line_count += 1
