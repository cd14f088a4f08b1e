"""The model's own part of a saved state: class names, image format, history, and an unfinished lesson."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from itl.apps.model.calibration import Calibration
from itl.apps.model.history import check_entry, first_problem
from itl.checkpoint import store
from itl.errors import UserError

NamedImages = tuple[Tensor, Sequence[str]]
"""Images, uint8 `[n, c, h, w]`, and the class name of each."""
METADATA_FORMAT = 1
METADATA_KEY = "model"  # in `Learner.notes`
DEFAULT_UNDO = 2
MAX_SIDE = 4096  # pixels; a memory of larger images would not fit anywhere


class ImageSpec(TypedDict):
    """What a model's images look like: `[channels, size, size]`, and which augmentation preserves their class."""

    size: int
    channels: int
    flip: bool
    policy: str | None


def image_spec(size: int, channels: int, flip: bool, policy: str | None) -> ImageSpec:
    """The images of a new model.

    Raises:
        UserError: The size is out of range.
    """
    if not 1 <= size <= MAX_SIDE:
        raise UserError(f"the image size must be 1 to {MAX_SIDE} pixels, not {size}")
    return ImageSpec(size=size, channels=channels, flip=flip, policy=policy)


class _Pending(BaseModel):
    """Metadata of an unfinished lesson. Other keys are allowed. Only `itl learn` sets the keys that have a default."""

    model_config = ConfigDict(strict=True)

    fingerprint: str
    replayed: str | None = None
    what: str = ""
    given: str = ""
    folder: str = ""
    plan: list[str] = []
    at: int = Field(default=0, ge=0)
    new: list[str] = []
    room: int = Field(default=0, ge=0)
    buffer: int | None = None
    tested: bool = True
    replayed_rows: str = Field(default="", pattern=r"^([0-9a-f]{2})*$")


class ModelMetadata(BaseModel):
    """What a model folder stores in addition to the learner; see the attributes of `Model`."""

    model_config = ConfigDict(strict=True)

    format: int = METADATA_FORMAT
    names: list[str]
    image: ImageSpec
    history: list[dict[str, Any]] = []
    pending: dict[str, Any] | None = None
    undo: int = Field(default=DEFAULT_UNDO, ge=0)
    calibration: Calibration = Calibration()

    @field_validator("names", mode="before")
    @classmethod
    def _check_names(cls, names: Any) -> Any:
        if isinstance(names, list) and not all(isinstance(name, str) for name in names):
            raise ValueError("a class name is not text")  # pydantic would describe every one of millions
        return names

    @field_validator("history")
    @classmethod
    def _check_history(cls, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in history:
            check_entry(entry)
        return history

    @field_validator("pending")
    @classmethod
    def _check_pending(cls, pending: dict[str, Any] | None) -> dict[str, Any] | None:
        if pending is not None:
            _check_unfinished_lesson(pending)
        return pending


def read_metadata(path: Path, state: dict[str, Any]) -> ModelMetadata:
    """Return the validated metadata of a saved state.

    The classes of a folder that was written by `Learner.save` are named "0", "1", "2" and so on, unless its labels
    were names.

    Args:
        path: The model folder, for error messages.
        state: The content of `state.json`.

    Raises:
        UserError: If the metadata are invalid or of another format version.
    """
    try:
        notes = dict(state["notes"])
        channels, height, width = (int(length) for length in state["shape"])
        if METADATA_KEY not in notes:
            named = [str(name) for name in state.get("class_names") or ()]
            names = [*named, *(str(output) for output in range(len(named), int(state["outputs"])))]
            return ModelMetadata(names=names, image=ImageSpec(size=height, channels=channels, flip=False, policy=None))
        version = notes[METADATA_KEY]["format"]
        if type(version) is not int or version != METADATA_FORMAT:
            raise UserError(f"the model in {path} has another format version; this itl reads version {METADATA_FORMAT}")
        metadata = ModelMetadata.model_validate(notes[METADATA_KEY])
        size = metadata.image["size"]
        if (metadata.image["channels"], size, size) != (channels, height, width):
            raise ValueError(f"images of {size} pixels in a memory of {height} x {width}")
        if not 1 <= size <= MAX_SIDE:
            raise ValueError(f"images of {size} x {size} pixels; the side may have 1 to {MAX_SIDE}")
        return metadata
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        reason = store.error_summary(error)
    raise UserError(f"the model folder {path} is not valid: {reason}")


def new_pending(notes: Mapping[str, Any] | None, digest: str, replayed: str | None) -> dict[str, Any]:
    """Return the metadata of a lesson that is started.

    Args:
        notes: JSON-serializable metadata.
        digest: Fingerprint of the images.
        replayed: Fingerprint of the images of earlier lessons that are learned again, or None.

    Raises:
        UserError: If a note has a name that `itl learn` uses, but another type.
    """
    pending = {**(notes or {}), "fingerprint": digest, "replayed": replayed}
    try:
        _check_unfinished_lesson(pending)
    except ValueError as error:
        raise UserError(f"the notes of a lesson cannot be saved: {error}; use another name") from None
    return pending


def _check_unfinished_lesson(pending: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if what `itl learn` reads has another type."""
    try:
        _Pending.model_validate(pending)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def fingerprint(pixels: Tensor, labels: Sequence[str]) -> str:
    """Return a digest of images and labels."""
    digest = hashlib.sha256("\0".join(labels).encode("utf-8", "surrogateescape"))
    for image in pixels.numpy():
        digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()


def check_unfinished(path: Path, pending: Mapping[str, Any], digest: str, replayed: str | None) -> None:
    """Refuse images other than those with which an unfinished lesson was started.

    Args:
        path: The model folder.
        pending: Metadata of the unfinished lesson.
        digest: Fingerprint of the images.
        replayed: Fingerprint of the images of earlier lessons that are learned again, or None.
    """
    lesson = pending.get("what", "other images")
    if pending["fingerprint"] != digest:
        raise UserError(
            f"{path} has not finished learning {lesson}; give the same images to finish it, or undo it first: itl undo "
            f"{path}"
        )
    if pending.get("replayed") != replayed:
        raise UserError(
            f"{path} started to learn {lesson} with other images of earlier folders; restore them and repeat the "
            f"command that started it, or undo it: itl undo {path}"
        )
