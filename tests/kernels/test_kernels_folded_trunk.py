"""A frozen trunk with folded norms equals the network in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from itl import nets
from itl.generalists.tangent_model import TangentModel
from itl.nets import folded_trunk
from support.tiny import count_calls

LAST = torch.channels_last


def trained_network(name: str, device: torch.device, strided: bool = False) -> nets.ResNet:
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
    side = 16 if strided else 8
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    return x.to(device).contiguous(memory_format=LAST)


def relative_error(found: Tensor, expected: Tensor) -> float:
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
        pytest.skip("cuDNN needs a CUDA device")
    net, x = trained_network(name, device, strided), images(strided, device)
    trunk = net.split(1)[0]
    with torch.no_grad():
        expected = trunk(x)
        with torch.autocast(device.type, torch.bfloat16):
            bf16_error = relative_error(trunk(x), expected)
    monkeypatch.setattr(folded_trunk, "USE_CUDNN_FUSION", way == "cudnn")
    if way == "plain":
        monkeypatch.setattr(folded_trunk, "fused_kernels_for", lambda *_: None)
    launches = count_calls(folded_trunk, "apply_norm", monkeypatch)
    assert folded_trunk.supports(trunk)
    assert relative_error(folded_trunk.FoldedTrunk(trunk, torch.float32)(x), expected) < 1e-5
    before = len(launches)
    bf16_output = folded_trunk.FoldedTrunk(trunk, torch.bfloat16)(x)
    assert bf16_output.dtype == torch.bfloat16
    # Folded weights are rounded once more; without the kernel, also between the convolution and the shift.
    assert relative_error(bf16_output, expected) < (1.5 if way == "kernel" else 2) * bf16_error
    assert bool(before) is (way != "plain")  # cuDNN is used for bf16 only
    assert (len(launches) > before) is (way == "kernel")


def test_folded_trunk_ignores_later_changes_of_the_network(device: torch.device) -> None:
    net, x = trained_network("resnet8", device), images(False, device)
    folded = folded_trunk.FoldedTrunk(net.split(1)[0], torch.float32)
    before = folded(x)
    with torch.no_grad():
        for t in net.state_dict().values():
            t.mul_(2)
    assert torch.equal(folded(x), before)


def test_tangent_model_uses_the_folded_trunk(device: torch.device) -> None:
    net, x = trained_network("resnet18", device), images(False, device)
    model = TangentModel(net, 2)
    expected = model.features(x)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        model.fold_trunk(dtype)
        assert model.folded is not None
        features = model.features(x)
        assert features.dtype == torch.float32  # what the head computes in
        assert relative_error(features, expected) < tolerance


def test_other_networks_are_not_folded(device: torch.device) -> None:
    trunk = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    assert not folded_trunk.supports(trunk)
    assert not folded_trunk.supports(torch.nn.Sequential(nets.build("resnet8", 2, width=8).stem, trunk))


def test_images_are_unchanged_without_frozen_layers(device: torch.device) -> None:
    net, x = trained_network("resnet8", device), images(False, device)
    model = TangentModel(net, None)
    model.fold_trunk(torch.bfloat16)
    assert torch.equal(model.features(x), x)
