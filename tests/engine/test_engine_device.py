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
