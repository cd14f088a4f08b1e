"""Frozen convolutions of images with channels of zeros besides: PyTorch's own of the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from itl.nets import conv
from tiny_world import counted


@pytest.mark.parametrize(("size", "stride", "bias"), [(3, 1, False), (7, 2, True)])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_a_widened_convolution_is_the_convolution(
    channels: int, size: int, stride: int, bias: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is trained and bf16 is asked for; eight channels are enough as they are."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 16, size, stride, size // 2, bias=bias).to(device)
    x = torch.randn(4, channels, 9, 9, device=device)
    widened = counted(conv, "_widened", monkeypatch)
    with torch.no_grad():
        conv.convolve(layer, x)
    with torch.autocast(device.type, torch.bfloat16):
        conv.convolve(layer, x)
        assert not widened
        with torch.no_grad():
            found = conv.convolve(layer, x)
    assert len(widened) == (channels < 8)
    rounded = [t.bfloat16().float() for t in (x, layer.weight)]
    expected = F.conv2d(*rounded, layer.bias, stride, size // 2)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() <= 1e-2 * expected.norm()
