"""A learn as it goes: what is being learned, how far it is, the time left; and a stop that loses nothing."""

from __future__ import annotations

import signal
import time
from types import FrameType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from itl.cli.live import Display
from itl.cli.outlook import Outlook, legs

if TYPE_CHECKING:
    from itl.engine.loop import Stage
    from itl.learner import Learner
    from itl.teach import Teacher
    from itl.teach.teacher import Lecture


class Lessons(Display):
    """Shows one lesson on a terminal."""

    def __init__(self, console: Console, teacher: Teacher, lecture: Lecture, which: str) -> None:
        about = SimpleNamespace(method="", stream=lecture.lesson.name, buffer=0, seed=0)
        super().__init__(console, about)  # type: ignore[arg-type]
        self.heading = Text.assemble((str(teacher.path), "bold"), f" learns {which}", (lecture.lesson.name, "bold"))
        self.images = sum(len(files) for files in lecture.lesson.found.train.values())

    def stage_begins(self, learner: Learner, stage: Stage) -> None:
        """Take up the stage where it stands."""
        task = len(learner.tasks)
        if self.outlook is None:
            every = legs(learner.settings, [learner.memory.size] * (task - 1) + [self.images], learner.memory.size)
            self.outlook = Outlook([leg for leg in every if leg.task == task])
            self.heading.append(f", {learner.engine.device}")
            self.mark = time.monotonic()
        super().stage_begins(learner, stage)

    def _now(self) -> Text:
        """Stage and epoch."""
        if not self.task:
            return Text(self.note)
        name, epoch, epochs = self.stage
        out = Text.assemble((name, "bold"), f"  epoch {epoch} of {epochs}")
        return out.append(f"  loss {self.loss:.3g}", "dim") if epoch else out


class Stop:
    """Ctrl-C as a question: the first is answered at the end of the round, the second interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Stop:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
