"""A small network that counts as pre-trained, for tests of frozen trunks: fast to convert and to compute."""

from __future__ import annotations

import pytest

from itl import nets
from itl.nets import registry


def _build(classes: int, channels: int, width: int | None, strided: bool) -> nets.Net:
    return nets.build("resnet8", classes, channels=channels, width=8)


def register_small_backbone(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Register "small", a resnet8 of width 8 for images of `size` x `size` pixels, until the test ends."""
    monkeypatch.setattr(registry, "REGISTERED", {})
    preprocessing = nets.Preprocessing((0.5,) * 3, (0.25,) * 3, size)
    nets.register(
        nets.Backbone(
            "small", "8 layers", _build, preprocessing=preprocessing, load_weights=lambda net: None,
            weights_sha256="0" * 64, weights_installed=lambda: True,
        )
    )  # fmt: skip
