"""Concurrent runs on one device: captures are exclusive, eager launches are shared."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from itl.engine import concurrency
from itl.engine.concurrency import CAPTURE_GATE, CaptureGate
from support.tiny import tiny_learner, tiny_stream


def test_capture_is_exclusive_and_no_thread_starves() -> None:
    gate, inside, seen = CaptureGate(), {"eager": 0, "alone": 0}, []
    guard = threading.Lock()

    def enter(what: str, by: int) -> None:
        with guard:
            inside[what] += by
            seen.append(dict(inside))

    def eager() -> None:
        for _ in range(40):
            with gate.eager(), gate.eager():  # acquired twice, as in nested calls
                enter("eager", 1)
                time.sleep(0.0005)
                enter("eager", -1)

    def capture() -> None:
        for _ in range(20):
            with gate.exclusive():
                enter("alone", 1)
                time.sleep(0.0005)
                enter("alone", -1)

    threads = [threading.Thread(target=target, daemon=True) for target in (eager, eager, eager, capture, capture)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert all(now["alone"] <= 1 and not (now["alone"] and now["eager"]) for now in seen)
    assert max(now["eager"] for now in seen) > 1  # eager threads do not wait for one another


METHODS = ["x-der", "icarl", "gcr", "er-t", "co2l", "gdumb", "gmed", "metasp", "itl-l"]
POLICIES = [("er", policy) for policy in ("coreset", "entropy", "herding")]


@pytest.mark.parametrize(("method", "policy"), [*((method, None) for method in METHODS), *POLICIES])
def test_every_forward_pass_holds_the_capture_gate(method: str, policy: str | None) -> None:
    """Steps, memory policies, hooks and evaluation can all trigger cuDNN's search, which would break a capture."""
    own: dict[str, Any] = {"generalist": "tangent", **({"memory__policy": policy} if policy else {})}
    learner, seen = tiny_learner(method, **own), []
    hook = register_module_forward_pre_hook(lambda module, given: seen.append(CAPTURE_GATE.active))
    try:
        for task in tiny_stream():
            learner.learn(task)
        learner.evaluate(tiny_stream())
    finally:
        hook.remove()
    assert len(seen) > 100
    assert min(seen) > 0


class StreamPool:
    """PyTorch's stream pool: a ring of 32 for each priority."""

    def __init__(self) -> None:
        self.given = {0: 0, -1: 0}

    def __call__(self, device: torch.device, priority: int = 0) -> SimpleNamespace:
        self.given[priority] += 1
        return SimpleNamespace(cuda_stream=(priority, self.given[priority] % 32))


def test_concurrent_runs_and_engine_never_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose stream is captured by another run could not launch anything."""
    pool, device = StreamPool(), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "Stream", pool)
    monkeypatch.setattr(concurrency, "_streams", {})
    monkeypatch.setattr(concurrency, "PREFETCH_SHARE", 0)  # no green context: the third stream comes from the pool, too
    own = concurrency.engine_streams(device)
    engine_streams = {stream.cuda_stream for stream in (own.capture, own.side, own.prefetch)}
    assert len(engine_streams) == 3
    for _ in range(40):
        pool(device)
        streams = {stream.cuda_stream for stream in concurrency.distinct_streams(concurrency.MAX_CONCURRENT, device)}
        assert len(streams) == concurrency.MAX_CONCURRENT
        assert not streams & engine_streams
    assert concurrency.engine_streams(device) is own
