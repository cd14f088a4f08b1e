"""Initial weights from safetensors files of this package and of other libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import safetensors
import torch
from packaging.version import Version
from safetensors.torch import save_file

from itl import UserError, nets
from itl.nets.weights import load_backbone_weights


def net(width: int = 4, classes: int = 3, seed: int = 0, name: str = "resnet18") -> nets.ResNet:
    return nets.build(name, classes, width=width, strided=True, generator=torch.Generator().manual_seed(seed))


def as_torchvision(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with the layer names of torchvision's ResNets."""
    out = {}
    for name, tensor in state.items():
        name = re.sub(r"^stem\.conv", "conv1", re.sub(r"^stem\.bn", "bn1", name))
        name = name.replace("shortcut.conv", "downsample.0").replace("shortcut.bn", "downsample.1")
        out[name.replace("classifier", "fc")] = tensor.clone()
    return out


@pytest.mark.parametrize("style", ["ours", "saved", "elsewhere"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_everything_but_the_classifier_is_loaded(tmp_path: Path, style: str, name: str) -> None:
    source, target = net(classes=1000, seed=1, name=name), net(name=name)
    state = source.state_dict()
    state = as_torchvision(state) if style == "elsewhere" else state
    prefix = "net." if style == "saved" else ""
    save_file({prefix + n: t.contiguous() for n, t in state.items()}, tmp_path / "w.safetensors")
    classifier = target.classifier.weight.clone()
    taken = load_backbone_weights(target, tmp_path / "w.safetensors")
    assert taken == sum(not n.startswith("classifier") and "tracked" not in n for n in target.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(source.eval().features(x), target.eval().features(x))
    assert torch.equal(target.classifier.weight, classifier)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_weights_of_another_precision_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    target = net()
    state = net(seed=1).state_dict() | {"stem.bn.weight": torch.full((4,), 0.5)}
    save_file({n: t.to(dtype) for n, t in state.items()}, tmp_path / "w.safetensors")
    load_backbone_weights(target, tmp_path / "w.safetensors")
    assert torch.equal(target.state_dict()["stem.bn.weight"], torch.full((4,), 0.5))


def test_names_are_those_of_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.resnet18(weights=None).state_dict()
    assert set(theirs) == set(as_torchvision(net(64).state_dict()))


def test_weights_of_another_network_are_refused_without_changes(tmp_path: Path) -> None:
    target = net()
    before = {n: t.clone() for n, t in target.state_dict().items()}

    def refuse(line: str, **tensors: torch.Tensor) -> None:
        save_file({n.replace("__", "."): t.contiguous() for n, t in tensors.items()}, tmp_path / "w.safetensors")
        with pytest.raises(UserError, match=line):
            load_backbone_weights(target, tmp_path / "w.safetensors")

    whole = {n.replace(".", "__"): t for n, t in net(seed=1).state_dict().items()}
    refuse(
        r"has no layer\d.* tensors are missing\); set net.name, net.width and net.strided",
        **{"conv1__weight": torch.zeros(1)} | {n: t for n, t in whole.items() if "layer2" not in n},
    )
    refuse(
        r"has stem.conv.weight of shape \[8, 3, 7, 7\], the network \[4, 3, 7, 7\]",
        **{n.replace(".", "__"): t for n, t in net(8).state_dict().items()},
    )
    refuse("non-finite", **whole | {"stem__bn__weight": torch.full((4,), float("nan"))})
    refuse("non-finite", **whole | {"stem__bn__weight": torch.full((4,), 1e300, dtype=torch.float64)})  # in float32
    writes_complex = Version(safetensors.__version__) >= Version("0.7")
    complex_types = (torch.complex64,) if writes_complex else ()
    for dtype in (torch.int8, torch.bool, *complex_types):
        refuse("stem.bn.weight of type", **whole | {"stem__bn__weight": torch.ones(4, dtype=dtype)})
    (tmp_path / "w.safetensors").write_bytes(b"pickle?")
    with pytest.raises(UserError, match="it is not a safetensors file"):
        load_backbone_weights(target, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="No such file"):
        load_backbone_weights(target, tmp_path / "none.safetensors")
    assert all(torch.equal(before[n], t) for n, t in target.state_dict().items())
