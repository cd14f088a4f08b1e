"""Inner products of single samples' gradients on a GPU: those of the CPU, and the same from a captured graph."""

from __future__ import annotations

import pytest
import torch

from itl import nets
from itl.specialists.per_sample import gram

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("width", [8, 64])  # with 64, the last layer's products are taken place by place
def test_inner_products_are_the_cpus_and_can_be_captured(width: int) -> None:
    draw = torch.Generator().manual_seed(0)
    net = nets.build("resnet18", 10, width=width, generator=draw).double().eval()
    x, y = torch.randn(8, 3, 32, 32, generator=draw, dtype=torch.float64), torch.arange(8)
    expected = gram(net, x, y)
    net = net.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = x.cuda().contiguous(memory_format=torch.channels_last), y.cuda()
    with torch.no_grad():
        eager, graph = gram(net, x, y), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gram(net, x, y)
    graph.replay()
    assert torch.allclose(eager.cpu(), expected, rtol=1e-8, atol=1e-8)
    assert torch.allclose(captured, eager, rtol=1e-8, atol=1e-8)
