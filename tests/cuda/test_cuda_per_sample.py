"""Per-sample gradients on a GPU: equal to the CPU's, and capturable."""

from __future__ import annotations

import pytest
import torch

from itl import nets
from itl.gradients.grad_sample import gradient_gram
from itl.specialists.metasp import influences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("width", [8, 64])  # with 64, the last layer uses the other order of computation
def test_gradient_gram_equals_the_cpus_and_is_capturable(width: int) -> None:
    draw = torch.Generator().manual_seed(0)
    net = nets.build("resnet18", 10, width=width, generator=draw).double().eval()
    x, y = torch.randn(8, 3, 32, 32, generator=draw, dtype=torch.float64), torch.arange(8)
    expected = gradient_gram(net, x, y)
    net = net.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = x.cuda().contiguous(memory_format=torch.channels_last), y.cuda()
    with torch.no_grad():
        eager, graph = gradient_gram(net, x, y), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradient_gram(net, x, y)
    graph.replay()
    assert torch.allclose(eager.cpu(), expected, rtol=1e-8, atol=1e-8)
    assert torch.allclose(captured, eager, rtol=1e-8, atol=1e-8)


def test_influences_equal_the_cpus_and_are_capturable() -> None:
    draw = torch.Generator().manual_seed(0)
    net = nets.build("resnet18", 10, width=8, generator=draw).double().eval()
    batches = [(torch.randn(n, 3, 32, 32, generator=draw, dtype=torch.float64), torch.arange(n)) for n in (8, 4, 6)]
    expected = influences(net, batches[0], batches[1:], 0.1)
    net = net.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = [(x.cuda().contiguous(memory_format=torch.channels_last), y.cuda()) for x, y in batches]
    eager, graph = influences(net, batches[0], batches[1:], 0.1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = influences(net, batches[0], batches[1:], 0.1)
    graph.replay()
    for ours, again, cpu in zip(eager, captured, expected, strict=True):
        assert torch.allclose(ours.cpu(), cpu, rtol=1e-8, atol=1e-8)
        assert torch.allclose(again, ours, rtol=1e-8, atol=1e-8)
