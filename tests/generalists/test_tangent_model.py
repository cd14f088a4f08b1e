"""Tests of the tangent model g(w; x) = p(x) + J(x) w against its definition, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from itl import nets
from itl.generalists import TangentModel
from itl.nets import ResNet
from support.tiny import tiny_net

LAYERS = [1, 2, None]
Vector = dict[str, Tensor]


@pytest.fixture
def net() -> ResNet:
    return tiny_net(dtype=torch.float64)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def random_w(model: TangentModel, seed: int = 0, scale: float = 1.0) -> Vector:
    rng = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn(t.shape, dtype=t.dtype, generator=rng) for n, t in model.zero().items()}


def combine(a: float, u: Vector, b: float, v: Vector) -> Vector:
    return {name: a * u[name] + b * v[name] for name in u}


def moved(net: ResNet, w: Vector, by: float, x: Tensor) -> Tensor:
    """p(θ + by·w; x), where w has entries for some of the weights θ."""
    params = {name: p + by * w[name] if name in w else p for name, p in net.named_parameters()}
    return functional_call(net, params, (x,))


@pytest.mark.parametrize("layers", LAYERS)
def test_tangent_model_at_zero_is_the_network_in_evaluation_mode(net: ResNet, x: Tensor, layers: int | None) -> None:
    net.train()  # the mode of the given network must not matter
    model = TangentModel(net, layers)
    with torch.no_grad():
        torch.testing.assert_close(model(model.zero(), x), copy.deepcopy(net).eval()(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("layers", LAYERS)
def test_tangent_model_has_parameters_of_the_last_layers_only(net: ResNet, layers: int | None) -> None:
    last = net.layers if layers is None else net.layers[-layers:]
    expected = {name for name, _ in net.named_parameters() if name.partition(".")[0] in last}
    assert set(TangentModel(net, layers).zero()) == expected


@pytest.mark.parametrize("layers", LAYERS)
def test_jvp_agrees_with_central_finite_differences(net: ResNet, x: Tensor, layers: int | None) -> None:
    model = TangentModel(net, layers)
    w, step = random_w(model), 1e-6
    with torch.no_grad():
        derivative = model(w, x) - model(model.zero(), x)
        differences = (moved(net, w, step, x) - moved(net, w, -step, x)) / (2 * step)
    assert derivative.abs().max() > 0.1
    torch.testing.assert_close(derivative, differences, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", LAYERS)
def test_jvp_agrees_with_double_backward(net: ResNet, x: Tensor, layers: int | None) -> None:
    """J w is the derivative of <Jᵀu, w> with respect to u, which two backward passes compute."""
    model = TangentModel(net, layers)
    w = random_w(model)
    params = dict(net.named_parameters())
    logits = functional_call(net, params, (x,))
    u = torch.zeros_like(logits, requires_grad=True)
    pulled = torch.autograd.grad(logits, [params[n] for n in w], u, create_graph=True)
    inner = sum((g * w[n]).sum() for n, g in zip(w, pulled, strict=True))
    (derivative,) = torch.autograd.grad(inner, u)
    with torch.no_grad():
        torch.testing.assert_close(model(w, x) - model(model.zero(), x), derivative, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("layers", LAYERS)
def test_tangent_model_is_linear_in_w(net: ResNet, x: Tensor, layers: int | None) -> None:
    model = TangentModel(net, layers)
    u, v = random_w(model, 1), random_w(model, 2)
    with torch.no_grad():
        at_zero = model(model.zero(), x)
        whole = model(combine(2.5, u, -0.7, v), x) - at_zero
        parts = 2.5 * (model(u, x) - at_zero) - 0.7 * (model(v, x) - at_zero)
    torch.testing.assert_close(whole, parts, rtol=1e-10, atol=1e-10)


def midpoint_gaps(loss, points: list[tuple[Vector, Vector]]) -> list[float]:  # type: ignore[no-untyped-def]
    """Chord minus loss at the midpoint of each segment; negative values mean that the loss is not convex."""
    return [float((loss(u) + loss(v)) / 2 - loss(combine(0.5, u, 0.5, v))) for u, v in points]


@pytest.mark.parametrize("layers", LAYERS)
def test_tangent_loss_is_convex_in_w_and_the_networks_loss_is_not(net: ResNet, x: Tensor, layers: int | None) -> None:
    model, y = TangentModel(net, layers), torch.arange(6) % 3
    stored = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    segments = [
        (random_w(model, 2 * k, scale), random_w(model, 2 * k + 1, scale)) for k in range(10) for scale in (0.1, 1)
    ]

    def value(logits: Tensor, w: Vector) -> Tensor:
        l2 = sum((t**2).sum() for t in w.values())
        return F.cross_entropy(logits, y) + F.mse_loss(logits, stored) + 1e-5 * l2

    with torch.no_grad():
        tangent = midpoint_gaps(lambda w: value(model(w, x), w), segments)
        nonlinear = midpoint_gaps(lambda w: value(moved(net, w, 1.0, x), w), segments)
    assert min(tangent) > 0
    if layers != 1:  # the classifier is linear, so its loss is convex
        assert min(nonlinear) < -1e-3
    else:
        assert min(nonlinear) > 0


@pytest.mark.parametrize("layers", LAYERS)
def test_gradient_in_w_agrees_with_finite_differences(net: ResNet, x: Tensor, layers: int | None) -> None:
    model, y = TangentModel(net, layers), torch.arange(6) % 3
    w = {name: t.requires_grad_() for name, t in random_w(model, 1, 0.3).items()}
    grads = torch.autograd.grad(F.cross_entropy(model.logits(w, model.features(x)), y), list(w.values()))
    with torch.no_grad():
        for seed in range(3):
            v, step = random_w(model, 10 + seed), 1e-5
            ahead, behind = (F.cross_entropy(model(combine(1, w, s, v), x), y) for s in (step, -step))
            slope = sum((g * v[n]).sum() for n, g in zip(w, grads, strict=True))
            torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", [name for name in nets.names() if name.startswith("resnet")])
def test_jvp_rules_agree_with_forward_mode(name: str, strided: bool, layers: int | None) -> None:
    """For every ResNet: logits and gradient with respect to w, with and without precomputed convolutions."""
    net = nets.build(name, 3, channels=1, width=2, strided=strided).train()
    size = 32 if strided else 8
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(8, 1, size, size))
        for p in net.parameters():
            p += 0.1 * torch.randn_like(p)  # so that no bias is 0 and no scale is 1
    net = net.double()
    x, y = torch.randn(4, 1, size, size, dtype=torch.float64), torch.arange(4) % 3
    results = []
    for use_rules, precompute in ((False, False), (True, False), (True, True)):
        model = TangentModel(net, layers)
        assert model.has_jvp_rules
        model.has_jvp_rules = use_rules
        w = {key: t.requires_grad_() for key, t in random_w(model, 1, 0.3).items()}
        features = model.features(x)
        logits = model.logits(w, features, model.conv_outputs(features) if precompute else None)
        results.append([logits.detach(), *torch.autograd.grad(F.cross_entropy(logits, y), list(w.values()))])
    for expected, *others in zip(*results, strict=True):
        for actual in others:
            torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


def test_network_without_jvp_rules_is_linearized_by_forward_mode(x: Tensor) -> None:
    """With a layer that has no rule, the tangent model is still p + J w."""
    net = tiny_net(dtype=torch.float64)
    net.layer3.append(torch.nn.Tanh())
    model = TangentModel(net, 2)
    assert not model.has_jvp_rules
    w, step = random_w(model), 1e-6
    with torch.no_grad():
        derivative = model(w, x) - net(x)
        differences = (moved(net, w, step, x) - moved(net, w, -step, x)) / (2 * step)
    torch.testing.assert_close(derivative, differences, rtol=1e-5, atol=1e-6)


def test_tangent_model_changes_neither_weights_nor_batch_norm(net: ResNet, x: Tensor) -> None:
    net.train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    model = TangentModel(net, None)
    w = {name: t.requires_grad_() for name, t in random_w(model).items()}
    model.logits(w, model.features(x)).sum().backward()
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
