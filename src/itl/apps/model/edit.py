"""Changing one's mind: undo, forget, rename and merge, resize. Each is one commit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.apps.model.folder import Model
from itl.apps.model.generations import damage, earlier, last_whole, unfinished
from itl.checkpoint import store
from itl.checkpoint.lock import LOCK, locked
from itl.engine.keyed_random import generator
from itl.errors import UserError, unknown
from itl.memory.class_balance import class_quotas

GONE = "(forgotten)"
PLAIN = ("what", "date", "itl")  # parts of the history's entries in which no class is named
BY_CLASS = ("classes", "test", "beyond")  # those that have a part for each class
PARTS = {
    *(*PLAIN, *BY_CLASS, "old", "new", "before", "folder", "folders", "name", "tested", "held_out", "accuracy", "all"),
    *("task", "memory", "images", "size", "problems", "seconds", "fingerprint"),
}


def undo(path: Path) -> list[dict[str, Any]]:
    """Go back to before the last change, or to before a learn that was not finished; returns what is undone.

    The generation to go back to is read through before the present one is given up. From a present one that is damaged
    the way leads to the newest that is whole. Before an unfinished first learn there was no model: none is left.
    """
    with locked(path):
        return _undo(path)


def _undo(path: Path) -> list[dict[str, Any]]:
    wrong = damage(path)
    if isinstance(wrong, store.Unreadable):
        raise wrong
    back = last_whole(path) if wrong else next(earlier(path), None)
    try:
        if wrong and back is None:
            raise wrong
        if back is None:
            now = store.current(path)
            if unfinished(path / now) is None:
                raise UserError(f"{path} keeps nothing older to go back to; delete it to begin anew")
            store.remove(path)
            with suppress(OSError):  # the folder stays if something else lies in it
                (path / LOCK).unlink()
                path.rmdir()
            return [{"what": "an unfinished learn, the first; there is no model any more"}]
        left = [] if wrong else _history(store.read_text(path / store.current(path)))
        kept = _history(store.read_generation(path, back)[1])
        store.point(path, back)
    except OSError as error:
        raise UserError(f"cannot write the model folder {path}: {store.reason(error)}; it is unchanged") from None
    older = store.generations(path)
    store.tidy(path, older[: older.index(back) + 1])
    return left[len(kept) :] or [{"what": "a damaged state" if wrong else "an unfinished learn"}]


def rename(model: Model, old: str, new: str, *, merge: bool = False) -> None:
    """Give a class another name. With `merge`, one that another class has: from then on they are one.

    Merged classes keep their outputs, whose probabilities are added; their images in memory become the other's, and
    what is learned from then on is too.
    """
    must_be_finished(model)
    old, new = known(model, old), composed(new)
    outputs = outputs_of(model, old)
    if not new.strip():
        raise UserError("a class's name must not be empty")
    if not new.isprintable():
        raise UserError("a class's name must be one line without control characters")
    if old == new:
        raise UserError(f"the class is called {old} already")
    there = [output for output, name in enumerate(model.names) if name == new]
    if there and not merge:
        raise UserError(f"there is a class {new} already; add --merge to make {old} and {new} one class")
    if merge and not there:
        raise unknown("class", new, model.classes)
    for output in outputs:
        model.names[output] = new
    if there:
        slots = model.learner.memory.slots
        slots.label[np.isin(slots.label, there + outputs)] = min(there + outputs)  # where new images will go
    model.note("merge" if there else "rename", old=old, new=new)
    model.save()


def resize(model: Model, size: int) -> dict[str, int]:
    """Give the memory room for `size` images; returns how many images each class loses. Which ones is drawn."""
    must_be_finished(model)
    learner = model.learner
    memory, labels = learner.memory, learner.memory.labels
    if learner.settings.memory.policy == "none":
        raise UserError(f"{model.path} keeps no memory: its method is {learner.method}")
    classes, counts = np.unique(labels, return_counts=True)
    if size < max(len(classes), 1):
        raise UserError(f"a memory of {size} cannot hold one image of each of {len(classes)} classes")
    rng = generator(learner.seed, "resize", memory.slots.step, memory.size, size)
    quota = class_quotas(counts, size, rng)
    kept = [rng.permutation(memory.slots.of_class(c))[:q] for c, q in zip(classes, quota, strict=True)]
    before = memory.size
    memory.keep(np.sort(np.concatenate([np.zeros(0, np.int64), *kept])), size)
    learner.buffer = size
    model.note("resize", size=size, before=before)
    model.save()
    return {model.names[c]: int(n - q) for c, n, q in zip(classes, counts, quota, strict=True) if n > q}


def forget(model: Model, *, classes: Sequence[str] = (), images: Tensor | None = None) -> int:
    """Remove images `[n, c, h, w]`, and whole classes, from the folder for good; returns how many images went.

    Every older generation goes with them, so that nothing of them is left in any, and this cannot be undone. A class
    loses its output, its name and its place in the history too. The weights have learned from the images and keep
    what they have learned: only a model taught anew without them has not.
    """
    must_be_finished(model)
    classes = [known(model, name) for name in classes]
    gone = np.zeros(len(model.learner.memory), bool)
    if images is not None:
        found = _find(model, images)
        gone[found] = True
    dropped = [output for name in dict.fromkeys(classes) for output in outputs_of(model, name)]
    if len(dropped) == len(model.names):
        raise UserError(f"this would leave no class in {model.path}; delete the folder instead")
    gone |= np.isin(model.learner.memory.labels, dropped)
    memory = model.learner.memory
    memory.keep(np.flatnonzero(~gone), memory.size)
    if dropped:
        _drop_outputs(model, dropped)
        names = _ever(model.history, set(classes))
        model.history = [_scrubbed(entry, names) for entry in model.history]
    model.note("forget", images=int(gone.sum()), classes=len(set(classes)))
    model.save(private=True)
    return int(gone.sum())


def must_be_finished(model: Model) -> None:
    """Refuse to change a model in the middle of a learn."""
    if model.pending is not None or model.learner.position[0] != "done":
        raise UserError(f"a learn is unfinished; give the same command to finish it, or itl undo {model.path}")


def outputs_of(model: Model, name: str) -> list[int]:
    """The outputs of a class."""
    own = known(model, name)
    return [output for output, name in enumerate(model.names) if name == own]


def known(model: Model, name: str) -> str:
    """A class's name as the model has it."""
    found = next((own for own in model.names if own == name or own == composed(name)), None)
    if found is None:
        raise unknown("class", name, model.classes)
    return found


def composed(name: str) -> str:
    """A name with its accents in the letters, as those of folders are read; some disks and keyboards set them apart."""
    return unicodedata.normalize("NFC", name)


def _find(model: Model, images: Tensor) -> np.ndarray:
    """The slots that hold these images, to the last pixel; an image that none holds is a mistake worth knowing."""
    memory = model.learner.memory
    held = memory.pixels[: len(memory)].cpu().flatten(1)
    slots = []
    for number, image in enumerate(images, 1):
        same = torch.nonzero((held == image.flatten()).all(1)).flatten()
        if not len(same):
            which = f"image {number} of {len(images)}" if len(images) > 1 else "the image"
            raise UserError(f"{which} is not in the memory of {model.path}; nothing is changed")
        slots.append(same)
    return torch.cat(slots).numpy()


def _drop_outputs(model: Model, dropped: Sequence[int]) -> None:
    """Take outputs out of the network, and their numbers out of everything that counts outputs."""
    learner = model.learner
    kept = [output for output in range(len(model.names)) if output not in dropped]
    place = {output: new for new, output in enumerate(kept)}
    twins = learner.specialist.twins
    if any(name.partition("/")[0] not in twins for name in learner.specialist.extra_state()):
        raise UserError(f"{learner.specialist.name} keeps what it knows by class; a class of it cannot be forgotten")
    for net in (learner.net, *twins.values()):
        net.select_outputs([output for output in kept if output < net.classifier.out_features])
    slots, held = learner.memory.slots, len(learner.memory)
    slots.label[:held] = [place[label] for label in slots.label[:held].tolist()]
    slots.width[:held] = [sum(output < width for output in kept) for width in slots.width[:held].tolist()]
    if learner.memory.logits is not None:
        learner.memory.logits = learner.memory.logits[:, kept].contiguous()
    # A task that loses all its classes stays in its place: tasks are numbered, and draws are keyed by the number.
    learner.tasks = [tuple(place[c] for c in task if c in place) for task in learner.tasks]
    model.names = [model.names[output] for output in kept]


def _ever(history: Sequence[dict[str, Any]], names: set[str]) -> set[str]:
    """These names and all that their classes were called before."""
    for entry in reversed(history):
        if entry["what"] in ("rename", "merge") and entry["new"] in names:
            names = names | {entry["old"]}
    return names


def _scrubbed(value: Any, names: set[str], by_class: bool = False) -> Any:
    """A part of the history without these names, be they keys, values, or folders in a path.

    What the history itself calls its parts stays, even if a class was called so.
    """
    if isinstance(value, dict):
        return {
            key: part if key in PLAIN and not by_class else _scrubbed(part, names, by_class=key in BY_CLASS)
            for key, part in value.items()
            if key not in names or (key in PARTS and not by_class)
        }
    if isinstance(value, list):
        return [_scrubbed(part, names) for part in value]
    return GONE if isinstance(value, str) and names & {value, *re.split(r"[\\/]", value)} else value


def _history(state: dict[str, Any]) -> list[dict[str, Any]]:
    return list(state.get("notes", {}).get("model", {}).get("history", []))
