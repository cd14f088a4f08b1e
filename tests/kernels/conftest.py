"""Fixtures for kernel tests: on a GPU if available, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from itl import triton_support
from itl.engine import capture, concurrency
from itl.engine.device import Engine, choose_engine
from itl.learner import builder


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which kernels are launched."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda")
    monkeypatch.setattr(triton_support, "DEVICE_TYPES", {"cuda", "cpu"})
    interpreter = import_module("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter, "inspect", SimpleNamespace(**{**vars(inspect), "getmembers": members_to_patch}))
    return torch.device("cpu")


def members_to_patch(of: object) -> list[tuple[str, Any]]:
    """What Triton's interpreter replaces at each launch: the built-in members, unless a caller has replaced them."""
    members = builtin_members(of)
    return members if members and getattr(of, members[0][0]) is members[0][1] else []


@cache
def builtin_members(of: object) -> list[tuple[str, Any]]:
    """Listing them takes a quarter of the time of a test."""
    from triton.language.core import is_builtin

    return [(name, member) for name, member in inspect.getmembers(of) if is_builtin(member)]


class Stream:
    """A stand-in for a CUDA stream that executes everything immediately."""

    cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self) -> Any:
        return self


class Graph:
    """A stand-in for a CUDA graph that reruns the step."""

    def __init__(self, body: Any, counter: torch.Tensor) -> None:
        self.body, self.counter = body, counter

    def replay(self) -> None:
        self.body()
        self.counter.add_(1)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate capture on a CPU: a graph reruns the step on packed inputs. Lists one entry per capture."""
    made: list[int] = []
    main, second = Stream(), Stream()
    stack = [main]

    @contextlib.contextmanager
    def use_stream(stream: Stream) -> Iterator[None]:
        stack.append(stream)
        yield
        stack.pop()

    def record(self: capture.CapturedStepper, body: Any, counter: torch.Tensor, caller: Stream) -> Graph:
        made.append(1)
        body()  # the warm-up, whose effects must be undone
        return Graph(body, counter)

    def engine(*args: Any, capture: bool | None = None, **kwargs: Any) -> Engine:
        return replace(choose_engine(*args, **kwargs), capture=capture is not False)

    for name, replacement in {
        "current_stream": lambda device=None: stack[-1],
        "stream": use_stream,
        "graph_pool_handle": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setitem(concurrency._streams, torch.device("cpu"), concurrency.EngineStreams(main, second, main))  # type: ignore[arg-type]
    monkeypatch.setattr(capture, "in_capture_thread", lambda work, device: work())
    monkeypatch.setattr(capture.CapturedStepper, "_record", record)
    monkeypatch.setattr(builder, "choose_engine", engine)
    return made
