"""A learner as a folder, and back: safetensors and JSON, never pickle."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from itl.engine import state as store
from itl.errors import UserError
from itl.memory import Slots
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
        "overrides": learner.overrides,
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
            settings={**state["overrides"], **(settings or {})},
            device=device,
            observer=observer,
        )
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in state["traits"].items()}
        traits = Traits(**kept)
        learner._set_up(state["stream"], tuple(state["shape"]), traits, state["outputs"])
        _restore(learner, tensors, state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the model folder {folder} does not fit this itl: {str(error).splitlines()[0]}") from error
    return learner


def _restore(learner: Learner, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    device, memory = learner.engine.device, learner.memory
    learner.net.load_state_dict(_under(tensors, "net."))
    learner.flight = {name: t.to(device) for name, t in _under(tensors, "flight.").items()}
    memory.pixels[: memory.size].copy_(tensors["memory.pixels"])
    if memory.logits is not None:
        memory.logits[: memory.size].copy_(tensors["memory.logits"])
    arrays: dict[str, Any] = {name: np.array(tensors[f"slots.{name}"]) for name in ARRAYS}
    memory.slots = Slots(**arrays, **state["slots"])
    learner.tasks = [tuple(task) for task in state["tasks"]]
    stage, rounds = state["position"]
    learner.position = (str(stage), int(rounds))
    learner.clock.seconds.update(state["seconds"])
    learner.notes = dict(state["notes"])


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
