"""What a user may say about a learn, and what a model that exists already makes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from itl.apps.model import Model
from itl.apps.model.generations import earlier
from itl.checkpoint.store import generations
from itl.errors import UserError
from itl.settings import flatten

SIZES = (32, 64, 128)  # a new model's images, by what its first folder holds
LEAST, MOST = 8, 224  # pixels
FIXED = ("net.", "memory.policy", "memory.logits", "specialist.name")  # a model keeps these for life


@dataclass(frozen=True)
class TeachingOptions:
    """The user's choices; None: what the model has, or what suits a new one. `settings` are dotted names.

    `test`: hold images out, or use the folder's own `test/`. `again`: learn a folder that was learned before.
    """

    size: int | None = None
    method: str | None = None
    buffer: int | None = None
    seed: int | None = None
    flip: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | os.PathLike[str] | None = None
    test: bool = True
    again: bool = False
    device: str = "auto"

    @property
    def way(self) -> str:
        """A new model's method."""
        return self.method or "itl"

    @property
    def room(self) -> int:
        """A new model's buffer."""
        return self.buffer or 200

    def __post_init__(self) -> None:
        if self.size is not None and not LEAST <= self.size <= MOST:
            raise UserError(f"--size must be {LEAST} to {MOST} pixels, not {self.size}")
        if self.buffer is not None and self.buffer < 1:
            raise UserError(f"--buffer must be 1 image or more, not {self.buffer}")
        if self.seed is not None and self.seed < 0:
            raise UserError(f"a seed must be 0 or more, not {self.seed}")
        if self.weights is not None and not Path(self.weights).is_file():
            raise UserError(f"cannot read --weights {self.weights}: No such file or directory")


def check_model_path(given: str | os.PathLike[str]) -> None:
    """Refuse to make a model in a folder that holds other things: it may be somebody's photographs."""
    path = Path(given)
    if not os.fspath(given):
        raise UserError("the model's name is empty; give a folder for it")
    if path.is_dir():
        foreign = [entry.name for entry in path.iterdir() if not entry.name.startswith((".", "LOCK", "generation-"))]
        there = (path / "CURRENT").exists()
        if not there and len(generations(path)) > 1 and any(earlier(path)):  # one alone: a crash in the first save
            raise UserError(f"{path} is a damaged model folder: CURRENT is missing; itl undo {path} mends it")
        if foreign and not there:
            raise UserError(
                f"{path} is no model folder and is not empty ({foreign[0]}); the model's folder comes first, then the "
                "folders of images"
            )
    elif path.exists():
        raise UserError(f"{path} is a file; a model is a folder")


def check_options(model: Model, options: TeachingOptions) -> None:
    """Refuse options that contradict what a model is."""
    learner, saved = model.learner, flatten(model.learner.settings.model_dump())
    if model.image["channels"] != 3:
        raise UserError(f"{model.path} learns images of {model.image['channels']} channels, files have 3; use Python")
    for name, given, own in (
        ("--size", options.size, model.image["size"]),
        ("--method", options.method, learner.method),
        ("--seed", options.seed, learner.seed),
    ):
        if given is not None and given != own:
            raise UserError(f"{model.path} was made with {name} {own}, not {given}; leave it out, or make a new model")
    if options.flip not in (None, model.image["flip"]):
        word = "--flip" if model.image["flip"] else "--no-flip"
        raise UserError(f"{model.path} was made with {word}; leave the option out, or make a new model")
    if options.weights is not None:
        raise UserError(f"{model.path} has weights of its own already; --weights is for a new model")
    if model.pending is None and options.buffer is not None and options.buffer < learner.memory.size:
        raise UserError(f"{model.path} has a memory of {learner.memory.size} images; --buffer can only make it larger")
    for key, value in options.settings.items():
        if key.startswith(FIXED) and saved.get(key) != value:
            raise UserError(f"{model.path} was made with {key}={saved.get(key)}; that cannot be changed any more")
        if model.pending is not None and key in saved and saved[key] != value:
            raise _unfinished(model, f"with {key}={saved[key]}")
    if model.pending is not None:
        _check_pending(model, model.pending, options)


def _check_pending(model: Model, pending: Mapping[str, Any], options: TeachingOptions) -> None:
    """An unfinished learn goes on as it was begun."""
    room = model.learner.memory.size
    if options.buffer not in (None, pending.get("buffer"), room):
        raise _unfinished(model, f"with a memory of {room} images")
    tested = pending.get("tested", options.test)
    if tested != options.test:
        raise _unfinished(model, f"with{'out' if tested else ''} --no-test")


def _unfinished(model: Model, how: str) -> UserError:
    what = (model.pending or {}).get("what")
    return UserError(
        f"{model.path} is in the middle of learning {what} {how}; finish that first, with the command it was begun with"
    )
