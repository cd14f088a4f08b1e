"""Configuration of a run, without paths."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from itl._deprecated import update_saved_settings

if TYPE_CHECKING:
    from itl.streams import Progress, Stream


MAX_SHOWN = 40  # characters of a value in a message
_UNSET = object()


@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run, except paths.

    Args:
        stream: Name of the stream.
        method: Name of the method.
        buffer: Number of images in the memory.
        seed: Seed of all random numbers.
        settings: Settings by dotted name that replace the method's defaults.
        tasks: Number of tasks, or None for the stream's own.
        order: Order of the classes, or None for the stream's own.
        order_seed: Seed of a random order of the classes.
        split: "test" to train on all training images and evaluate on the test images; "validation" to hold out some
            training images and evaluate on those.
        variant: Name that distinguishes runs of the same method with different settings.
        keep_specialists: Whether to save the specialist of every task, for `refine`.
        curves: Number of evaluations during each stage, on a subset of the images. None for as many as cost about
            one percent of the training time.
    """

    stream: str = "seq-digits"
    method: str = "itl"
    buffer: int = 20
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    order: tuple[int, ...] | None = None
    order_seed: int | None = None
    split: str = "test"
    variant: str | None = None
    keep_specialists: bool = False
    curves: int | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Configuration from the contents of config.json; keys that are not fields are ignored."""
        known = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        known["settings"] = update_saved_settings(known.get("settings", {}))
        if known.get("order") is not None:
            known["order"] = tuple(known["order"])
        return cls(**known)

    def load_stream(
        self, data: str | os.PathLike[str], download: bool = False, progress: Progress | None = None
    ) -> Stream:
        """Load the stream of the run.

        Args:
            data: Folder of the datasets.
            download: Whether to download a dataset that is missing.
            progress: Reports the progress of the download; see `itl.streams.load`.
        """
        from itl.streams import load  # imported here because it imports torch, which takes seconds

        return load(
            self.stream,
            data,
            tasks=self.tasks,
            order=self.order,
            order_seed=self.order_seed,
            split=self.split,
            download=download,
            progress=progress,
        )

    def differences(self, other: Config) -> list[str]:
        """Options and settings in which another configuration differs, with its value and the value here."""
        mine, theirs = ({**asdict(c), **c.settings} for c in (self, other))
        changed = []
        for key in dict.fromkeys((*mine, *theirs)):
            a, b = mine.get(key, _UNSET), theirs.get(key, _UNSET)
            if key != "settings" and a != b:
                changed.append(f"{key} {_shown(b)}, not {_shown(a)}")
        return changed

    @property
    def name(self) -> str:
        """Folder name of the run."""
        split = "" if self.split == "test" else f"-{self.split}"
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.stream}-{self.method}{variant}-{self.buffer}{split}-seed{self.seed}"

    @property
    def command(self) -> str:
        """Command line that repeats the run."""
        from itl.settings import as_words

        words = ["itl", "run", "--stream", self.stream, "--method", self.method, "--buffer", self.buffer]
        words += ["--seed", self.seed]
        for key in ("tasks", "order_seed", "variant"):
            if getattr(self, key) is not None:
                words += [f"--{key.replace('_', '-')}", getattr(self, key)]
        if self.order is not None:
            words += ["--order", ",".join(map(str, self.order))]
        if self.split != "test":
            words += ["--split", self.split]
        for word in as_words(self.settings):
            words += ["--set", word]
        if self.curves is not None:
            words += ["--curves", self.curves]
        if self.keep_specialists:
            words.append("--keep-specialists")
        return shlex.join(str(word) for word in words)


def _shown(value: Any) -> str:
    from itl.settings import value_text

    text = "the default" if value is None or value is _UNSET else value_text(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def variant_name(variant: str | None, settings: Mapping[str, Any]) -> str | None:
    """Name of a variant with these settings besides its own, as part of a folder's name; None if there is neither."""
    words = [*([variant] if variant else []), *(f"{key}-{value}" for key, value in settings.items())]
    return re.sub(r"[^\w.+-]", "_", "-".join(words)) or None


def first_few(parts: list[str], count: int = 3) -> str:
    """The first parts of a list, and the number of the others."""
    more = [f"{len(parts) - count} more"] if len(parts) > count else []
    return "; ".join([*parts[:count], *more])
