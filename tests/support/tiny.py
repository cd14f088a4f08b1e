"""Small streams, networks and learners for tests: 8x8 synthetic images, width 4, a few steps per stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from itl import Learner, nets, streams
from itl.callbacks.base import Callback
from itl.nets import ResNet
from itl.nets.resnet import BasicBlock
from itl.streams import Stream

TINY: dict[str, Any] = {
    "net.name": "resnet8",
    "net.width": 4,
    "specialist.epochs": 2,
    "specialist.batch": 8,
    "specialist.replay": 8,
    "specialist.lr": 0.05,
    "tangent.epochs": 2,
    "tangent.batch": 4,
    "projection.epochs": 2,
    "projection.batch": 4,
    "projection.lr": 0.01,
}
ONE_BLOCK = "one-block"  # the network of `tiny_learner`: a third of resnet8's layers


def _one_block(*, classes: int, channels: int, width: int | None, strided: bool) -> ResNet:
    return ResNet(BasicBlock, (1,), width or 4, classes, channels, strided)


nets.register(nets.Backbone(ONE_BLOCK, "one residual block", _one_block))

METHOD_SETTINGS: dict[str, dict[str, Any]] = {  # methods whose additional stages would take minutes
    "co2l": {
        "specialist__options__first_epochs": 2,
        "specialist__options__probe_epochs": 2,
        "specialist__options__probe_batch": 8,
        "specialist__options__probe_lr": 0.1,
        "specialist__options__width": 8,
    }
}


def tiny_images(classes: int = 4, each: int = 10, channels: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 `[n, channels, 8, 8]`, and shuffled labels `[n]`: one pattern per class, with noise."""
    patterns = np.random.default_rng(99).integers(0, 160, (classes, channels, 8, 8))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), each))
    noise = rng.integers(0, 96, (len(labels), channels, 8, 8))
    return (patterns[labels] + noise).astype(np.uint8), labels


def images_of(classes: list[int], each: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of some of six classes."""
    images, labels = tiny_images(6, each, seed=seed)
    chosen = np.isin(labels, classes)
    return images[chosen], labels[chosen]


def tiny_stream(classes: int = 4, tasks: int = 2, each: int = 10, channels: int = 1, **options: Any) -> Stream:
    """A stream of `tasks` tasks with `each` training images and 6 test images per class."""
    train, test = tiny_images(classes, each, channels), tiny_images(classes, 6, channels, seed=1)
    options = {"flip": False, "padding": 1, "layout": "NCHW", **options}
    return streams.from_arrays(*train, *test, tasks=tasks, **options)


def tiny_learner(
    method: str = "itl",
    buffer: int = 8,
    classes: int | None = 4,
    seed: int = 0,
    callback: Callback | None = None,
    **settings: Any,
) -> Learner:
    """A learner for `tiny_stream`; a double underscore in the name of a setting stands for a dot."""
    changes = {
        name.replace("__", "."): value for name, value in {**METHOD_SETTINGS.get(method, {}), **settings}.items()
    }
    settings = {**TINY, "net.name": ONE_BLOCK, **changes}
    return Learner(method, buffer, seed, classes, settings=settings, device="cpu", callback=callback)


def tiny_net(classes: int = 3, channels: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> ResNet:
    """A network of width 4 in evaluation mode, with batch-norm statistics from some data."""
    net = nets.build("resnet8", classes, channels=channels, width=4, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for k in range(5):
            net(torch.randn(16, channels, 8, 8, generator=torch.Generator().manual_seed(100 + k)))
    return net.to(dtype).eval()


def learner_snapshot(learner: Learner) -> dict[str, Tensor]:
    """A copy of the state that affects further training (all but batch norm's batch counters)."""
    size, memory = learner.memory.size, learner.memory
    snapshot = {f"net.{n}": t.clone() for n, t in learner.net.state_dict().items() if not n.endswith("_tracked")}
    snapshot["pixels"] = memory.pixels[:size].clone()
    snapshot["weight"] = torch.from_numpy(memory.slots.weight.copy())
    if memory.logits is not None:
        snapshot["logits"] = memory.logits[:size].clone()
    for name in ("label", "task", "row", "written", "width"):
        snapshot[name] = torch.from_numpy(getattr(memory.slots, name).copy())
    snapshot["counters"] = torch.tensor([memory.slots.count, memory.slots.seen, memory.slots.step])
    return snapshot


def assert_slots_hold_their_images(learner: Learner, stream: Stream) -> None:
    """Check that every filled slot has the raw image and the label of its row in its task."""
    slots = learner.memory.slots
    for slot in range(slots.count):
        source = stream.tasks[slots.task[slot]].train
        row = torch.tensor([int(slots.row[slot])])
        assert torch.equal(learner.memory.pixels[slot], source.gather(row)[0])
        assert slots.label[slot] == source.labels[row]


def differing_keys(a: dict[str, Tensor], b: dict[str, Tensor]) -> set[str]:
    """The names of the tensors in which two snapshots differ."""
    return {name for name in a.keys() | b.keys() if name not in a or name not in b or not torch.equal(a[name], b[name])}


def count_calls(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one entry with every further call of `owner.name`."""
    calls: list[int] = []
    function = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: (calls.append(1), function(*args, **kwargs))[1])
    return calls


class Interrupted(Exception):
    """Simulates the end of the process."""


class LambdaCallback(Callback):
    """Calls `function(event, learner, stage, epoch)` for every event; `epoch` is 0 except at the end of a round."""

    def __init__(self, function: Callable[[str, Learner, Any, int], None]) -> None:
        self.function = function

    def on_stage_start(self, learner: Learner, stage: Any) -> None:
        self.function("on_stage_start", learner, stage.name, 0)

    def on_round_end(self, learner: Learner, stage: Any, epoch: int, loss: float) -> None:
        self.function("on_round_end", learner, stage.name, epoch)

    def on_stage_end(self, learner: Learner, stage: Any) -> None:
        self.function("on_stage_end", learner, stage.name, 0)

    def on_memory_update(self, learner: Learner, task: Any) -> None:
        self.function("on_memory_update", learner, None, 0)

    def on_task_end(self, learner: Learner) -> None:
        self.function("on_task_end", learner, None, 0)
