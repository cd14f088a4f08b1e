"""Which datasets there are. A new one is a new file and one line here, or an entry point of another package."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from itl.errors import UserError, unknown
from itl.streams.base import DatasetSource

GROUP = "itl.streams"  # an entry point here names a `DatasetSource`
BUILT_IN = {
    "seq-digits": "itl.streams.digits:SOURCE",
    "seq-cifar10": "itl.streams.cifar:CIFAR10",
    "seq-cifar100": "itl.streams.cifar:CIFAR100",
    "seq-tinyimagenet": "itl.streams.tinyimagenet:SOURCE",
    "seq-mnist": "itl.streams.idx:MNIST",
    "seq-fmnist": "itl.streams.idx:FASHION",
}


def names() -> list[str]:
    """The names of all streams: those of this package, then those that other packages add."""
    return [*BUILT_IN, *sorted(set(_added()) - set(BUILT_IN))]


def find(name: str) -> DatasetSource:
    """The source called `name`."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, DatasetSource)
        return found
    added = _added()
    if name not in added:
        raise unknown("stream", str(name), names())
    try:
        found = added[name].load()
    except Exception as error:  # another package's code: anything may go wrong in it
        why = " ".join(str(error).split())  # one line, whatever it was
        raise UserError(
            f"stream {name} ({added[name].value}) cannot be loaded: {why}; mend or remove its package"
        ) from error
    if not isinstance(found, DatasetSource):
        raise UserError(f"stream {name} ({added[name].value}) is no itl.streams.Source; mend or remove its package")
    return found


def describe() -> list[dict[str, Any]]:
    """One dict a stream: name, classes, tasks, shape, train, test, files, mean, std, flip, padding, policy."""
    rows = []
    for name in names():
        try:
            source = find(name)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)  # one bad package must not hide the others
            continue
        facts = {key: getattr(source, key) for key in ("classes", "shape", "train", "test", "files")}
        rows.append({"name": name, **facts, **asdict(source.traits)})
    return rows


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
