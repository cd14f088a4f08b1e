"""A GPU's whole way on a CPU: captured steps, bf16 twins, fused kernels (interpreted), convolutions apart, products.

What it cannot show is what needs a GPU: streams that overlap, graphs, lanes, speed (`tests/cuda`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from itl.augment import fused
from itl.engine import update
from itl.nets import columns, conv, dual, norm
from tiny_world import tiny_learner, tiny_stream

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda shows it there")

FEW = {"specialist.steps": 4, "tangent.epochs": 2, "projection.epochs": 2, "net.width": 8, "precision": "bf16"}


def taught(method: str, capture: bool, tasks: int = 2) -> dict[str, Tensor]:
    """What a learner has after two tasks."""
    stream = tiny_stream(classes=4, tasks=2, each=8, channels=3, policy="cifar10")
    learner = tiny_learner(method, **{**{name.replace(".", "__"): v for name, v in FEW.items()}, "capture": capture})
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    assert learner.evaluate(stream.tasks[0]).task_il >= 0
    return {**learner.net.state_dict(), "memory": learner.memory.pixels[:-1]}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["er", "derpp", "itl", "itl-l", "b+ff", "b+lf", "b+hp+ff+pd", "agem", "co2l"])
def test_captured_steps_leave_no_trace_and_give_the_same_bits(method: str, captures: list[int]) -> None:
    """By PyTorch's own operations."""
    captured = taught(method, capture=True)
    assert captures
    made = len(captures)
    assert same(captured, taught(method, capture=False))
    assert len(captures) == made


def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each of the GPU's ways is gone."""
    counts: dict[str, int] = {}

    def counting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return work(*args)

        return counted

    for function in (norm.FusedNorm, dual.DualNorm, conv.Apart, conv.Beside, conv.Gate, columns.Product):
        monkeypatch.setattr(function, "apply", counting(function.__name__, function.apply))
    monkeypatch.setattr(fused, "views", counting("views", fused.views))
    monkeypatch.setattr(update.Update, "_descend", counting("Update", update.Update._descend))
    return counts


WAYS = {"FusedNorm", "Apart", "Update", "views", "DualNorm", "Beside", "Gate", "Product"}
# Few large programs: an interpreter takes them one by one.
LARGE = [
    *((norm, "PROGRAMS", 2), (norm, "BLOCK_M", 512), (norm, "APPLY_M", 1024)),
    *((update, "BLOCK", 1 << 16), (columns, "BLOCK_R", 512)),
]


@pytest.mark.slow
def test_so_do_the_gpus_kernels(device: torch.device, captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CHANNELS", 1)
    for room, name, value in LARGE:
        monkeypatch.setattr(room, name, value)
    counts = called(monkeypatch)
    captured = taught("itl", capture=True)
    assert captures
    assert set(counts) == WAYS
    assert same(captured, taught("itl", capture=False))
