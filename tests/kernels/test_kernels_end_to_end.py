"""The GPU code path simulated on a CPU: captured steps, bf16 weights, interpreted kernels, side-stream convolutions.

Overlapping streams, real graphs, concurrent runs and speed need a GPU (`tests/cuda`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from itl.augment import fused
from itl.engine import fused_sgd
from itl.generalists import round_planner
from itl.nets import folded_trunk, jvp_rules, norm, overlapped_conv, pooled_classifier
from support.tiny import count_calls, differing_keys, learner_snapshot, tiny_learner, tiny_stream

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda covers this on a GPU")

SHORT = {"specialist.steps": 4, "tangent.epochs": 2, "projection.epochs": 2, "net.width": 8, "precision": "bf16"}


def taught(method: str, capture: bool, **own: Any) -> dict[str, Tensor]:
    """A learner's state after two tasks and its logits on the first task's images."""
    stream = tiny_stream(classes=4, tasks=2, each=8, channels=3, policy="cifar10")
    learner = tiny_learner(
        method, **{name.replace(".", "__"): v for name, v in {**SHORT, **own, "capture": capture}.items()}
    )
    for task in stream:
        learner.learn(task)
    return {**learner_snapshot(learner), "predicted": learner.logits(stream.tasks[0].test)}


@pytest.mark.parametrize("method", ["er", "derpp", "itl", "itl-l", "b+ff", "b+lf", "b+hp+ff+pd", "agem", "co2l"])
def test_captured_steps_are_bit_equal_and_leave_no_trace(method: str, captures: list[int]) -> None:
    """With PyTorch's own operations."""
    captured = taught(method, capture=True)
    assert captures
    made = len(captures)
    assert differing_keys(captured, taught(method, capture=False)) == set()
    assert len(captures) == made


# Functions that only the GPU code path calls.
GPU_FUNCTIONS = [
    *(
        (function, "apply")
        for function in (norm.FusedBatchNorm, jvp_rules.NormJVP, pooled_classifier.PooledClassifierJVP)
    ),
    *((getattr(overlapped_conv, name), "apply") for name in ("SplitBackwardConv", "SideStreamConv", "WaitForStream")),
    *((fused, "views"), (fused_sgd.FusedSGD, "_update"), (folded_trunk.FoldedTrunk, "__call__")),
]
# Block sizes that give few large programs, because an interpreter runs them one by one.
LARGE_BLOCKS = [
    *((norm, "REDUCE_PROGRAMS", 2), (norm, "BLOCK_M", 512), (norm, "APPLY_M", 1024)),
    *((fused_sgd, "BLOCK", 1 << 16), (norm, "SINGLE_PASS_MAX_ROWS", 64)),
]


@pytest.mark.slow
def test_captured_steps_with_gpu_kernels_are_bit_equal(
    device: torch.device, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in LARGE_BLOCKS:
        monkeypatch.setattr(module, name, value)
    calls = [count_calls(*function, monkeypatch) for function in GPU_FUNCTIONS]
    captured = taught("itl", capture=True)
    assert captures
    assert all(calls)
    assert differing_keys(captured, taught("itl", capture=False)) == set()


def test_short_first_chunks_reuse_the_stage_graphs(captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has capacity for the longest chunk of its stage from the beginning."""
    made, outcomes = [], []
    for first_chunks in ((), (1, 1)):
        monkeypatch.setattr(round_planner, "FIRST_CHUNK_EPOCHS", first_chunks)
        captures.clear()
        chunks = count_calls(round_planner.SampleRoundPlanner, "_chunk", monkeypatch)
        outcomes.append(taught("itl", capture=True, **{"tangent.epochs": 24, "projection.epochs": 24}))
        made.append((len(captures), len(chunks)))
    assert made[0][0] == made[1][0]
    assert made[1][1] == made[0][1] + 8  # two more in each of two stages of two tasks
    assert differing_keys(*outcomes) == set()
