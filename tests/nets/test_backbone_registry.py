"""Backbones by name: built-in, registered in Python, and from plug-ins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from itl import UserError, nets
from itl.nets import registry


def linear_net(classes: int, channels: int, width: int | None, strided: bool) -> nets.ModuleAdapter:
    return nets.ModuleAdapter(nn.Sequential(nn.Flatten(), nn.Linear(channels * 64, classes)), "1")


def set_weights_to_one(net: nets.Net) -> None:
    nn.init.ones_(net.classifier.weight)


LINEAR = nets.Backbone(
    "linear",
    "one linear layer",
    linear_net,
    preprocessing=nets.Preprocessing((0.5,), (0.25,), 8),
    load_weights=set_weights_to_one,
)


@pytest.fixture
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REGISTERED", {})
    nets.register(LINEAR)


@pytest.mark.usefixtures("_linear")
def test_registered_backbone_is_listed_and_built() -> None:
    assert nets.names()[-1] == "linear"
    assert nets.describe()[-1] == {
        "name": "linear",
        "summary": "one linear layer",
        "reference": "",
        "preprocessing": {"mean": (0.5,), "std": (0.25,), "input_size": 8, "interpolation": "bilinear"},
        "pretrained": True,
    }
    net = nets.build("linear", 3, channels=1, generator=torch.Generator().manual_seed(0))
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.usefixtures("_linear")
def test_weights_depend_on_the_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, same, other = (
        nets.build("linear", 3, channels=1, generator=torch.Generator().manual_seed(seed)).classifier.weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.usefixtures("_linear")
def test_pretrained_weights_are_loaded_on_request() -> None:
    assert (nets.build("linear", 3, channels=1, pretrained=True).classifier.weight == 1).all()
    with pytest.raises(UserError, match="resnet8 has no pre-trained weights"):
        nets.build("resnet8", 3, pretrained=True)


def test_built_in_name_cannot_be_registered_again() -> None:
    with pytest.raises(UserError, match="already a backbone 'resnet8'"):
        nets.register(nets.Backbone("resnet8", "", linear_net))


def test_builder_that_returns_a_plain_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nets.Backbone("plain", "", lambda **_: nn.Flatten())  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(registry, "REGISTERED", {"plain": plain})
    with pytest.raises(UserError, match=r"builds a Flatten; wrap it in an itl\.nets\.ModuleAdapter"):
        nets.build("plain", 2)


def test_unknown_layers_are_initialized_from_the_generator() -> None:
    layers = [nn.Conv1d(2, 3, 3) for _ in range(3)]
    for layer, seed in zip(layers, (0, 0, 1), strict=True):
        nets.initialize(layer, torch.Generator().manual_seed(seed))
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert not torch.equal(layers[0].weight, layers[2].weight)
