"""The ResNet family: the benchmark's own ResNet-18, its relatives, and the surface they share."""

from __future__ import annotations

import pytest
import torch

from itl import UserError, nets
from support.tiny import tiny_net


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_173_962), (200, 11_271_432)])
def test_resnet18_has_the_benchmarks_number_of_parameters(classes: int, parameters: int) -> None:
    net = nets.build("resnet18", classes)
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_resnet18_is_the_benchmarks_layer_by_layer() -> None:
    net = nets.build("resnet18", 10)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    convs = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    assert shapes["stem.conv.weight"] == (64, 3, 3, 3)
    assert net.stem.conv.stride == (1, 1)
    assert all(conv.bias is None for conv in convs)
    assert len(convs) == 1 + 16 + 3  # the stem, two a block, and three shortcuts where the width doubles
    assert not any(isinstance(m, torch.nn.MaxPool2d) for m in net.modules())
    assert shapes["classifier.weight"] == (10, 512)
    # Stride 1, then 2, 2, 2: a 32x32 image reaches the pooling as 4x4.
    x = net.stem(torch.zeros(1, 3, 32, 32))
    sizes = [x.shape[-1]]
    for name in ("layer1", "layer2", "layer3"):
        x = getattr(net, name)(x)
        sizes.append(x.shape[-1])
    x = net.layer4[:-1](x)
    assert [*sizes, x.shape[-1]] == [32, 32, 16, 8, 4]


@pytest.mark.parametrize("name", nets.names())
@pytest.mark.parametrize(("channels", "size", "strided"), [(3, 8, False), (1, 8, False), (3, 33, True), (1, 32, True)])
def test_every_member_takes_colour_and_grey_small_and_large(name: str, channels: int, size: int, strided: bool) -> None:
    net = nets.build(name, 7, channels=channels, width=4, strided=strided).eval()
    x = torch.randn(2, channels, size, size)
    with torch.no_grad():
        assert net(x).shape == (2, 7)
        assert net.features(x).shape == (2, net.classifier.in_features)


def test_the_strided_stem_reads_an_image_at_a_quarter_of_its_size() -> None:
    net = nets.build("resnet18", 2, width=4, strided=True)
    assert net.stem(torch.zeros(1, 3, 64, 64)).shape == (1, 4, 16, 16)


def test_depths_are_what_the_names_say() -> None:
    def weighted(name: str) -> int:
        """Layers with weights on the path through the blocks, the shortcuts not counted."""
        layers = nets.build(name, 2, width=1).named_modules()
        kinds = torch.nn.Conv2d | torch.nn.Linear
        return sum(isinstance(m, kinds) and "shortcut" not in path for path, m in layers)

    assert {name: weighted(name) for name in nets.names()} == {
        "resnet18": 18,
        "resnet34": 34,
        "resnet50": 50,
        "resnet10": 10,
        "resnet8": 8,
    }


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_a_generator_gives_pytorchs_own_default_initialisation(name: str) -> None:
    torch.manual_seed(7)
    theirs = nets.build(name, 5, width=4)
    ours = nets.build(name, 5, width=4, generator=seeded(7))
    for (key, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, msg=key)


def test_a_generator_leaves_the_process_random_state_to_others() -> None:
    twice = [nets.build("resnet8", 3, width=4, generator=seeded(1)).state_dict() for _ in range(2)]
    assert all(torch.equal(twice[0][k], twice[1][k]) for k in twice[0])
    other = nets.build("resnet8", 3, width=4, generator=seeded(2)).state_dict()
    assert not torch.equal(other["classifier.weight"], twice[0]["classifier.weight"])


def test_redrawing_changes_the_classifier_and_nothing_else() -> None:
    net = tiny_net()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    net.reinitialize_classifier(seeded(5))
    changed = {name for name, t in net.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}
    bound = net.classifier.in_features**-0.5
    assert net.classifier.weight.abs().max() <= bound
    assert float(net.classifier.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.35)


@pytest.mark.parametrize("last", [1, 2, 3, 5, None])
def test_head_after_trunk_is_the_network_with_the_same_parameters(last: int | None) -> None:
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


def test_the_last_two_layers_of_resnet18_are_layer4_and_the_classifier() -> None:
    _, head = nets.build("resnet18", 2, width=4).split(2)
    assert [name for name, _ in head.named_children()] == ["layer4", "classifier"]


@pytest.mark.parametrize("last", [0, 6, -1])
def test_a_split_the_network_does_not_have_is_refused(last: int) -> None:
    with pytest.raises(UserError, match=r"5 layers \(stem, layer1, layer2, layer3, classifier\)"):
        tiny_net().split(last)


def test_growing_keeps_what_the_old_outputs_say() -> None:
    net = tiny_net(classes=3)
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        before = net(x)
        net.grow_classifier(5, seeded())
        after = net(x)
    assert after.shape == (4, 5)
    torch.testing.assert_close(after[:, :3], before, rtol=1e-6, atol=1e-6)
    assert not torch.equal(net.classifier.weight[3], net.classifier.weight[4])


def test_a_classifier_never_shrinks() -> None:
    net = tiny_net(classes=3)
    same = net.classifier
    net.grow_classifier(2, seeded())
    assert net.classifier is same


def test_an_unknown_network_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown backbone 'resnet81'; did you mean resnet8"):
        nets.build("resnet81", 2)


def test_a_single_value_a_channel_is_normalised_by_the_running_statistics() -> None:
    """A last batch of one 8x8 image is one pixel at the end of four layers: no variance, and no error either."""
    net = nets.build("resnet10", 3, channels=1, width=4).train()
    with torch.no_grad():
        for _ in range(5):
            net(torch.randn(8, 1, 8, 8))
        before = net.layer4[0].bn2.running_var.clone()
        logits = net(torch.randn(1, 1, 8, 8))
    assert bool(logits.isfinite().all())
    assert torch.equal(net.layer4[0].bn2.running_var, before)
