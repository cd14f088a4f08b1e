"""Edit a saved model: undo, rename and merge classes, resize the memory, forget. Each edit is saved atomically."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itl.apps.model.folder import Model
from itl.apps.model.generations import (
    earlier_finished,
    find_damage,
    history_of,
    newest_intact,
    pending_lesson,
    size_limit,
)
from itl.checkpoint import store
from itl.checkpoint.lock import locked, remove_folder
from itl.engine.keyed_random import generator
from itl.errors import UserError, unknown
from itl.learner.state import memory_images
from itl.memory.class_balance import class_quotas
from itl.memory.slots import MAX_SIZE
from itl.specialists.feature_statistics import FeatureStatistics

FORGOTTEN = "(forgotten)"  # replaces text that names a forgotten class in the history
KEYS_WITHOUT_CLASS_NAMES = ("what", "date", "itl")  # keys of history entries whose values are kept as they are
KEYS_BY_CLASS = ("classes", "test", "beyond")  # keys of history entries whose values are dicts by class name
OWN_HISTORY_KEYS = {
    *(*KEYS_WITHOUT_CLASS_NAMES, *KEYS_BY_CLASS, "old", "new", "before", "folder", "folders", "name", "tested"),
    *("held_out", "accuracy", "all", "task", "memory", "images", "size", "problems", "seconds", "fingerprint"),
}


def undo(path: Path) -> list[dict[str, Any]]:
    """Undo the last change, or an unfinished lesson, by going back to the generation before it.

    If the current generation is damaged, this goes back to the newest intact one. If the first lesson is unfinished,
    no model is left. The generation to go back to is verified before the current one is given up.

    Args:
        path: The model folder.

    Returns:
        The history entries that were undone.

    Raises:
        UserError: If there is no older generation, or the folder cannot be read or written.
    """
    with locked(path):
        return _undo(path)


def _undo(path: Path) -> list[dict[str, Any]]:
    damage = find_damage(path)
    if isinstance(damage, (store.TemporarilyUnreadable, store.UnsupportedVersion)):
        raise damage
    if damage is not None:
        return _undo_damage(path, damage)
    target = next(earlier_finished(path), None)
    if target is None:
        return _remove_unfinished_model(path)
    store.read_generation(path, target, size_limit)
    history, kept = history_of(path / store.current(path)), history_of(path / target)
    names = store.generations(path)
    with _unwritable_as_user_error(path):
        try:
            store.set_current(path, target)
        except OSError as error:
            if not store.is_disk_full(error):
                raise
            store.set_current_on_full_disk(path, target)  # this frees space
    store.remove_generations(path, names[names.index(target) + 1 :])
    return history[len(kept) :] or [{"what": "an unfinished learn"}]


def _undo_damage(path: Path, damage: UserError) -> list[dict[str, Any]]:
    """Go back to the newest intact state, and remove the damaged ones after it and any that was never current."""
    target = newest_intact(path)
    if target is None:
        raise damage
    names = store.generations(path)
    after: list[str] = []
    with suppress(UserError):  # if `CURRENT` itself is damaged, it may name any generation
        current = store.generation_number(store.current(path))
        after = [name for name in names if store.generation_number(name) > current]
    damaged = [name for name in names[names.index(target) + 1 :] if not store.is_intact(path, name, size_limit)]
    with _unwritable_as_user_error(path):
        store.restore_current(path, target)
    store.remove_generations(path, {*damaged, *after})
    return [{"what": "a damaged state"}]


@contextmanager
def _unwritable_as_user_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the model folder {path}: {store.error_summary(error)}; it is unchanged"
        ) from None


def _remove_unfinished_model(path: Path) -> list[dict[str, Any]]:
    """Remove a model whose first lesson is unfinished."""
    if pending_lesson(path / store.current(path)) is None:
        raise UserError(f"{path} has no older state to undo to; delete the folder to start again")
    with _unwritable_as_user_error(path):
        store.remove(path)
    remove_folder(path)
    return [{"what": "an unfinished learn, the first; there is no model any more"}]


def rename(model: Model, old: str, new: str, *, merge: bool = False) -> None:
    """Rename a class, or merge it into another class, and save.

    Merged classes keep their network outputs, whose probabilities are added. Their images in memory, and images that
    are learned later under the name, belong to the first of these outputs.

    Args:
        model: The model.
        old: The present name.
        new: The new name; with `merge`, the name of the other class.
        merge: Merge two classes into one.

    Raises:
        UserError: If a name is unknown, taken or invalid, or a lesson is unfinished.
    """
    require_finished(model)
    old, new = resolve_class(model, old), normalize_name(new)
    outputs = class_outputs(model, old)
    if not new.strip():
        raise UserError("a class name must not be empty")
    if not new.isprintable():
        raise UserError("a class name must be one line without control characters")
    if old == new:
        raise UserError(f"the class is already named {old}")
    existing = [output for output, name in enumerate(model.output_names) if name == new]
    if existing and not merge:
        raise UserError(f"there is already a class {new}; add --merge to merge {old} and {new}")
    if merge and not existing:
        raise unknown("class", new, model.classes)
    for output in outputs:
        model.output_names[output] = new
    if existing:
        slots = model.learner.memory.slots
        merged = existing + outputs
        slots.label[np.isin(slots.label, merged)] = min(merged)  # the output that new images are assigned to
    model.add_history_entry("merge" if existing else "rename", old=old, new=new)
    model.save()


def resize(model: Model, size: int) -> dict[str, int]:
    """Change the size of the memory and save; images to drop are drawn at random, evenly over the classes.

    Args:
        model: The model.
        size: The new number of images.

    Returns:
        Number of dropped images by class.

    Raises:
        UserError: If the memory would not hold one image of each class, the method has no memory, or a lesson is
            unfinished.
    """
    require_finished(model)
    learner = model.learner
    memory, labels = learner.memory, learner.memory.labels
    if learner.settings.memory.policy == "none":
        raise UserError(f"{model.path} has no memory to resize: its method is {learner.method}")
    classes, counts = np.unique(labels, return_counts=True)
    if size < max(len(classes), 1):
        raise UserError(f"a memory of {size} images cannot hold one image of each of {len(classes)} classes")
    if size > MAX_SIZE:
        raise UserError(f"a memory of {size} images is too large; choose at most {MAX_SIZE}")
    rng = generator(learner.seed, "resize", memory.slots.step, memory.size, size)
    quota = class_quotas(counts, size, rng)
    kept = [rng.permutation(memory.slots.of_class(c))[:q] for c, q in zip(classes, quota, strict=True)]
    before = memory.size
    memory.keep(np.sort(np.concatenate([np.zeros(0, np.int64), *kept])), size)
    learner.buffer = size
    model.add_history_entry("resize", size=size, before=before)
    model.save()
    return {model.output_names[c]: int(n - q) for c, n, q in zip(classes, counts, quota, strict=True) if n > q}


def forget(model: Model, *, classes: Sequence[str] = (), images: Tensor | None = None) -> int:
    """Remove images and classes from the folder, with all older generations, and save. This cannot be undone.

    A class also loses its network outputs, and its names in the history. The remaining weights were trained on the
    removed images: only a model that is trained again without them has no trace of them.

    Args:
        model: The model.
        classes: Names of classes to remove.
        images: Images to remove from the memory, uint8 `[n, c, h, w]`; they must match it exactly.

    Returns:
        The number of images removed from the memory.

    Raises:
        UserError: If a class is unknown, an image is not in the memory, no class would be left, or a lesson is
            unfinished.
    """
    require_finished(model)
    classes = [resolve_class(model, name) for name in classes]
    memory = model.learner.memory
    removed = np.zeros(len(memory), bool)
    if images is not None:
        removed[_slots_of(model, images)] = True
    outputs = [output for name in dict.fromkeys(classes) for output in class_outputs(model, name)]
    if len(outputs) == len(model.output_names):
        raise UserError(f"this would leave no class in {model.path}; delete the folder instead")
    removed |= np.isin(memory.labels, outputs)
    memory.keep(np.flatnonzero(~removed), memory.size)
    if outputs:
        _drop_outputs(model, outputs)
        names = _all_names(model.history, set(classes))
        model.history = [_without_names(entry, names) for entry in model.history]
    model.add_history_entry("forget", images=int(removed.sum()), classes=len(set(classes)))
    model.save(private=True)
    return int(removed.sum())


def require_finished(model: Model) -> None:
    """Raise a `UserError` if a lesson is unfinished."""
    if model.pending is not None or model.learner.position[0] != "done":
        raise UserError(
            f"{model.path} has an unfinished learn; finish it with the command that started it, or undo it: "
            f"itl undo {model.path}"
        )


def class_outputs(model: Model, name: str) -> list[int]:
    """Return the network outputs of a class."""
    own_name = resolve_class(model, name)
    return [output for output, other in enumerate(model.output_names) if other == own_name]


def resolve_class(model: Model, name: str) -> str:
    """Return a class name as the model stores it; accents may be composed or decomposed."""
    found = next((own for own in model.output_names if own == name or own == normalize_name(name)), None)
    if found is None:
        raise unknown("class", name, model.classes)
    return found


def normalize_name(name: str) -> str:
    """Return a name with composed accents, as class names are read from folders."""
    return unicodedata.normalize("NFC", name)


def _slots_of(model: Model, images: Tensor) -> np.ndarray:
    """Return the memory slots that hold these images; an image that is in none is an error."""
    stored = memory_images(model.learner).flatten(1)
    slots = []
    for number, image in enumerate(images, 1):
        matches = torch.nonzero((stored == image.flatten()).all(1)).flatten()
        if not len(matches):
            which = f"image {number} of {len(images)}" if len(images) > 1 else "the image"
            raise UserError(f"{which} is not in the memory of {model.path}; nothing was changed")
        slots.append(matches)
    return torch.cat(slots).numpy()


def _drop_outputs(model: Model, dropped: Sequence[int]) -> None:
    """Remove outputs from the networks and renumber the rest in labels, stored logits and tasks."""
    learner = model.learner
    kept = [output for output in range(len(model.output_names)) if output not in dropped]
    new_output = {output: new for new, output in enumerate(kept)}
    copies = learner.specialist.model_copies
    if isinstance(learner.specialist, FeatureStatistics):
        learner.specialist.select_outputs(kept)
    elif any(name.partition("/")[0] not in copies for name in learner.specialist.state_dict()):
        raise UserError(f"{learner.specialist.name} keeps state by class, so its classes cannot be forgotten")
    for net in (learner.net, *copies.values()):
        net.select_outputs([output for output in kept if output < net.classifier.out_features])
    slots, count = learner.memory.slots, len(learner.memory)
    slots.label[:count] = [new_output[label] for label in slots.label[:count].tolist()]
    slots.width[:count] = [sum(output < width for output in kept) for width in slots.width[:count].tolist()]
    if learner.memory.logits is not None:
        learner.memory.logits = learner.memory.logits[:, kept].contiguous()
    # A task that loses all its classes keeps its place: random draws are keyed by the number of the task.
    learner.tasks = [tuple(new_output[c] for c in task if c in new_output) for task in learner.tasks]
    model.output_names = [model.output_names[output] for output in kept]


def _all_names(history: Sequence[dict[str, Any]], names: set[str]) -> set[str]:
    """Return these class names and all earlier names of the same classes."""
    for entry in reversed(history):
        if entry["what"] in ("rename", "merge") and entry["new"] in names:
            names = names | {entry["old"]}
    return names


def _without_names(value: Any, names: set[str], by_class: bool = False) -> Any:
    """Return a part of the history without class names: as keys, as values, or as folders in a path.

    The history's own keys are kept, even if a class has such a name.
    """
    if isinstance(value, dict):
        return {
            key: part
            if key in KEYS_WITHOUT_CLASS_NAMES and not by_class
            else _without_names(part, names, by_class=key in KEYS_BY_CLASS)
            for key, part in value.items()
            if key not in names or (key in OWN_HISTORY_KEYS and not by_class)
        }
    if isinstance(value, list):
        return [_without_names(part, names) for part in value]
    return FORGOTTEN if isinstance(value, str) and names & {value, *re.split(r"[\\/]", value)} else value
