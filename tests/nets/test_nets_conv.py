"""The side stream is used for the trained weight, not for a weight that a loss substitutes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from itl.nets.overlapped_conv import convolve


class Layer(nn.Module):
    """One convolution, called as in the ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, 3, h, w]`."""
        return convolve(self.conv, x)


def test_substituted_weight_has_forward_mode_derivatives() -> None:
    net, x = Layer(), torch.randn(4, 2, 5, 5)
    trained, direction = net.conv.weight, torch.randn(3, 2, 3, 3)
    net.conv.__dict__.update(side_stream="a stream", trained_weight=trained, forward_count=0)
    weights = {"conv.weight": trained.detach().clone()}
    value, derivative = jvp(lambda w: functional_call(net, w, (x,)), (weights,), ({"conv.weight": direction},))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(value, nn.functional.conv2d(x, trained, padding=1))
    torch.testing.assert_close(derivative, nn.functional.conv2d(x, direction, padding=1))
    assert net.conv.forward_count == 0
    with torch.no_grad():
        net(x)
    assert net.conv.forward_count == 0
    net(x)
    assert net.conv.forward_count == 1
