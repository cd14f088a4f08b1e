"""Our choices for single streams, made on their validation splits; published settings are in the methods' own files."""

from __future__ import annotations

from itl.method_catalog import Defaults, StreamDefaults

SMALL_NET = {"net.name": "resnet8", "net.width": 16}

# Defaults of a stream for every method. A method's own settings for the stream take precedence.
STREAM_DEFAULTS: dict[str, Defaults] = {
    # A run takes about a minute on two CPU cores (docs/digits.md).
    "seq-digits": {**SMALL_NET, "specialist.epochs": 15, "tangent.epochs": 60, "projection.epochs": 60},
    # The best settings of the generalist that were tried so far (docs/reproduction.md).
    "seq-cifar10": {
        "tangent.lr": 0.05,
        "tangent.momentum": 0.0,
        "tangent.epochs": 60,
        "projection.lr": 0.1,
        "projection.schedule": "warm",
    },
    "seq-mnist": SMALL_NET,
    "seq-fmnist": SMALL_NET,
}

# Settings of baselines on streams that they were not published for (docs/methods.md).
CHOSEN_BY_US: dict[str, StreamDefaults] = {
    "cls-er": {
        ("seq-digits", None): {
            "specialist.lr": 0.1,
            "specialist.options.reg": 0.15,
            "specialist.options.stable_rate": 0.5,
            "specialist.options.plastic_rate": 0.9,
            "specialist.options.stable_alpha": 0.97,
            "specialist.options.plastic_alpha": 0.97,
        }
    },
    "co2l": {
        ("seq-digits", None): {
            "specialist.epochs": 30,
            "specialist.batch": 32,
            "specialist.lr": 0.01,
            "specialist.options.first_epochs": None,
            "specialist.options.probe_epochs": 15,
            "specialist.options.probe_batch": 64,
            "specialist.options.probe_lr": 0.3,
        }
    },
    "er-ace": {("seq-digits", None): {"specialist.lr": 0.1}},
    "gdumb": {("seq-digits", None): {"specialist.epochs": 256}},
    # With 15 epochs, the two epochs without replay that the authors use would be too large a share.
    "metasp": {("seq-digits", None): {"specialist.lr": 0.03, "specialist.options.plain": 0.0}},
}
