"""What a replay method is: what it draws from memory, what its loss is, a few hooks. It never loops over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from itl.augment import Augment
from itl.engine.concurrency import CAPTURE_GATE
from itl.engine.device import Engine
from itl.engine.keyed_random import Key
from itl.engine.normalize import Normalize
from itl.engine.pool import ImageSource
from itl.engine.stage import OptimizerConfig
from itl.memory import Memory, ModelOutputs
from itl.method_catalog import Defaults, StreamDefaults
from itl.nets import Net
from itl.settings import OPTIONS, SettingsGroup, SpecialistSettings, validate
from itl.specialists.model_copies import restore_twin

Over = Literal["task", "memory", "both", "all"]


@dataclass
class Batch:
    """A batch as a method sees it: images `[n, c, h, w]` float, labels `[n]`, logits `[n, classes]` beside them.

    For a batch from memory `logits` are the stored ones (`widths` `[n]`: how many columns they had, None for all),
    `slots` `[n]` says where they lie, `weights` `[n]` what they count for where the memory weighs, and a method may
    leave in `renewed` what is to be stored in their place. For the task's batch a method that stores logits leaves in
    `logits` what is to be stored, `slots` says where, as far as that is planned, and `extra` holds what `inputs` drew
    for the step. In `said` a method leaves what the network said of either `[n, classes]`, for a memory that chooses by
    it, or that stores logits where the method does not. `others` are further views of the same images, where `views`
    asks for them.
    """

    x: Tensor
    y: Tensor
    logits: Tensor | None = None
    widths: Tensor | None = None
    slots: Tensor | None = None
    weights: Tensor | None = None
    renewed: Tensor | None = None
    said: Tensor | None = None
    others: tuple[Tensor, ...] = ()
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskContext:
    """What a specialist stands on while it learns a task.

    `pool` and `labels` `[n]` are the task's images and labels, `tasks` the output columns of each task so far, this one
    the last; `key` is (seed, task from 1), which begins the key of every draw.
    """

    net: Net
    memory: Memory
    pool: ImageSource
    labels: np.ndarray
    tasks: tuple[tuple[int, ...], ...]
    key: Key
    augment_task: Augment
    augment_memory: Augment
    normalize: Normalize
    engine: Engine

    @property
    def task(self) -> int:
        """The task's number, from 0."""
        return len(self.tasks) - 1

    @property
    def classes(self) -> tuple[int, ...]:
        """The task's output columns."""
        return self.tasks[-1]

    @property
    def past(self) -> tuple[int, ...]:
        """Those of the tasks before, each once."""
        return tuple(dict.fromkeys(c for task in self.tasks[:-1] for c in task))

    @cached_property
    def taught(self) -> Tensor:
        """Which of the network's outputs belong to this task or one before: bool `[outputs]`."""
        return self.columns([*self.past, *self.classes])

    @cached_property
    def own(self) -> Tensor:
        """Which belong to this task: bool `[outputs]`."""
        return self.columns(self.classes)

    @cached_property
    def old(self) -> Tensor:
        """The output columns of the tasks before: int64 `[k]`."""
        return self.engine.send(torch.tensor(self.past, dtype=torch.int64))

    def columns(self, classes: Sequence[int]) -> Tensor:
        """Which of the network's outputs are among `classes`: bool `[outputs]`, on the device."""
        chosen = torch.zeros(self.net.classifier.out_features, dtype=torch.bool)
        chosen[list(classes)] = True
        return self.engine.send(chosen)

    def model_outputs(self) -> ModelOutputs:
        """What the present network says of the task's images and of those held, raw and in evaluation mode."""
        return ModelOutputs(self._look, self.pool, len(self.labels), self.memory, len(self.memory))

    @torch.no_grad()
    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        training = self.net.training
        self.net.eval()
        with CAPTURE_GATE.eager(), self.engine.autocast():
            features = self.net.features(self.normalize(images))
            logits = self.net.classifier(features)
        self.net.train(training)
        return features, logits


@dataclass(frozen=True)
class Phase:
    """One optimisation of a specialist: over what, how long, how it descends, by which loss, over which parameters.

    `balanced`: every class is drawn equally often. `training`: whether batch norm learns. `replays`: whether steps
    take batches from memory, and a reservoir writes. `augmented`: whether images are seen in training views.
    """

    name: str
    over: Over
    epochs: int
    batch: int
    optimizer: OptimizerConfig
    loss: Callable[[nn.Module, Batch, tuple[Batch, ...]], Tensor]
    parameters: dict[str, Tensor]
    steps: int | None = None
    balanced: bool = False
    training: bool = True
    replays: bool = True
    augmented: bool = True


class Options(SettingsGroup):
    """A method's own settings (`specialist.options.*`), as a typed part; this one has none."""


class Specialist:
    """A method that trains on a task with replay.

    Most need `loss` alone. Everything a step changes besides the network and the memory's logits is in `changed`,
    everything a later step or task needs in `twins` (copies of the network) or `extra_state`. The hooks are called in
    the order in which they stand here.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    defaults: ClassVar[Defaults] = {}
    stream_defaults: ClassVar[StreamDefaults] = {}
    based_on: ClassVar[str | None] = None
    note: ClassVar[str] = ""
    Options: ClassVar[type[Options]] = Options
    stores_logits: ClassVar[bool] = False
    logits_at_end: ClassVar[bool] = False  # stored in `task_ends`, not step by step
    needs_memory: ClassVar[bool] = True
    needs_policy: ClassVar[str | None] = None  # the only memory policy it can fill
    capturable: ClassVar[bool] = True
    over: ClassVar[Over] = "task"  # its data: the task, the memory, both as one set, or all tasks so far
    restarts: ClassVar[bool] = False  # every task begins with a newly drawn network
    new_classes: ClassVar[bool] = False  # it cannot serve a task whose classes were taught before
    fixed_classes: ClassVar[bool] = False  # it must know the number of classes from the start
    settles: ClassVar[bool] = False  # `task_ends` changes what is evaluated
    views: ClassVar[int] = 1  # independent augmentations of each image
    looks_up: ClassVar[tuple[str, ...]] = ()  # names among `inputs`: rows of the task whose images the loss is to see
    forwards: ClassVar[float] = 2  # batches of images a step sends forward, and back: what its time is measured by
    backwards: ClassVar[float] = 2

    context: TaskContext

    def __init__(self, settings: SpecialistSettings) -> None:
        self.settings = settings
        self.options = validate(self.Options, settings.options, OPTIONS, f"the specialist {settings.name}")
        self.twins: dict[str, Net] = {}  # copies of the network, saved with the learner

    @property
    def draws(self) -> int:
        """How many independent batches from memory a step takes."""
        return self.settings.draws

    # ------------------------------------------------------------------ a task

    def task_starts(self) -> None:
        """Once a task, before its first epoch: take a snapshot of the network."""

    def phase(self) -> Phase:
        """The task's training."""
        s = self.settings
        optimizer = OptimizerConfig(s.lr, s.momentum, s.weight_decay / 2, s.schedule)
        parameters: dict[str, Tensor] = dict(self.context.net.named_parameters())
        return Phase("specialist", self.over, s.epochs, s.batch, optimizer, self.loss, parameters, s.steps)

    def closing(self) -> Phase | None:
        """What is trained after it, before the memory's update: a linear probe, a correction of the outputs."""
        return None

    def task_ends(self) -> None:
        """Once a task, when the memory has taken its samples and before the half-pipe."""

    # ------------------------------------------------------------------ an epoch

    def epoch_starts(self, index: int) -> None:
        """Before epoch `index` is planned. On resuming it is asked again: it must answer from present state alone."""

    def inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """What else is random, or depends on the step, in an epoch: arrays `[steps, ...]`, which the loss sees one by
        one as `now.extra`. `first` counts the steps of the whole run before this epoch. In place of rows `[steps, k]`
        that it `looks_up` the loss sees `name.x`, their raw images `[k, c, h, w]`, and `name.y`, their labels `[k]`.
        """
        return {}

    # ------------------------------------------------------------------ a step

    def loss(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> Tensor:
        """The step's loss on the task's batch and those from memory (none of them while the memory is empty)."""
        raise NotImplementedError

    def gradient(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradient to descend by, given the loss's (in the order of the phase's parameters)."""
        return grads

    @property
    def turns_gradients(self) -> bool:
        """Whether it descends by another gradient than its loss's."""
        return type(self).gradient is not Specialist.gradient

    def after_step(self, net: nn.Module, now: Batch, pasts: tuple[Batch, ...]) -> None:
        """The weights have been updated; `now` and `pasts` are what the loss saw."""

    def changed(self) -> list[Tensor]:
        """What a step changes besides the network and the stored logits."""
        return []

    # ------------------------------------------------------------------ what it has learned

    def logits(self, net: Net, x: Tensor) -> Tensor:
        """What is evaluated, for normalised images in evaluation mode: `[n, classes]`."""
        return net(x)  # type: ignore[no-any-return]

    def hand_over(self, net: Net) -> bool:
        """Make `net` the model that is evaluated: a generalist starts from there. Whether that changed it."""
        return False

    def take_back(self, net: Net) -> None:
        """A generalist has made `net` the expert: the next task begins from it."""

    def extra_state(self) -> dict[str, Tensor]:
        """What must be saved with the learner for the method to go on exactly."""
        return {f"{name}/{key}": t for name, twin in self.twins.items() for key, t in twin.state_dict().items()}

    def restore(self, kept: dict[str, Tensor], net: Net) -> None:
        """Take up what `extra_state` gave."""
        for name in dict.fromkeys(key.partition("/")[0] for key in kept if "/" in key):
            state = {key.partition("/")[2]: t for key, t in kept.items() if key.startswith(f"{name}/")}
            self.twins[name] = restore_twin(net, state)


def join(*tensors: Tensor) -> Tensor:
    """Batches as one, so that one forward (and batch norm) sees them together."""
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]
