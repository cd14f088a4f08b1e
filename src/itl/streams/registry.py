"""Streams by name: those of this package, and those of other packages by the entry point `itl.streams`.

A new dataset of this package is one module and one line here.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from importlib import import_module
from typing import Any

from itl import plugins
from itl.errors import UserError, unknown
from itl.streams.base import DatasetSource

ENTRY_POINT_GROUP = "itl.streams"  # its entry points are `DatasetSource` objects
BUILT_IN = {
    "seq-digits": "itl.streams.digits:SOURCE",
    "seq-cifar10": "itl.streams.cifar:CIFAR10",
    "seq-cifar100": "itl.streams.cifar:CIFAR100",
    "seq-tinyimagenet": "itl.streams.tinyimagenet:SOURCE",
    "seq-mnist": "itl.streams.mnist:MNIST",
    "seq-fmnist": "itl.streams.mnist:FASHION",
}


def names() -> list[str]:
    """Names of all streams, those of other packages last."""
    return [*BUILT_IN, *sorted(set(plugins.find_all(ENTRY_POINT_GROUP)) - set(BUILT_IN))]


def find(name: str) -> DatasetSource:
    """The dataset called `name`.

    Raises:
        UserError: There is no such dataset, or another package's entry point cannot be used.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, DatasetSource)
        return found
    added = plugins.find_all(ENTRY_POINT_GROUP)
    if name not in added:
        raise unknown("stream", str(name), names())
    source: DatasetSource = plugins.load("stream", added[name], DatasetSource)
    return source


def describe() -> list[dict[str, Any]]:
    """A dict per stream: name, classes, tasks, shape, train, test, files, mean, std, flip, padding, policy."""
    rows = []
    for name in names():
        try:
            source = find(name)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)  # a broken package must not hide the other streams
            continue
        facts = {key: getattr(source, key) for key in ("classes", "shape", "train", "test", "files")}
        rows.append({"name": name, **facts, **asdict(source.traits)})
    return rows
