"""The generations of a model folder: which is finished, what one of them holds; checked, for folders may be damaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from itl.apps.model.memory_images import PILLOW_MODES, MemoryImageFiles
from itl.checkpoint import store
from itl.errors import UserError

FORMAT = 1
UNDO = 2  # learns that can be undone unless said otherwise


def newest_learned(root: Path, now: str) -> str:
    """The newest generation that is not the middle of a learn."""
    if unfinished(root / now) is None:
        return now
    older = store.generations(root)
    whole = [name for name in older[: older.index(now) if now in older else 0] if finished(root / name)]
    if not whole:
        raise UserError(f"{root} has not finished its first learn yet; give the same itl learn again to go on")
    return whole[-1]


def damage(root: Path) -> UserError | None:
    """What is wrong with the files of the current generation, if anything is."""
    try:
        store.read(root)
    except UserError as error:
        return error
    return None


def earlier(root: Path) -> Iterator[str]:
    """The finished generations before the current one, newest first; all of them if nothing says which is current."""
    now = store.named(root)
    for name in reversed(store.generations(root)):
        if (now is None or store.number(name) < store.number(now)) and finished(root / name):
            yield name


def last_whole(root: Path) -> str | None:
    """The newest of them whose files are all as they were saved."""
    for name in earlier(root):
        try:
            store.read_generation(root, name)
        except UserError:
            continue
        return name
    return None


def with_way_back(root: Path, error: UserError) -> UserError:
    """What is wrong with a folder; and, if that is its current generation while an older one is whole, the way back."""
    if isinstance(error, (store.OtherVersion, store.Unreadable)) or damage(root) is None or last_whole(root) is None:
        return error
    return UserError(f"{error}; itl undo {root} goes back to the last state that is whole")


def unfinished(generation: Path) -> dict[str, Any] | None:
    """What a generation is in the middle of learning, or None."""
    notes = store.read_text(generation).get("notes")
    about = notes.get("model") if isinstance(notes, dict) else None
    pending = about.get("pending") if isinstance(about, dict) else None
    return pending if isinstance(pending, dict) else None


def finished(generation: Path) -> bool:
    """Whether a generation is a state to go back to, and not the middle of a learn."""
    notes = store.read_text(generation).get("notes")
    about = notes.get("model") if isinstance(notes, dict) else None
    return isinstance(about, dict) and about.get("pending") is None


def about_of(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """The model's own part of a state, checked. A learner saved alone is a model whose classes have no names."""
    try:
        notes = dict(state["notes"])
        channels, height, width = (int(n) for n in state["shape"])
        if "model" not in notes:
            image = {"size": height, "channels": channels, "flip": False, "policy": None}
            names = [str(output) for output in range(int(state["outputs"]))]
            return {"names": names, "image": image, "history": [], "pending": None, "undo": UNDO}
        about = dict(notes["model"])
        if type(about["format"]) is not int or about["format"] != FORMAT:
            raise UserError(f"the model in {path} has another format version; this itl reads version {FORMAT}")
        image = dict(about["image"])
        if (image["channels"], image["size"], image["size"]) != (channels, height, width):
            raise ValueError(f"images of {image['size']} pixels in a memory of {height} x {width}")
        if not isinstance(about["names"], list) or not all(isinstance(name, str) for name in about["names"]):
            raise ValueError("a class's name is no text")
        for entry in about["history"]:
            if not all(isinstance(entry[key], str) for key in ("what", "date")):
                raise ValueError("the history is no history")
        pending = about["pending"]
        if pending is not None and not isinstance(pending["fingerprint"], str):
            raise ValueError("what is unfinished is unknown")
        if type(about["undo"]) is not int or about["undo"] < 0:
            raise ValueError(f"{about['undo']} learns to undo")
        return {**about, "image": image}
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the model folder {path} does not fit this itl: {store.reason(error)}") from None


def pictures_of(
    generation: Path, album: MemoryImageFiles, tensors: dict[str, Tensor], state: dict[str, Any], names: Sequence[str]
) -> Tensor:
    """The memory's pixels from its pictures, as they would be among the tensors."""
    try:
        labels, shape = tensors["slots.label"], [int(n) for n in state["shape"]]
        count = int(state["slots"]["count"])
        if labels.ndim != 1 or not 0 <= count <= len(labels) or shape[0] not in PILLOW_MODES:
            raise ValueError(f"{count} images in a memory of {list(labels.shape)}")
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"the model folder {generation.parent} does not fit this itl: {error}") from None
    try:
        pixels = album.read(generation, count, shape, labels.numpy(), names)
    except OSError as error:  # a learn that goes on may have replaced this generation meanwhile
        raise store.cannot_read(generation.parent, error) from None
    rest = torch.zeros((len(labels) - count, *shape), dtype=torch.uint8)
    return torch.cat([pixels, rest])
