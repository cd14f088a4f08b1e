"""What a run is: its options, without paths."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.streams import Stream


@dataclass(frozen=True)
class Config:
    """Everything needed to repeat a run; no paths. `settings` are the user's own, on top of the method's defaults."""

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
    curves: int | None = None  # at which a stage is evaluated on some of the images; null: what is nearly free

    @classmethod
    def of(cls, values: dict[str, Any]) -> Config:
        """From config.json; entries of other names (what the run derived) are passed over."""
        known = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        if known.get("order") is not None:
            known["order"] = tuple(known["order"])
        return cls(**known)

    def load_stream(self, data: str | os.PathLike[str], download: bool = False, progress: Any = None) -> Stream:
        """The stream this run is over."""
        from itl.streams import load  # here, so that a mistake in an option is said without waiting for torch

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

    @property
    def name(self) -> str:
        """A folder name for this run."""
        split = "" if self.split == "test" else f"-{self.split}"
        variant = f"-{self.variant}" if self.variant else ""
        return f"{self.stream}-{self.method}{variant}-{self.buffer}{split}-seed{self.seed}"

    @property
    def command(self) -> str:
        """The command line that repeats this run."""
        words = ["itl", "run", "--stream", self.stream, "--method", self.method, "--buffer", self.buffer]
        words += ["--seed", self.seed]
        for key in ("tasks", "order_seed", "variant"):
            if getattr(self, key) is not None:
                words += [f"--{key.replace('_', '-')}", getattr(self, key)]
        if self.order is not None:
            words += ["--order", ",".join(map(str, self.order))]
        if self.split != "test":
            words += ["--split", self.split]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        if self.curves is not None:
            words += ["--curves", self.curves]
        if self.keep_specialists:
            words.append("--keep-specialists")
        return shlex.join(str(word) for word in words)
