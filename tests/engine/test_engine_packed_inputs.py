"""Packed inputs of a captured step: lossless, aligned, refillable."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from itl.engine.packed_inputs import ALIGNMENT, PackedInputs


def group(steps: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randint(0, 256, (steps, 3, 5, 7), dtype=torch.uint8, generator=g),
        "lr": torch.rand(steps, generator=g),
        "y": torch.randint(0, 9, (steps, 3), generator=g),
        "mask": torch.rand((steps, 3), generator=g) > 0.5,
        "none": torch.rand((steps, 0), generator=g),
        "h": torch.rand((steps, 4, 6), generator=g).permute(0, 2, 1),
        "half": torch.rand((steps, 3), generator=g).bfloat16(),
    }


def same(packed: PackedInputs, given: dict[str, Tensor]) -> bool:
    """Whether every step of `given` is recovered."""
    for k in range(given["lr"].shape[0]):
        out = packed.at(torch.tensor([k]))
        if set(out) != set(given):
            return False
        for name, tensor in given.items():
            if out[name].dtype != tensor.dtype or not torch.equal(out[name], tensor[k]):
                return False
    return True


def test_capacity_exceeds_the_first_group() -> None:
    packed = PackedInputs(group(2), capacity=5)
    assert same(packed, group(2))
    packed.fill(group(5, seed=1))
    assert same(packed, group(5, seed=1))


def test_each_step_reads_its_own_inputs() -> None:
    assert same(PackedInputs(group(5)), group(5))


@pytest.mark.parametrize("steps", [5, 3])
def test_packed_inputs_can_be_refilled(steps: int) -> None:
    packed = PackedInputs(group(5))
    packed.fill(group(steps, seed=1))
    assert same(packed, group(steps, seed=1))
    assert len(packed) == 5


def test_inputs_are_aligned() -> None:
    packed = PackedInputs(group(5))
    row = packed.rows.index_select(0, torch.tensor([2]))
    for name, tensor in packed.at(torch.tensor([2])).items():
        assert packed.byte_ranges[name].start % ALIGNMENT == 0
        assert tensor.is_contiguous()
    assert row.shape[1] * 8 % ALIGNMENT == 0
