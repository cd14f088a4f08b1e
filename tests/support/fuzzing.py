"""Malformed inputs with fixed seeds, and limits on what an attempt to read them may do."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from itl import UserError

# Limits that detect a hang. Other processes do not use up the processor time of an attempt.
MAX_SECONDS, MAX_WAITING_SECONDS = 10, 120
NASTY: list[Any] = [None, True, -1, 0, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, float("nan"), float("inf")]
NASTY += ["", "\x00", "../..", "/etc/passwd", "\udcff", "a" * 5000, "\x1b[31m", "²", "null", "1e9", "=1+1"]
NASTY += [[], {}, [[]], {"": {}}, [None] * 50, {"a": {"b": {"c": 1}}}, [1, "2", 3.0]]


@contextmanager
def time_limit() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise TimeoutError(f"more than {MAX_SECONDS} s of processor time or {MAX_WAITING_SECONDS} s")

    timers = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    previous = {number: signal.signal(number, fail) for number in timers}
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WAITING_SECONDS)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, previous[number])


class WriteGuard:
    """Collects the paths outside a folder that this process writes to, while it has a folder."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.outside: set[str] = set()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Python's audit hook."""
        if self.folder is None or event not in WRITING_EVENTS:
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITING_FLAGS):
            return
        paths = args[: WRITING_EVENTS[event]]
        for path in (os.path.realpath(os.fsdecode(one)) for one in paths if isinstance(one, str | bytes | os.PathLike)):
            if not path.startswith((self.folder + os.sep, "/dev/")) and "__pycache__" not in path:
                self.outside.add(f"{event} {path}")


WRITING_EVENTS = {"open": 1, "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1}
WRITING_EVENTS |= {"os.link": 2, "os.symlink": 2, "os.chmod": 1, "shutil.rmtree": 1}
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
GUARD = WriteGuard()
sys.addaudithook(GUARD)  # it cannot be removed, but does nothing without a folder


def fuzz(count: int, seed: int, attempt: Callable[[random.Random], Any], outside: Path) -> None:
    """Call `attempt` with `count` seeds. It may only raise a `UserError`, and only write below the current folder."""
    GUARD.folder, GUARD.outside = os.path.realpath("."), set()
    failures: dict[str, str] = {}
    for number in range(count):
        try:
            with time_limit():
                attempt(random.Random(f"{seed}/{number}"))
        except UserError as error:
            if "\n" in str(error).strip():
                failures[f"{number}: several lines"] = str(error)
        except BaseException as error:
            failures.setdefault(f"{type(error).__name__}: {error}"[:150], f"input {number}")
    GUARD.folder = None
    assert not GUARD.outside
    assert (outside / "victim").read_text() == "safe"
    assert not failures, "\n".join(f"{why}: {message}" for message, why in list(failures.items())[:20])


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        position = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and position < len(out):
            out[position] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[position:position] = rng.randbytes(rng.choice((1, 4, 100)))
        elif kind == 2:
            del out[position : position + rng.choice((1, 4, 100))]
        else:
            out[position : position + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
    return bytes(out[: rng.randrange(len(out) + 1)]) if rng.random() < 0.2 else bytes(out)


def mutated_json(value: Any, rng: random.Random) -> Any:
    """A copy in which one to three values or keys are replaced or removed."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        parent = value
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.8:
                parent = parent[key]
                continue
            if rng.random() < 0.2:
                del parent[key]
            else:
                parent[key] = copy.deepcopy(rng.choice(NASTY))
            break
    return value


def json_bytes(value: Any, rng: random.Random) -> bytes:
    """JSON text, sometimes damaged."""
    data = json.dumps(value).encode()
    return mutated_bytes(data, rng) if rng.random() < 0.2 else data
