"""An engine restores its PyTorch switches whenever it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from itl.engine import device
from itl.engine.device import Engine


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the switches afterwards; no CUDA device is needed."""
    monkeypatch.setattr(device, "device_guard", lambda at: nullcontext())
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    yield
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


@pytest.mark.usefixtures("switches")
def test_another_engine_does_not_change_precision_or_determinism() -> None:
    gpu = torch.device("cuda", 0)
    exact = Engine(gpu, "fp32", exact=True)
    fast = Engine(gpu, "bf16")
    for engine in (exact, fast, exact):
        with engine.activate():
            assert torch.backends.cuda.matmul.allow_tf32 is (engine is fast)
            assert torch.backends.cudnn.allow_tf32 is (engine is fast)
            assert torch.backends.cudnn.deterministic is (engine is exact)


@pytest.mark.parametrize(("load", "threads"), [(0.2, 8), (2.6, 5), (30.0, 4)])
def test_busy_cores_are_left_alone_but_half_are_used(
    load: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(device.torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(device, "available_cores", lambda: 8)
    monkeypatch.setattr(device.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    device.use_idle_cores()
    monkeypatch.delenv("OMP_NUM_THREADS")
    device.use_idle_cores()
    assert chosen == [threads]
