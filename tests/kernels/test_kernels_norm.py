"""Fused norms, forward and backward, and their JVPs against PyTorch and forward-mode differentiation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from itl import nets
from itl.generalists.tangent_model import Linearization, TangentModel
from itl.nets import jvp_rules, norm, pooled_classifier
from support.tiny import count_calls

LAST = torch.channels_last
BIG = [(1, 64, 64, 32, True), (3, 128, 96, 16, True), (2, 256, 64, 8, True), (1, 512, 16, 4, False)]
SMALL = [(2, 16, 4, 7, True), (1, 8, 3, 5, False), (3, 32, 9, 4, True), (1, 64, 2, 3, False)]
NORMS = [
    (*shape, layers, whole)
    for number, shape in enumerate([*(BIG if torch.cuda.is_available() else []), *SMALL])
    for layer, layers in enumerate(("once", "again", "twice"))
    for whole in (True, False)
    if torch.cuda.is_available() or whole == (number + layer) % 2  # in the interpreter: each pair with two shapes
]


def random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=LAST)


@pytest.mark.parametrize(("groups", "channels", "batch", "side", "residual", "layers", "whole"), NORMS)
def test_fused_norm_equals_pytorch(
    groups: int,
    channels: int,
    batch: int,
    side: int,
    residual: bool,
    layers: str,
    whole: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers one or two consumers of the output, and one or two kernels in each direction."""
    if not whole:
        monkeypatch.setattr(norm, "SINGLE_PASS_MAX_ROWS", 0)
    shape = (batch, channels, side, side)
    x, r, g = (random(shape, device) for _ in range(3))
    outputs = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(norm, "fusable", lambda x, bn: False)
        bn = nn.BatchNorm2d(channels).to(device)
        with torch.no_grad():
            bn.weight.uniform_(0.5, 1.5, generator=torch.Generator(device).manual_seed(1))
        bn.groups = groups  # type: ignore[assignment]
        a, b = x.clone().requires_grad_(), r.clone().requires_grad_()
        y, again = norm.fork(norm.norm(bn, a, b if residual else None))
        assert (again is y) is not fused
        used = {"once": [y], "again": [again], "twice": [y, again]}[layers]
        grads = torch.autograd.grad(used, [a, bn.weight, bn.bias, *([b] if residual else [])], [g, g + 1][: len(used)])
        outputs.append([y.detach(), *grads, bn.running_mean, bn.running_var])
    for mine, theirs in zip(*outputs, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("residual", [False, True])
def test_norm_with_running_statistics_equals_pytorch(
    residual: bool, dtype: torch.dtype, within: float, device: torch.device
) -> None:
    x, r = (random((9, 64, 7, 7), device, dtype) for _ in range(2))
    bn = nn.BatchNorm2d(64).to(device)
    with torch.no_grad():
        for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var):
            assert t is not None
            t.uniform_(0.5, 1.5)
    bn.eval()
    with torch.no_grad():
        ours = norm.norm(bn, x, r if residual else None)
    theirs = norm.norm(bn, x, r if residual else None).detach()  # with a gradient: not fused
    assert ours.dtype == dtype
    assert (ours.float() - theirs.float()).norm() <= within * theirs.float().norm()


def tangent_model(device: torch.device) -> tuple[TangentModel, Tensor]:
    """A tangent model over the last two layers of a small channels-last network, and images."""
    width = 16 if device.type == "cuda" else 4  # the last layer has 8 x 4 channels, the minimum of the kernels
    net = nets.build("resnet18", 10, width=width, generator=torch.Generator().manual_seed(0)).to(device)
    net.to(memory_format=LAST)  # type: ignore[call-overload]
    x = random((8, 3, 32, 32) if device.type == "cuda" else (4, 3, 16, 16), device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norm, "fusable", lambda x, bn: False)
        net(x)
        return TangentModel(net, 2), x


def logits_and_gradient(
    model: TangentModel, w: dict[str, Tensor], features: Tensor, ahead: bool = False
) -> list[Tensor]:
    """Logits, and the gradient of their square with respect to w."""
    leaves = {name: t.clone().requires_grad_() for name, t in w.items()}
    logits = model.logits(leaves, features, model.conv_outputs(features) if ahead else None)
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), list(leaves.values()))]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("ahead", [False, True])
def test_fused_derivative_equals_forward_mode(
    ahead: bool, whole: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without precomputed values; the norm's backward pass in one or two kernels."""
    if not whole:
        monkeypatch.setattr(norm, "SINGLE_PASS_MAX_ROWS", 0)
    model, x = tangent_model(device)
    w = {name: 0.01 * torch.randn_like(p) for name, p in model.params.items()}
    monkeypatch.setattr(norm, "fusable", lambda x, bn: False)
    features = model.features(x)
    launched, closed = (
        count_calls(function, "apply", monkeypatch)
        for function in (jvp_rules.NormJVP, pooled_classifier.PooledClassifierJVP)
    )
    ours = logits_and_gradient(model, w, features, ahead)
    assert len(launched) == 5
    assert len(closed) == 1
    model.has_jvp_rules = False
    for mine, theirs in zip(ours, logits_and_gradient(model, w, features), strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


def test_kept_activations_give_the_same_products(device: torch.device) -> None:
    model, x = tangent_model(device)
    w = {name: 0.01 * torch.randn_like(p) for name, p in model.params.items()}
    kept, recomputed = (Linearization(model, model.features(x)) for _ in range(2))
    kept.keeps_activations = True
    cotangent = torch.randn_like(kept.jvp(w))
    for part in (kept, kept, recomputed):
        torch.testing.assert_close(part.jvp(w), recomputed.jvp(w), rtol=1e-4, atol=1e-6)
        gradients = part.vjp(cotangent)
        inner = sum(float((gradients[name] * w[name]).sum()) for name in w)
        assert inner == pytest.approx(float((part.jvp(w) * cotangent).sum()), rel=1e-3)


@pytest.mark.parametrize(
    ("images", "channels", "height", "width", "classes"), [(3, 32, 4, 4, 10), (33, 32, 3, 2, 130), (2, 64, 12, 9, 5)]
)
def test_fused_head_equals_pooling_and_classifier(
    images: int, channels: int, height: int, width: int, classes: int, device: torch.device
) -> None:
    y, dy, g = (random((images, channels, height, width), device) for _ in range(3))
    linear = nn.Linear(channels, classes).to(device)
    w, b = torch.randn(classes, channels, device=device), torch.randn(classes, device=device)
    leaves = [t.clone().requires_grad_() for t in (dy, w, b)]
    value, along = pooled_classifier.PooledClassifierJVP.apply(y, *leaves, linear)
    (u, du), slope = (t.mean((2, 3)) for t in (y, leaves[0])), g[:, 0, 0, :1].expand_as(along) + along.detach()
    expected = [linear(u), du @ linear.weight.T + u @ leaves[1].T + leaves[2]]
    gradients = [torch.autograd.grad(out, leaves, slope, retain_graph=True) for out in (along, expected[1])]
    for mine, theirs in zip([value, along, *gradients[0]], [*expected, *gradients[1]], strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_derivatives_on_a_side_stream_are_equal(device: torch.device) -> None:
    """Repeated with a delayed stream, so that a race would show."""
    model, x = tangent_model(device)
    side = torch.cuda.Stream()
    for _ in range(50):
        w = {name: 0.01 * torch.randn_like(p) for name, p in model.params.items()}
        features = model.features(torch.randn_like(x))
        model.side_stream = torch.cuda.current_stream()
        expected = logits_and_gradient(model, w, features, ahead=True)
        model.side_stream = side
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
        for mine, theirs in zip(logits_and_gradient(model, w, features, ahead=True), expected, strict=True):
            assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
