"""The ResNet family and the interface of `Net`."""

from __future__ import annotations

import pytest
import torch

from itl import UserError, nets
from support.tiny import tiny_net


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_173_962), (200, 11_271_432)])
def test_resnet18_has_the_number_of_parameters_of_the_benchmark(classes: int, parameters: int) -> None:
    net = nets.build("resnet18", classes)
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_resnet18_has_the_layers_of_the_benchmark() -> None:
    net = nets.build("resnet18", 10)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    convs = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    assert shapes["stem.conv.weight"] == (64, 3, 3, 3)
    assert net.stem.conv.stride == (1, 1)
    assert all(conv.bias is None for conv in convs)
    assert len(convs) == 1 + 16 + 3  # the stem, two per block, and a shortcut wherever the width doubles
    assert not any(isinstance(m, torch.nn.MaxPool2d) for m in net.modules())
    assert shapes["classifier.weight"] == (10, 512)
    # Strides 1, 2, 2, 2: a 32x32 image is 4x4 when it reaches the pooling.
    x = net.stem(torch.zeros(1, 3, 32, 32))
    sizes = [x.shape[-1]]
    for name in ("layer1", "layer2", "layer3"):
        x = getattr(net, name)(x)
        sizes.append(x.shape[-1])
    x = net.layer4[:-1](x)
    assert [*sizes, x.shape[-1]] == [32, 32, 16, 8, 4]


INPUTS = [(3, 8, False), (1, 8, False), (3, 33, True), (1, 32, True)]  # channels, size, strided
# These differ from efficientnet-lite0 in the numbers of blocks and channels only, and take most of a second to build.
LARGE = {"efficientnet-lite1", "efficientnet-lite2"}


@pytest.mark.parametrize(
    ("name", "channels", "size", "strided"),
    [(name, *given) for name in nets.names() for given in (INPUTS[-1:] if name in LARGE else INPUTS)],
)
def test_every_backbone_accepts_color_and_gray_small_and_large_images(
    name: str, channels: int, size: int, strided: bool
) -> None:
    net = nets.build(name, 7, channels=channels, width=4, strided=strided).eval()
    x = torch.randn(2, channels, size, size)
    with torch.no_grad():
        assert net(x).shape == (2, 7)
        assert net.features(x).shape == (2, net.classifier.in_features)


def test_strided_stem_reduces_images_to_a_quarter() -> None:
    net = nets.build("resnet18", 2, width=4, strided=True)
    assert net.stem(torch.zeros(1, 3, 64, 64)).shape == (1, 4, 16, 16)


def test_depths_match_the_names() -> None:
    def weighted(name: str) -> int:
        """Layers with weights on the path through the blocks, the shortcuts not counted."""
        layers = nets.build(name, 2, width=1).named_modules()
        kinds = torch.nn.Conv2d | torch.nn.Linear
        return sum(isinstance(m, kinds) and "shortcut" not in path for path, m in layers)

    assert {name: weighted(name) for name in nets.names() if name.startswith("resnet")} == {
        "resnet18": 18,
        "resnet34": 34,
        "resnet50": 50,
        "resnet10": 10,
        "resnet8": 8,
    }


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_generator_gives_pytorchs_default_initialization(name: str) -> None:
    torch.manual_seed(7)
    theirs = nets.build(name, 5, width=4)
    ours = nets.build(name, 5, width=4, generator=seeded(7))
    for (key, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, msg=key)


def test_generator_leaves_the_global_random_state_unchanged() -> None:
    twice = [nets.build("resnet8", 3, width=4, generator=seeded(1)).state_dict() for _ in range(2)]
    assert all(torch.equal(twice[0][k], twice[1][k]) for k in twice[0])
    other = nets.build("resnet8", 3, width=4, generator=seeded(2)).state_dict()
    assert not torch.equal(other["classifier.weight"], twice[0]["classifier.weight"])


def test_reinitialize_classifier_changes_the_classifier_only() -> None:
    net = tiny_net()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    net.reinitialize_classifier(seeded(5))
    changed = {name for name, t in net.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    bound = net.classifier.in_features**-0.5
    assert net.classifier.weight.abs().max() <= bound
    assert float(net.classifier.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.35)


@pytest.mark.parametrize("last", [1, 2, 3, 5, None])
def test_trunk_and_head_compose_to_the_network_and_share_its_parameters(last: int | None) -> None:
    net = tiny_net()
    trunk, head = net.split(last)
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(head(trunk(x)), net(x))
    mine = {id(p) for p in net.parameters()}
    parts = [id(p) for part in (trunk, head) for p in part.parameters()]
    assert set(parts) == mine
    assert len(parts) == len(mine)
    assert len(head) == (len(net.layers) if last is None else last)


def test_last_two_layers_of_resnet18_are_layer4_and_the_classifier() -> None:
    _, head = nets.build("resnet18", 2, width=4).split(2)
    assert [name for name, _ in head.named_children()] == ["layer4", "classifier"]


@pytest.mark.parametrize("last", [0, 6, -1])
def test_split_into_too_many_layers_is_refused(last: int) -> None:
    with pytest.raises(UserError, match=r"5 layers \(stem, layer1, layer2, layer3, classifier\)"):
        tiny_net().split(last)


def test_grow_classifier_keeps_the_old_outputs() -> None:
    net = tiny_net(classes=3)
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        before = net(x)
        net.grow_classifier(5, seeded())
        after = net(x)
    assert after.shape == (4, 5)
    torch.testing.assert_close(after[:, :3], before, rtol=1e-6, atol=1e-6)
    assert not torch.equal(net.classifier.weight[3], net.classifier.weight[4])


def test_grow_classifier_never_shrinks_it() -> None:
    net = tiny_net(classes=3)
    same = net.classifier
    net.grow_classifier(2, seeded())
    assert net.classifier is same


def test_unknown_backbone_suggests_similar_names() -> None:
    with pytest.raises(UserError, match=r"Unknown backbone 'resnet81'. Did you mean 'resnet8"):
        nets.build("resnet81", 2)


def test_single_value_per_channel_uses_the_running_statistics() -> None:
    """After four layers an 8x8 image is one pixel, so a batch of one image has no variance; this is not an error."""
    net = nets.build("resnet10", 3, channels=1, width=4).train()
    with torch.no_grad():
        for _ in range(5):
            net(torch.randn(8, 1, 8, 8))
        before = net.layer4[0].bn2.running_var.clone()
        logits = net(torch.randn(1, 1, 8, 8))
    assert bool(logits.isfinite().all())
    assert torch.equal(net.layer4[0].bn2.running_var, before)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_fixed_running_statistics_keep_every_buffer_of_a_torch_module(momentum: float | None) -> None:
    layer = torch.nn.BatchNorm2d(3, momentum=momentum)
    x = torch.randn(4, 3, 2, 2) + 5
    before = {name: tensor.clone() for name, tensor in layer.named_buffers()}
    with nets.fixed_running_statistics(layer):
        assert layer(x).mean().abs() < 1e-5  # normalized by the statistics of the batch
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.named_buffers())
    layer(x)
    assert not torch.equal(layer.running_mean, torch.zeros(3))
