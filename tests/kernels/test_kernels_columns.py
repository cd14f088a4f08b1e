"""Convolutions as products: PyTorch's own, both ways."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from itl.nets import columns

LAST = torch.channels_last
SHAPES = [(3, 32, 4, 4, 48), (2, 16, 5, 7, 32), (1, 8, 1, 1, 8), (5, 160, 2, 3, 16)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("batch", "inputs", "height", "width", "outputs"), SHAPES)
def test_a_product_is_the_convolution(
    batch: int, inputs: int, height: int, width: int, outputs: int, stride: int, device: torch.device
) -> None:
    x = torch.randn(batch, inputs, height, width, device=device).contiguous(memory_format=LAST)
    weight = torch.randn(outputs, inputs, 3, 3, device=device).contiguous(memory_format=LAST)
    expected = F.conv2d(x, weight, None, stride, 1)
    found = columns.product(x, weight, stride)
    assert found.shape == expected.shape
    assert found.is_contiguous(memory_format=LAST)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(("batch", "inputs", "height", "width", "outputs"), SHAPES)
def test_its_way_back_is_the_convolutions(
    batch: int, inputs: int, height: int, width: int, outputs: int, device: torch.device
) -> None:
    x = torch.randn(batch, inputs, height, width, device=device).contiguous(memory_format=LAST).requires_grad_()
    weight = torch.randn(outputs, inputs, 3, 3, device=device).contiguous(memory_format=LAST)
    g = torch.randn(batch, outputs, height, width, device=device)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight, None, 1, 1), x, g)
    (found,) = torch.autograd.grad(columns.Product.apply(x, weight, columns.turned(weight)), x, g)
    assert (found - expected).norm() <= 1e-5 * expected.norm()
