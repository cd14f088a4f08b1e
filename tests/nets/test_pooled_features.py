"""Features of several layers of a frozen network against layer-by-layer computations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from itl import nets
from itl.errors import UserError
from itl.nets.multi_layer_features import PooledFeatures, pool

SHAPE = (3, 32, 32)


def build(name: str) -> nets.Net:
    return nets.build(name, 5, channels=3, generator=torch.Generator().manual_seed(0)).eval()


@torch.no_grad()
def test_features_are_the_standardized_means_of_the_last_blocks_of_efficientnet_lite():
    net, x = build("efficientnet-lite0"), torch.randn(3, *SHAPE)
    out, expected = x, []
    for name in net.layers[:-2]:
        for block in getattr(net, name) if name.startswith("stage") else [getattr(net, name)]:
            out = block(out)
            expected.append(out.flatten(2).mean(2))
    expected.append(net.features(x))
    expected = torch.cat([F.layer_norm(part, part.shape[1:]) for part in expected[-9:]], 1)
    count = nets.find("efficientnet-lite0").feature_layers
    trunk, head = nets.split_frozen(net, 1, SHAPE, count, torch.Generator().manual_seed(0))
    torch.testing.assert_close(trunk(x), expected, rtol=1e-4, atol=1e-4)
    assert head.classifier.weight.shape == (5, 3 * 112 + 4 * 192 + 320 + 1280)


@torch.no_grad()
def test_modules_have_the_same_features_as_our_networks():
    net, x = build("resnet8"), torch.randn(2, *SHAPE)
    ours, _ = nets.split_frozen(build("resnet8"), 1, SHAPE, 3)
    module, _ = nets.split_frozen(nets.ModuleAdapter(net), 1, SHAPE, 3)
    torch.testing.assert_close(module(x), ours(x))
    assert ours(x).shape[1] > net.features(x).shape[1]


@torch.no_grad()
def test_one_layer_leaves_features_and_classifier_as_they_are():
    net, x = build("resnet8"), torch.randn(2, *SHAPE)
    logits = net(x)
    trunk, head = nets.split_frozen(net, 1, SHAPE)
    torch.testing.assert_close(head(trunk(x)), logits)


def test_known_width_spares_the_forward_pass():
    def never(*_: object) -> None:
        raise AssertionError("the trunk was run")

    net = build("resnet8")
    net.register_forward_pre_hook(never)
    for module in net.children():
        module.register_forward_pre_hook(never)
    expected = nets.split_frozen(build("resnet8"), 1, SHAPE, 3)[1].classifier.weight.shape
    assert nets.split_frozen(net, 1, SHAPE, 3, width=expected[1])[1].classifier.weight.shape == expected


def test_outputs_are_averaged_over_positions_in_every_layout():
    x = torch.randn(2, 6, 4, 4)
    torch.testing.assert_close(pool(x), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.permute(0, 2, 3, 1)), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.flatten(2).transpose(1, 2)), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.mean((2, 3))), x.mean((2, 3)))


def test_hooks_are_removed_even_if_the_network_fails():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    features = PooledFeatures(network, ["0"])
    with pytest.raises(RuntimeError):
        features(torch.zeros(2, 3))
    assert not network[0]._forward_hooks


def test_more_layers_than_the_network_has_are_refused():
    with pytest.raises(UserError, match=r"has 4 layers before the classifier; set net\.feature_layers"):
        nets.split_frozen(build("resnet8"), 1, SHAPE, 5)
