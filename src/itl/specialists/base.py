"""The interface of a replay method: which batches it draws, its loss, and a few hooks. It never loops over batches."""

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
from itl.engine.image_pool import ImageSource
from itl.engine.keyed_random import Key
from itl.engine.stage import OptimizerConfig
from itl.memory import Memory, ModelOutputs
from itl.method_catalog import Defaults, StreamDefaults
from itl.nets import Net
from itl.settings import OPTIONS, Momentum, SettingsGroup, SpecialistSettings, validate
from itl.specialists.model_copies import restore_copy
from itl.specialists.weight_average import WeightAverage

TrainingData = Literal["task", "memory", "both", "all"]


@dataclass
class Batch:
    """The samples of one step, either of the task or of one draw from memory.

    Attributes:
        x: Augmented, normalized images `[n, c, h, w]`, float.
        y: Labels `[n]`, int64.
        stored_logits: Logits `[n, classes]`. In a replay batch: those stored with the samples. In the task batch: set
            by a loss that stores other logits than `outputs`.
        logit_widths: How many columns of `stored_logits` were known when they were stored `[n]`; None if all were.
        slots: Memory slots `[n]`. In a replay batch: where the samples are stored. In the task batch: where they will
            be written, as far as that is planned; the memory's size means nowhere.
        weights: The samples' weights `[n]`, if the memory policy assigns weights.
        updated_logits: Set by the loss to replace `stored_logits` in memory `[n, classes]`.
        outputs: Set by the loss: the network's logits for this batch `[n, classes]`, detached. Memories that store
            logits, or select samples by loss, need them.
        extra_views: `num_views - 1` further augmentations of the same images, each `[n, c, h, w]`.
        extra: Task batch only: the arrays that `draw_inputs` returned, for this step. `after_step` may add results
            here that a memory policy needs.
        raw: Task batch only: uint8 images before augmentation, if the memory policy selects samples within the step.
        lookups: Task batch only: raw images and labels of the task, for the names in `lookup_inputs`.
    """

    x: Tensor
    y: Tensor
    stored_logits: Tensor | None = None
    logit_widths: Tensor | None = None
    slots: Tensor | None = None
    weights: Tensor | None = None
    updated_logits: Tensor | None = None
    outputs: Tensor | None = None
    extra_views: tuple[Tensor, ...] = ()
    extra: dict[str, Tensor] = field(default_factory=dict)
    lookups: dict[str, LabeledImages] = field(default_factory=dict)
    raw: Tensor | None = None


@dataclass(frozen=True)
class LabeledImages:
    """Raw images `x` `[n, c, h, w]`, uint8, and their labels `y` `[n]`."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class TaskContext:
    """Everything a specialist can use while it learns a task.

    Attributes:
        net: The network.
        memory: The memory.
        pool: The task's images.
        labels: Their labels `[n]`.
        tasks: The output columns of each task so far; the current task is the last.
        key: (seed, number of the task, from 1): the start of the key of every random draw.
        augment_task: Augmentation of the task's images.
        augment_memory: Augmentation of replayed images.
        normalize: Maps uint8 images, or references to their features, to the network's input.
        engine: Device, precision and capture settings.
    """

    net: Net
    memory: Memory
    pool: ImageSource
    labels: np.ndarray
    tasks: tuple[tuple[int, ...], ...]
    key: Key
    augment_task: Augment
    augment_memory: Augment
    normalize: Callable[[Tensor], Tensor]
    engine: Engine

    @property
    def task(self) -> int:
        """Index of the current task, from 0."""
        return len(self.tasks) - 1

    @property
    def classes(self) -> tuple[int, ...]:
        """Output columns of the current task."""
        return self.tasks[-1]

    @property
    def past_classes(self) -> tuple[int, ...]:
        """Output columns of the previous tasks, without duplicates."""
        return tuple(dict.fromkeys(c for task in self.tasks[:-1] for c in task))

    @cached_property
    def seen_mask(self) -> Tensor:
        """Mask of the outputs that belong to the current or a previous task: bool `[outputs]`."""
        return self.class_mask([*self.past_classes, *self.classes])

    @cached_property
    def task_mask(self) -> Tensor:
        """Mask of the outputs that belong to the current task: bool `[outputs]`."""
        return self.class_mask(self.classes)

    @cached_property
    def past_columns(self) -> Tensor:
        """`past_classes` as a tensor on the device: int64 `[k]`."""
        return self.engine.send(torch.tensor(self.past_classes, dtype=torch.int64))

    def class_mask(self, classes: Sequence[int]) -> Tensor:
        """Mask of the outputs that belong to `classes`: bool `[outputs]`, on the device."""
        chosen = torch.zeros(self.net.classifier.out_features, dtype=torch.bool)
        chosen[list(classes)] = True
        return self.engine.send(chosen)

    def model_outputs(self) -> ModelOutputs:
        """Features and logits of the task's and the memory's raw images, from the current network in eval mode."""
        return ModelOutputs(self._forward, self.pool, len(self.labels), self.memory, len(self.memory))

    @torch.no_grad()
    def _forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        training = self.net.training
        self.net.eval()
        with CAPTURE_GATE.eager(), self.engine.autocast():
            features = self.net.features(self.normalize(images))
            logits = self.net.classifier(features)
        self.net.train(training)
        return features, logits


@dataclass(frozen=True)
class Phase:
    """One optimization of a specialist.

    Attributes:
        name: Stage name; part of the key of every random draw.
        data: What an epoch iterates over: the task, the memory, both as one dataset, or all tasks so far.
        epochs: Number of epochs.
        batch_size: Samples per step, replayed ones not counted.
        optimizer: Learning rate, momentum, weight decay and schedule.
        loss: `loss(net, batch, replay_batches)` returns a scalar.
        parameters: The tensors to optimize, by name.
        steps: Upper bound on the number of steps; None for no bound.
        balanced: Draw every class equally often, with replacement.
        stratified: Draw every class equally often, and no image of a class again before all of them were drawn.
        training: Whether the network is in training mode.
        replays: Whether steps take batches from memory, and an online memory policy writes.
        augmented: Whether the images are augmented.
    """

    name: str
    data: TrainingData
    epochs: int
    batch_size: int
    optimizer: OptimizerConfig
    loss: Callable[[nn.Module, Batch, tuple[Batch, ...]], Tensor]
    parameters: dict[str, Tensor]
    steps: int | None = None
    balanced: bool = False
    stratified: bool = False
    training: bool = True
    replays: bool = True
    augmented: bool = True


class Options(SettingsGroup):
    """A method's own settings (`specialist.options.*`), as a pydantic model; this one has no fields."""


class WeightAverageOptions(Options):
    """`average`: decay of a moving average of the weights, 0 for none; 0.999 averages about a thousand steps."""

    average: Momentum = 0.0


class Specialist:
    """Base class of the methods that train on a task with replay.

    Most methods implement `loss` only. Tensors that a step changes, besides the network and the stored logits, must be
    listed in `mutable_tensors`. Everything that later steps or tasks need must be in `model_copies` (copies of the
    network) or in `state_dict`. The hooks are defined in the order in which they are called.

    Attributes:
        name: The method's name in settings.
        summary, reference, defaults, stream_defaults, based_on, note: The method's description and default settings,
            see `itl.method_catalog.MethodInfo`. Literals, not inherited by subclasses.
        Options: Pydantic model of the method's own settings.
        stores_logits: The memory stores logits with the samples.
        stores_logits_at_task_end: They are stored by `on_task_end` instead of step by step.
        needs_memory: The method does not work without a memory.
        required_policy: The only memory policy that the method works with.
        capturable: The step can be captured as a CUDA graph.
        data: What the training phase iterates over, see `Phase`.
        resets_network: Every task starts from a newly initialized network.
        requires_new_classes: No class may occur in two tasks.
        min_trained_layers: The least value of the setting `net.trained`, if the network has a frozen trunk.
        requires_fixed_classes: The number of classes must be known from the start.
        changes_model_at_task_end: `on_task_end` changes what `evaluate_logits` returns.
        num_views: Independent augmentations of each image.
        lookup_inputs: Names in `draw_inputs` that hold rows of the task; their images are in `batch.lookups`.
        optimizes: The method trains by gradient steps on augmented images; otherwise `on_task_end` computes its model.
        exportable: `evaluate_logits` can be traced, so a model of the method can be exported.
        forward_batches: Forward passes of a step, in batches of images; `itl bench` reports them.
        backward_batches: Backward passes of a step, likewise.
        context: The current task; set by the learner.
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
    stores_logits_at_task_end: ClassVar[bool] = False
    needs_memory: ClassVar[bool] = True
    required_policy: ClassVar[str | None] = None
    capturable: ClassVar[bool] = True
    data: ClassVar[TrainingData] = "task"
    resets_network: ClassVar[bool] = False
    requires_new_classes: ClassVar[bool] = False
    min_trained_layers: ClassVar[int] = 1
    requires_fixed_classes: ClassVar[bool] = False
    changes_model_at_task_end: ClassVar[bool] = False
    num_views: ClassVar[int] = 1
    lookup_inputs: ClassVar[tuple[str, ...]] = ()
    optimizes: ClassVar[bool] = True
    exportable: ClassVar[bool] = True
    forward_batches: ClassVar[float] = 2
    backward_batches: ClassVar[float] = 2

    context: TaskContext

    def __init__(self, settings: SpecialistSettings) -> None:
        self.settings = settings
        self.options = validate(self.Options, settings.options, OPTIONS, f"the specialist {settings.name}")
        self.model_copies: dict[str, Net] = {}  # saved with the learner
        decay = self.options.average if isinstance(self.options, WeightAverageOptions) else 0.0
        self.weight_average = WeightAverage(decay)

    @property
    def num_replay_batches(self) -> int:
        """How many independent batches a step draws from memory."""
        return self.settings.draws

    # ------------------------------------------------------------------ task

    def on_task_start(self) -> None:
        """Prepare for the task, for example by copying the network; called once, before the first epoch."""
        self.weight_average.start(self.model_copies, self.context.net)

    def training_phase(self) -> Phase:
        """The training on the task."""
        s = self.settings
        optimizer = OptimizerConfig(s.lr, s.momentum, s.weight_decay / 2, s.schedule)
        parameters: dict[str, Tensor] = dict(self.context.net.named_parameters())
        return Phase("specialist", self.data, s.epochs, s.batch, optimizer, self.loss, parameters, s.steps)

    def closing_phase(self) -> Phase | None:
        """A second training phase before the memory is updated, such as a linear probe; None for none."""
        return None

    def on_task_end(self) -> None:
        """Finish the task; called once, after the memory was updated and before the half-pipe."""

    # ------------------------------------------------------------------ epoch

    def on_epoch_start(self, index: int) -> None:
        """Prepare epoch `index`, before it is planned.

        It is called again when a run resumes within the epoch, so its result must depend on saved state only.
        """
        self.weight_average.on_epoch_start(index, len(self.context.labels), self.settings.batch)

    def draw_inputs(self, rng: np.random.Generator, steps: int, first: int) -> dict[str, np.ndarray]:
        """Everything else that is random, or depends on the step, in an epoch.

        Args:
            rng: Generator for this epoch.
            steps: Number of steps in the epoch.
            first: Number of steps of the whole run before this epoch.

        Returns:
            Arrays `[steps, ...]` by name. Each step's row is in `batch.extra`; for a name in `lookup_inputs`, whose
            array `[steps, k]` holds rows of the task, `batch.lookups` holds images and labels of these k samples.
        """
        return self.weight_average.draw_inputs(steps)

    # ------------------------------------------------------------------ step

    def loss(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> Tensor:
        """The loss of a step.

        Args:
            net: The network.
            batch: Samples of the task. The loss should set `batch.outputs`.
            replay_batches: `num_replay_batches` batches from memory; empty while the memory is empty.

        Returns:
            A scalar.
        """
        raise NotImplementedError

    def transform_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients for the optimizer, given those of the loss, in the order of the phase's parameters."""
        return grads

    @property
    def transforms_gradients(self) -> bool:
        """Whether the class overrides `transform_gradients`."""
        return type(self).transform_gradients is not Specialist.transform_gradients

    def after_step(self, net: nn.Module, batch: Batch, replay_batches: tuple[Batch, ...]) -> None:
        """Act after the optimizer's update; the arguments are those of `loss`."""
        self.weight_average.update(self.model_copies, net, batch.extra)

    def mutable_tensors(self) -> list[Tensor]:
        """Tensors that a step changes in place, besides the network and the stored logits."""
        return self.weight_average.mutable_tensors(self.model_copies)

    # ------------------------------------------------------------------ trained model

    def evaluate_logits(self, net: Net, x: Tensor) -> Tensor:
        """Logits `[n, classes]` to evaluate, for normalized images `x` `[n, c, h, w]` and a network in eval mode."""
        return self.weight_average.model(self.model_copies, net)(x)  # type: ignore[no-any-return]

    def familiarity(self, net: Net, x: Tensor) -> Tensor | None:
        """How much images `x`, as in `evaluate_logits`, resemble those learned `[n]`; None if it is not known."""
        return None

    def on_generalist_start(self, net: Net) -> bool:
        """Copy the evaluated model into `net`, where the generalist starts; return whether `net` changed."""
        return self.weight_average.copy_to(net, self.model_copies)

    def on_generalist_end(self, net: Net) -> None:
        """React to a generalist having turned `net` into the expert, from which the next task starts."""
        self.weight_average.discard(self.model_copies)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to save with the learner."""
        return {f"{name}/{key}": t for name, net in self.model_copies.items() for key, t in net.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor], net: Net) -> None:
        """Restore what `state_dict` returned; `net` is the learner's network."""
        for name in dict.fromkeys(key.partition("/")[0] for key in state if "/" in key):
            own = {key.partition("/")[2]: t for key, t in state.items() if key.startswith(f"{name}/")}
            self.model_copies[name] = restore_copy(net, own)


def concat(*tensors: Tensor) -> Tensor:
    """Concatenate batches, so that one forward pass (and its batch norm) sees them together."""
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]
