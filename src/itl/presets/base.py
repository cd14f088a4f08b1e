"""A method preset: a name and the default settings that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from itl.method_catalog import Defaults, MethodInfo, StreamDefaults
from itl.presets.streams import CHOSEN_BY_US, STREAM_DEFAULTS

# Every baseline starts from these, as in its publication: crops and flips, but no AutoAugment, and no generalist.
BASELINE: Defaults = {"augment.task": None, "augment.memory": None, "generalist": "none"}


@dataclass(frozen=True)
class Method:
    """A named set of default settings.

    Attributes:
        name: The name that `--method` takes.
        summary: One line for `itl methods`.
        reference: Authors, title, venue and year of the publication.
        defaults: Settings by dotted name.
        stream_defaults: Settings that refine `defaults` for (stream, buffer size), or for (stream, None).
        note: Where the defaults deviate from the publication.
    """

    name: str
    summary: str
    reference: str
    defaults: Defaults
    stream_defaults: StreamDefaults = field(default_factory=dict)
    note: str = ""

    def defaults_for(self, stream: str | None, buffer: int) -> dict[str, Any]:
        """The default settings on a stream (None for an unknown one) with a memory of `buffer` images.

        Settings for a buffer size apply to the sizes that are nearest to it.
        """
        out = dict(self.defaults)
        if stream is None:
            return out
        out |= STREAM_DEFAULTS.get(stream, {})
        out |= self.stream_defaults.get((stream, None), {})
        sizes = [size for name, size in self.stream_defaults if name == stream and size is not None]
        if sizes:
            out |= self.stream_defaults[stream, min(sizes, key=lambda size: abs(size - buffer))]
        return out


def from_info(info: MethodInfo, find: Callable[[str], Method]) -> Method:
    """The method that a specialist's class describes; `find` returns the method it is based on."""
    defaults: Defaults = {**BASELINE, "specialist.name": info.name}
    stream_defaults = {**info.stream_defaults, **CHOSEN_BY_US.get(info.name, {})}
    if info.based_on is not None:
        base = find(info.based_on)
        defaults = {**base.defaults, "specialist.name": info.name}
        stream_defaults = _inherited(base.stream_defaults, info) | {
            key: {**_inherited(base.stream_defaults, info).get(key, {}), **values}
            for key, values in stream_defaults.items()
        }
    return Method(info.name, info.summary, info.reference, {**defaults, **info.defaults}, stream_defaults, info.note)


def _inherited(stream_defaults: StreamDefaults, info: MethodInfo) -> dict[tuple[str, int | None], Defaults]:
    """A base method's settings for streams, without those that the method sets for all streams itself."""
    return {
        key: {name: value for name, value in values.items() if name not in info.defaults}
        for key, values in stream_defaults.items()
    }
