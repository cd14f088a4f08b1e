"""Per-sample gradients: Gram matrix and directional derivatives, compared with one backward pass per sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl import nets
from itl.gradients import layer_recorder
from itl.gradients.grad_sample import factored_gram, gradient_gram, per_sample_gradients
from itl.gradients.layer_recorder import recordable_weights
from itl.gradients.virtual_update import detached_weights
from itl.specialists.gss import cosine_scores
from support.tiny import tiny_net


def images(count: int, channels: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(count, channels, side, side, generator=draw, dtype=torch.float64), torch.arange(count) % 3


def explicit_gradients(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of each sample w.r.t. all weights, one backward pass per sample: `[n, weights]`."""
    frozen = [p for p in net.parameters() if not p.requires_grad]
    for p in frozen:
        p.requires_grad_()
    rows = []
    for k in range(len(x)):
        loss = F.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
        grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in grads]))
    for p in frozen:
        p.requires_grad_(False)
    return torch.stack(rows)


class Odd(nn.Module):
    """A network that uses layers in unusual ways."""

    def __init__(self, aside: bool) -> None:
        super().__init__()
        self.aside = aside
        self.first = nn.Conv2d(3, 6, (3, 2), (2, 1), (2, 1), (1, 2))
        self.norm = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.twice = nn.Conv2d(6, 6, 3, padding="same", padding_mode="reflect")
        self.same = nn.Conv2d(6, 6, 3, padding="same")
        self.mirrored = nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect", bias=False)
        self.read = nn.Conv2d(4, 4, 1)  # its weight is also used directly
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 1.5]))
        self.hidden = nn.Linear(4, 5)
        self.flat = nn.BatchNorm1d(5)
        self.unread = nn.Linear(5, 5)
        self.tokens = nn.Linear(1, 2)  # input with three axes
        self.out = nn.Linear(10, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(F.relu(self.first(x), inplace=True)), inplace=True)
        x = self.same(self.depthwise(x) + x)
        x = self.twice(torch.tanh(self.twice(x)))
        x = self.read(F.relu(self.mirrored(x))) * self.scale[:, None, None] + self.read.weight.mean()
        x = self.flat(self.hidden(x.mean((2, 3))))
        aside: Tensor | float = 0.5
        if self.aside:
            with torch.no_grad():
                aside = self.unread(x)
        x = torch.tanh(self.hidden.bias * x + aside)
        return F.linear(weight=self.out.weight, input=self.tokens(x[:, :, None]).flatten(1))


def odd(aside: bool = True) -> Odd:
    """The unusual network; `aside` adds a branch without gradients, which forward mode does not support."""
    torch.manual_seed(0)
    net = Odd(aside).double()
    with torch.no_grad():
        for layer in (net.norm, net.flat):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.weight.uniform_(-1, 2)
            layer.weight[1] = layer.weight[3] = 0
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
    net.first.requires_grad_(False)
    return net.eval()


class SelfAttention(nn.Module):
    """Self-attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.inward, self.out = nn.Conv2d(3, 4, 4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.inward(x).flatten(2).transpose(1, 2)
        return self.out(self.encoder(tokens).mean(1))  # type: ignore[no-any-return]


def half_silent(net: nn.Module) -> nn.Module:
    """Sets every other batch-norm weight to 0."""
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight[::2] = 0
    return net


def test_gram_and_cosines_equal_those_of_explicit_gradients() -> None:
    net, (x, y) = half_silent(tiny_net(classes=3, channels=3, dtype=torch.float64)), images(9)
    with torch.no_grad():
        ours = gradient_gram(net, x, y)
    slow = explicit_gradients(net, x, y)
    assert torch.allclose(ours, slow @ slow.T, rtol=1e-10, atol=1e-10)
    score, alone = cosine_scores(ours, 5)
    cosines = F.cosine_similarity(slow[5:, None], slow[None, :5], 2).amax(1)
    assert torch.allclose(alone, cosines + 1, rtol=0, atol=1e-10)
    assert score.item() == pytest.approx(float(F.cosine_similarity(slow[5:].mean(0), slow[:5]).max()) + 1, abs=1e-10)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50"])
def test_all_weights_of_built_in_networks_are_recordable(name: str, strided: bool) -> None:
    net = nets.build(name, 3, width=2, strided=strided, generator=torch.Generator().manual_seed(0)).double().eval()
    x, y = images(3, side=16)
    assert recordable_weights(net, x) == set(dict(net.named_parameters()))
    slow = explicit_gradients(net, x, y)
    assert torch.allclose(gradient_gram(net, x, y), slow @ slow.T, rtol=1e-10, atol=1e-10)


def test_gram_of_an_unusual_network_equals_that_of_explicit_gradients() -> None:
    net, (x, y) = nets.ModuleAdapter(odd(), "out").eval(), images(6)
    slow = explicit_gradients(net, x, y)
    assert torch.allclose(gradient_gram(net, x, y), slow @ slow.T, rtol=1e-10, atol=1e-10)
    layers = {name.split(".")[1] for name in recordable_weights(net, x)}
    assert layers == {"first", "norm", "mirrored", "flat", "out"}  # those used once, by a known layer
    assert all(p.grad is None for p in net.parameters())
    frozen = [name for name, p in net.named_parameters() if not p.requires_grad]
    assert frozen == ["module.first.weight", "module.first.bias"]


@pytest.mark.parametrize("kind", ["ours", "odd", "attends"])
def test_directional_derivatives_and_total_equal_those_of_explicit_gradients(kind: str) -> None:
    torch.manual_seed(0)
    net: nn.Module = half_silent(tiny_net(classes=3, channels=3, dtype=torch.float64))
    if kind != "ours":
        net = nets.ModuleAdapter(odd(aside=False) if kind == "odd" else SelfAttention().double(), "out").eval()
    x, y = images(6)
    gradients = per_sample_gradients(net, detached_weights(net), x, y)
    directions = [{name: torch.randn_like(p) for name, p in net.named_parameters()} for _ in range(3)]
    slow = explicit_gradients(net, x, y)
    flat = torch.stack([torch.cat([t.flatten() for t in direction.values()]) for direction in directions])
    assert torch.allclose(gradients.along(directions), flat @ slow.T, rtol=1e-10, atol=1e-10)
    whole = torch.cat([g.flatten() for g in gradients.total.values()])
    assert torch.allclose(whole, slow.sum(0), rtol=1e-10, atol=1e-10)
    assert not gradients.along(directions).requires_grad


def test_norm_with_batch_statistics_is_differentiated_sample_by_sample() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).double().eval()
    x, y = images(4)
    slow = explicit_gradients(net, x, y)
    assert torch.allclose(gradient_gram(net, x, y), slow @ slow.T, rtol=1e-10, atol=1e-10)
    assert not recordable_weights(net, x)


def test_layer_with_overwritten_input_is_not_recordable() -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 2
            y = self.conv(x)
            x.mul_(3)
            return self.out((torch.tanh(y) + x).mean((2, 3)))  # type: ignore[no-any-return]

    net, (x, _) = Overwrites().double().eval(), images(4)
    assert recordable_weights(net, x) == {"out.weight", "out.bias"}


def test_factored_gram_is_correct_for_both_orders_of_computation() -> None:
    draw = torch.Generator().manual_seed(0)
    for places, o, k in ((1, 6, 40), (3, 50, 60), (30, 3, 4)):
        g = torch.randn(5, o, places, generator=draw, dtype=torch.float64)
        a = torch.randn(5, places, k, generator=draw, dtype=torch.float64)
        each = torch.einsum("nol,nlk->nok", g, a).flatten(1)
        assert torch.allclose(factored_gram(g, a), each @ each.T, rtol=1e-10, atol=1e-10)


def test_recordable_weights_are_found_once_per_image_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    inspected_shapes: list[torch.Size] = []
    real = layer_recorder._find_recordable

    def find_recordable(net: nn.Module, x: Tensor) -> frozenset[str]:
        inspected_shapes.append(x.shape[1:])
        return real(net, x)

    monkeypatch.setattr(layer_recorder, "_find_recordable", find_recordable)
    net = tiny_net(classes=3, channels=3, dtype=torch.float64)
    for count, side in ((4, 8), (6, 8), (4, 12), (4, 8)):
        gradient_gram(net, *images(count, side=side))
    assert inspected_shapes == [(3, 8, 8), (3, 12, 12)]
