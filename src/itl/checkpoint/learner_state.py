"""A learner as a folder, and back: safetensors and JSON, never pickle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from itl.checkpoint import store
from itl.errors import UserError
from itl.memory import Slots
from itl.memory.buffer import OPTIONAL_TENSORS
from itl.memory.slots import INTEGER_FIELDS
from itl.nets import ModuleAdapter
from itl.settings import flatten
from itl.streams import Traits

if TYPE_CHECKING:
    from itl.callbacks.base import Callback
    from itl.learner import Learner

MOST_THREADS = 1024
MOST_ROUNDS = 10**9  # of a stage: more is nonsense


EVERY = 30.0  # seconds between two saves of an unfinished stage, unless ITL_SAVE_EVERY says otherwise
SHARE = 0.025  # of the time, at most, goes into them


class CheckpointThrottle:
    """When to save an unfinished stage: every so many seconds, and never for more than a small share of the time.

    What is lost by a crash is learned again, to the same bits; so a slow disk makes saves rarer, not training slower.
    """

    def __init__(self, every: float | None = None) -> None:
        self.every = _interval() if every is None else every
        self.next = time.monotonic() + self.every

    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self.next

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        """Within, the state is saved: how long that takes is noted, and decides when it is time again."""
        began = time.monotonic()
        with learner.clock.section("saving"):
            yield
        now = time.monotonic()
        self.next = now + (max(self.every, (now - began) / SHARE) if self.every else 0)


def _interval() -> float:
    given = os.environ.get("ITL_SAVE_EVERY", "")
    try:
        return max(0.0, float(given or EVERY))
    except ValueError:
        raise UserError(f"ITL_SAVE_EVERY is a number of seconds, not '{given}'") from None


def save(learner: Learner, folder: str | os.PathLike[str]) -> None:
    """Write everything needed to go on into a folder."""
    store.write(folder, *pack(learner))


def load(
    folder: str | os.PathLike[str],
    *,
    device: str = "auto",
    settings: dict[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """The learner saved in `folder`, ready to predict or to learn on. `settings` override those it was saved with.

    `net` is the network of a learner that was given one of the user's own: its structure, the weights are saved
    (but `gdumb` and `joint` begin every task from those that it is brought with).
    """
    tensors, state = store.read(folder)
    return unpack(folder, tensors, state, device=device, settings=settings, callback=callback, net=net)


def pack(learner: Learner) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything needed to go on: network, memory, position, unfinished stage, settings, seconds."""
    learner._must_be_ready()
    slots = learner.memory.slots
    tensors: dict[str, Tensor] = {f"net.{name}": t for name, t in learner.net.state_dict().items()}
    tensors |= {f"flight.{name}": t for name, t in learner.flight.items()}
    tensors |= {f"specialist.{name}": t for name, t in learner.specialist.state_dict().items()}
    tensors["memory.pixels"] = learner.memory.pixels[: slots.size]
    for name in OPTIONAL_TENSORS:
        if getattr(learner.memory, name) is not None:
            tensors[f"memory.{name}"] = getattr(learner.memory, name)[: slots.size]
    tensors |= {f"slots.{name}": torch.from_numpy(getattr(slots, name)) for name in (*INTEGER_FIELDS, "weight")}
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
        "slots": {"count": slots.count, "seen": slots.seen, "clock": slots.step},
        "seconds": dict(learner.clock.seconds),
        "notes": learner.notes,
        "threads": torch.get_num_threads(),
        "network": None if learner.own_net is None else learner.own_net.describe(),
    }
    return tensors, state


def unpack(
    folder: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    *,
    device: str = "auto",
    settings: dict[str, Any] | None = None,
    callback: Callback | None = None,
    net: nn.Module | None = None,
) -> Learner:
    """The learner that `pack` took apart; `folder` is named in what is said of a state that makes no sense."""
    from itl.learner import Learner

    try:
        own = _own_net(folder, state["network"], net)
        facts = (state["method"], state["buffer"], state["seed"], state["classes"])
        try:
            _must_agree(Learner(*facts, settings=state["settings"], net=own), tensors, state)
        except UserError as error:
            raise ValueError(str(error)) from None
        both = {**state["settings"], **flatten(settings or {})}
        learner = Learner(*facts, settings=both, device=device, callback=callback, net=own)
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in state["traits"].items()}
        learner._set_up(state["stream"], tuple(state["shape"]), Traits(**kept), state["outputs"])
        _restore(learner, tensors, state)
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(f"the model folder {folder} does not fit this itl: {store.reason(error)}") from error
    return learner


def same_threads(learner: Learner) -> None:
    """Go on with as many CPU threads as before the interruption: sums that are shared out otherwise differ in bits."""
    if learner.threads is not None and learner.engine.device.type == "cpu":
        torch.set_num_threads(max(1, min(learner.threads, MOST_THREADS)))


def _own_net(folder: str | os.PathLike[str], saved: Any, net: nn.Module | None) -> ModuleAdapter | None:
    """The user's own network again, as it was given when the learner was made."""
    if saved is None and net is None:
        return None
    if saved is None:
        raise UserError(f"the learner in {folder} has a network of itl's own; load it without net=")
    if net is None:
        raise UserError(f"the learner in {folder} has a network of yours, a {saved['class']}; load it with net=")
    net = net.module if isinstance(net, ModuleAdapter) else net  # wrapped already, as a learner takes it
    return ModuleAdapter(net, saved["classifier"], [str(layer) for layer in saved["last"]])


def _must_agree(learner: Learner, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Refuse sizes that the tensors there do not have, before anything of those sizes is made."""
    pixels, outputs = tensors["memory.pixels"], state["outputs"]
    held, shape = list(pixels.shape[:1]), list(pixels.shape[1:])
    if shape != state["shape"] or len(shape) != 3 or pixels.dtype != torch.uint8:
        raise ValueError(f"memory.pixels is {pixels.dtype} {list(pixels.shape)}, not uint8 of shape {state['shape']}")
    if held not in ([state["buffer"]], [0]):
        raise ValueError(f"a memory of {held[0]} images, not {state['buffer']}")
    if type(outputs) is not int or outputs < 1:
        raise ValueError(f"there are no {outputs} outputs")
    with torch.device("meta"):  # no memory is asked for
        net = learner.network(learner.settings_on(state["stream"]).net, shape[0], outputs)
    shapes = {name: t.shape for name, t in net.state_dict().items()}
    if shapes != {name: t.shape for name, t in _under(tensors, "net.").items()}:
        what = state["settings"]["net.name"] if learner.own_net is None else learner.own_net.describe()["class"]
        raise ValueError(f"the weights there are not those of a {what} with {outputs} outputs")
    if not all(0 <= int(column) < outputs for task in state["tasks"] for column in task):
        raise ValueError(f"a task has classes beyond the {outputs} outputs")


def _restore(learner: Learner, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    from itl.learner import STAGES

    device, memory = learner.engine.device, learner.memory
    learner.net.load_state_dict(_under(tensors, "net."))
    learner.flight = {name: t.to(device) for name, t in _under(tensors, "flight.").items()}
    learner.specialist.load_state_dict(
        {name: t.to(device) for name, t in _under(tensors, "specialist.").items()}, learner.net
    )
    _fill(memory.pixels[: memory.size], tensors["memory.pixels"], "memory.pixels")
    if "memory.edits" in tensors:
        memory.edits = torch.zeros(memory.pixels.shape, device=device)
    for name in OPTIONAL_TENSORS:
        if getattr(memory, name) is not None:
            _fill(getattr(memory, name)[: memory.size], tensors[f"memory.{name}"], f"memory.{name}")
    slots: dict[str, Any] = {name: int(value) for name, value in state["slots"].items()}
    slots["step"] = slots.pop("clock")  # the key in saved folders
    for name in INTEGER_FIELDS:
        array = torch.empty(memory.size, dtype=torch.int64)
        _fill(array, tensors[f"slots.{name}"], f"slots.{name}")
        slots[name] = array.numpy()
    slots["weight"] = np.ones(memory.size, np.float32)  # a model saved before there were weights
    if "slots.weight" in tensors:
        _fill(torch.from_numpy(slots["weight"]), tensors["slots.weight"], "slots.weight")
    memory.slots = Slots(**slots)
    if not 0 <= memory.slots.count <= memory.size or min(memory.slots.seen, memory.slots.step) < 0:
        raise ValueError(f"{memory.slots.count} images in a memory of {memory.size}")
    if len(memory.labels) and not 0 <= memory.labels.min() <= memory.labels.max() < state["outputs"]:
        raise ValueError(f"the memory holds images of classes beyond the {state['outputs']} outputs")
    learner.tasks = [tuple(int(column) for column in task) for task in state["tasks"]]
    stage, rounds = state["position"]
    if stage not in STAGES or not 0 <= int(rounds) <= MOST_ROUNDS:
        raise ValueError(f"there is no round {rounds} of a stage '{stage}'")
    learner.position = (str(stage), int(rounds))
    learner.threads = int(state["threads"])
    learner.clock.seconds.update({str(part): float(spent) for part, spent in state["seconds"].items()})
    learner.notes = dict(state["notes"])
    learner.take_up_generalist()


def _fill(place: Tensor, saved: Tensor, name: str) -> None:
    """Copy what was saved to where it belongs; unlike `copy_` alone, a tensor of another shape is refused."""
    if saved.shape != place.shape:
        raise ValueError(f"{name} is {list(saved.shape)}, not {list(place.shape)}")
    place.copy_(saved)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
