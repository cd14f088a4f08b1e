"""A learner as a folder, and back: safetensors and JSON, never pickle."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from itl.engine import state as store
from itl.errors import UserError
from itl.memory import Slots
from itl.settings import flatten
from itl.streams import Traits

if TYPE_CHECKING:
    from itl.learner import Learner
    from itl.observer import Observer

ARRAYS = ("label", "task", "row", "written", "width")


def save(learner: Learner, folder: str | os.PathLike[str]) -> None:
    """Write everything needed to go on: network, memory, position, unfinished stage, settings, seconds."""
    learner._must_be_ready()
    slots = learner.memory.slots
    tensors: dict[str, Tensor] = {f"net.{name}": t for name, t in learner.net.state_dict().items()}
    tensors |= {f"flight.{name}": t for name, t in learner.flight.items()}
    tensors["memory.pixels"] = learner.memory.pixels[: slots.size]
    if learner.memory.logits is not None:
        tensors["memory.logits"] = learner.memory.logits[: slots.size]
    tensors |= {f"slots.{name}": torch.from_numpy(getattr(slots, name)) for name in ARRAYS}
    state = {
        "method": learner.method,
        "buffer": learner.buffer,
        "seed": learner.seed,
        "classes": learner.classes,
        "settings": flatten(learner.settings.model_dump()),  # all of them: defaults may change with a version
        "stream": learner.stream,
        "traits": asdict(learner.traits),
        "shape": list(learner.memory.pixels.shape[1:]),
        "outputs": learner.net.classifier.out_features,
        "tasks": [list(task) for task in learner.tasks],
        "position": list(learner.position),
        "slots": {"count": slots.count, "seen": slots.seen, "clock": slots.clock},
        "seconds": dict(learner.clock.seconds),
        "notes": learner.notes,
    }
    store.write(folder, tensors, state)


def load(
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: dict[str, Any] | None = None,
    observer: Observer | None = None,
) -> Learner:
    """The learner saved in `folder`, ready to predict or to learn on. `settings` override those it was saved with."""
    from itl.learner import Learner

    tensors, state = store.read(folder)
    try:
        learner = Learner(
            state["method"],
            state["buffer"],
            state["seed"],
            state["classes"],
            settings={**state["settings"], **flatten(settings or {})},
            device=device,
            observer=observer,
        )
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in state["traits"].items()}
        traits = Traits(**kept)
        learner._set_up(state["stream"], tuple(state["shape"]), traits, state["outputs"])
        _restore(learner, tensors, state)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the model folder {folder} does not fit this itl: {str(error).splitlines()[0]}") from error
    return learner


def _restore(learner: Learner, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    from itl.learner import STAGES

    device, memory = learner.engine.device, learner.memory
    learner.net.load_state_dict(_under(tensors, "net."))
    learner.flight = {name: t.to(device) for name, t in _under(tensors, "flight.").items()}
    _fill(memory.pixels[: memory.size], tensors["memory.pixels"], "memory.pixels")
    if memory.logits is not None:
        _fill(memory.logits[: memory.size], tensors["memory.logits"], "memory.logits")
    slots: dict[str, Any] = {name: int(value) for name, value in state["slots"].items()}
    for name in ARRAYS:
        array = torch.empty(memory.size, dtype=torch.int64)
        _fill(array, tensors[f"slots.{name}"], f"slots.{name}")
        slots[name] = array.numpy()
    memory.slots = Slots(**slots)
    if not 0 <= memory.slots.count <= memory.size:
        raise ValueError(f"{memory.slots.count} images in a memory of {memory.size}")
    learner.tasks = [tuple(task) for task in state["tasks"]]
    stage, rounds = state["position"]
    if stage not in STAGES:
        raise ValueError(f"there is no stage '{stage}'")
    learner.position = (str(stage), int(rounds))
    learner.clock.seconds.update(state["seconds"])
    learner.notes = dict(state["notes"])


def _fill(place: Tensor, saved: Tensor, name: str) -> None:
    """Copy what was saved to where it belongs; unlike `copy_` alone, a tensor of another shape is refused."""
    if saved.shape != place.shape:
        raise ValueError(f"{name} is {list(saved.shape)}, not {list(place.shape)}")
    place.copy_(saved)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
