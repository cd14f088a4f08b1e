"""A frozen network with folded norms equals the network in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from itl import nets
from itl.generalists.tangent_model import TangentModel
from itl.nets import folded_trunk
from support.tiny import count_calls

LAST = torch.channels_last


def seen(name: str, device: torch.device, strided: bool = False) -> nets.ResNet:
    """A network whose norms have non-trivial statistics and affine parameters."""
    generator = torch.Generator().manual_seed(0)
    net = nets.build(name, 5, width=8, strided=strided, generator=generator)
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
        for buffer, t in net.named_buffers():
            drawn = torch.randn(t.shape, generator=generator)
            if buffer.endswith("running_mean"):
                t.copy_(0.1 * drawn)
            elif buffer.endswith("running_var"):
                t.copy_((0.2 * drawn).exp())
    return net.to(device).to(memory_format=LAST).eval()  # type: ignore[call-overload, no-any-return]


def images(strided: bool, device: torch.device) -> Tensor:
    side = 32 if strided else 8
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    return x.to(device).contiguous(memory_format=LAST)


def away(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


FAMILY = [
    ("resnet8", False),
    ("resnet18", False),
    pytest.param("resnet50", False, marks=pytest.mark.slow),
    ("resnet10", True),
]


@pytest.mark.parametrize("way", ["kernel", "plain", "cudnn"])
@pytest.mark.parametrize(("name", "strided"), FAMILY)
def test_frozen_network_equals_evaluation_mode(
    name: str, strided: bool, way: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the Triton kernel, without it, and with cuDNN; bf16 is as accurate as layer by layer."""
    if way == "cudnn" and device.type != "cuda":
        pytest.skip("cuDNN is on CUDA devices alone")
    net, x = seen(name, device, strided), images(strided, device)
    trunk = net.split(1)[0]
    with torch.no_grad():
        expected = trunk(x)
        with torch.autocast(device.type, torch.bfloat16):
            usual = away(trunk(x), expected)
    monkeypatch.setattr(folded_trunk, "USE_CUDNN_FUSION", way == "cudnn")
    if way == "plain":
        monkeypatch.setattr(folded_trunk, "fused_kernels_for", lambda *_: None)
    taken = count_calls(folded_trunk, "apply_norm", monkeypatch)
    assert folded_trunk.supports(trunk)
    assert away(folded_trunk.FoldedTrunk(trunk, torch.float32)(x), expected) < 1e-5
    before = len(taken)
    narrow = folded_trunk.FoldedTrunk(trunk, torch.bfloat16)(x)
    assert narrow.dtype == torch.bfloat16
    assert away(narrow, expected) < 1.5 * usual
    assert bool(before) is (way != "plain")  # cuDNN is for bf16 alone
    assert (len(taken) > before) is (way == "kernel")


def test_frozen_network_keeps_its_values(device: torch.device) -> None:
    net, x = seen("resnet8", device), images(False, device)
    still = folded_trunk.FoldedTrunk(net.split(1)[0], torch.float32)
    before = still(x)
    with torch.no_grad():
        for t in net.state_dict().values():
            t.mul_(2)
    assert torch.equal(still(x), before)


def test_tangent_model_uses_the_frozen_trunk(device: torch.device) -> None:
    net, x = seen("resnet18", device), images(False, device)
    model = TangentModel(net, 2)
    expected = model.features(x)
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        model.fold_trunk(dtype)
        assert model.folded is not None
        assert model.features(x).dtype == torch.float32  # what the head computes in
        assert away(model.features(x), expected) < most


def test_other_networks_are_not_frozen(device: torch.device) -> None:
    trunk = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    assert not folded_trunk.supports(trunk)
    assert not folded_trunk.supports(torch.nn.Sequential(nets.build("resnet8", 2, width=8).stem, trunk))


def test_images_are_unchanged_without_frozen_layers(device: torch.device) -> None:
    net, x = seen("resnet8", device), images(False, device)
    model = TangentModel(net, None)
    model.fold_trunk(torch.bfloat16)
    assert torch.equal(model.features(x), x)
