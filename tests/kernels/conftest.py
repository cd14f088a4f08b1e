"""Where kernels run: on the GPU there is, else on the CPU in Triton's interpreter, launched by the same code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from itl import triton_support
from itl.engine import capture, concurrency
from itl.engine.device import Engine, choose_engine
from itl.learner import learner


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which kernels are launched."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda")
    monkeypatch.setattr(triton_support, "DEVICE_TYPES", {"cuda", "cpu"})
    return torch.device("cpu")


class Stream:
    """One of a GPU that there is not: everything is done at once."""

    cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self) -> Any:
        return self


class Graph:
    """A captured step that is run again."""

    def __init__(self, body: Any, counter: torch.Tensor) -> None:
        self.body, self.counter = body, counter

    def replay(self) -> None:
        self.body()
        self.counter.add_(1)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Captured steps on a CPU: the graph is the step itself, whose inputs are packed and counted. An entry for each."""
    made: list[int] = []
    main, beside = Stream(), Stream()
    now = [main]

    @contextlib.contextmanager
    def within(stream: Stream) -> Iterator[None]:
        now.append(stream)
        yield
        now.pop()

    def record(self: capture.CapturedStepper, body: Any, counter: torch.Tensor, here: Stream) -> Graph:
        made.append(1)
        body()  # the warm-up, whose traces must go
        return Graph(body, counter)

    def engine(*args: Any, capture: bool | None = None, **kwargs: Any) -> Engine:
        return replace(choose_engine(*args, **kwargs), capture=capture is not False)

    for name, pretended in {
        "current_stream": lambda device=None: now[-1],
        "stream": within,
        "graph_pool_handle": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, pretended)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setitem(concurrency._streams, torch.device("cpu"), concurrency.EngineStreams(main, beside, main))  # type: ignore[arg-type]
    monkeypatch.setattr(capture, "in_capture_thread", lambda work, device: work())
    monkeypatch.setattr(capture.CapturedStepper, "_record", record)
    monkeypatch.setattr(learner, "choose_engine", engine)
    return made
