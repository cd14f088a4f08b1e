"""A piece of work: one cell of a sweep or one trial of a search, whoever does it and wherever."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from itl.callbacks.base import Callback
from itl.checkpoint.store import reason
from itl.errors import UserError
from itl.experiments.config import Config
from itl.experiments.search.job_locks import Claim
from itl.streams import Stream

Event = dict[str, Any]
"""`kind`: begins, line, measured, done, failed; `work`: its name; and what belongs to the kind."""
Report = Callable[[int, float], bool]
"""Told (step, value) of a trial; answers whether it is hopeless."""


class Work(Protocol):
    """What is done; can be sent to another process. Its files lie in `folder` under the root it is given."""

    @property
    def name(self) -> str:
        """How it is called, and its claim."""

    @property
    def folder(self) -> str:
        """Where its files lie, under the root."""

    @property
    def configs(self) -> Sequence[Config]:
        """The runs it is made of: what they are over must be loaded."""

    @property
    def needs(self) -> Sequence[str]:
        """Folders elsewhere that it reads."""

    def do(self, root: Path, streams: Streams, callbacks: Sequence[Callback], device: str, report: Report) -> Event:
        """Do it, or go on with it; what is worth telling of the result."""


class JobSource(Protocol):
    """Where work comes from. Several processes may take from one."""

    ahead: bool  # whether a piece may be claimed long before it is begun

    def claim(self) -> tuple[Work, Claim] | None:
        """The next piece that is neither done nor anybody's; None when there is none."""

    def report(self, work: Work) -> Report:
        """Whom a piece tells how it goes."""

    def finish(self, work: Work, details: Event) -> None:
        """A piece is done."""

    def fail(self, name: str, message: str) -> None:
        """The piece of this name cannot be done."""


class Streams:
    """Streams by what a run says of them; the last one is kept, for runs of a grid come in order of stream."""

    def __init__(self, data: str) -> None:
        self.data, self.lock = data, Lock()
        self.last: tuple[str, Stream] | None = None

    def of(self, config: Config) -> Stream:
        """The stream that a run is over."""
        key = stream_key(config)
        with self.lock:
            if self.last is None or self.last[0] != key:
                self.last = None
                self.last = (key, config.load_stream(self.data))
            return self.last[1]


def stream_key(config: Config) -> str:
    """What two runs share when they are over the same stream."""
    return repr((config.stream, config.tasks, config.order, config.order_seed, config.split))


def in_one_line(error: BaseException) -> str:
    """What to tell of an error: the user's in its own words, ours with its kind."""
    if isinstance(error, (UserError, OSError)):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {reason(error)}"


def is_full(error: BaseException | None) -> bool:
    """Whether an error comes from a disk without room: every other piece would meet it too."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False
