"""`Learner`: learns tasks one after another with one network and a memory of past images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from itl import generalists, metrics, nets, presets
from itl.callbacks.base import Callback
from itl.checkpoint.learner_state import LearnerState
from itl.engine.concurrency import CAPTURE_GATE
from itl.engine.image_pool import ImagePool
from itl.engine.keyed_random import torch_generator
from itl.engine.stage import Diverged
from itl.engine.stepper import Stepper
from itl.errors import UserError
from itl.features import FeatureExtractor
from itl.generalists import Generalist
from itl.learner import validation
from itl.learner.builder import Configuration, SavedNetwork, backbone_overrides, build_components
from itl.learner.inference import compute_logits, label_outputs, task_scores
from itl.learner.inputs import ImageData, LabelData, images_to_predict, task_for
from itl.learner.stage_state import StageState
from itl.learner.stages import (
    grow_for_task,
    image_pool,
    make_projection_stage,
    make_specialist_stage,
    make_training_stage,
    memory_context,
    run_stage,
    select_memory,
    task_context,
    weights_before_half_pipe,
)
from itl.learner.state import get_state
from itl.learner.timer import SectionTimer
from itl.replay import LabeledSource
from itl.settings import Settings, flatten
from itl.streams import Images, Stream, Task, Traits


class Learner:
    """Learns tasks one after another with one network and a memory of past images.

    A learner is the training algorithm in memory: it takes images of one shape, and labels that are class names or the
    numbers of the classifier's outputs. `itl.Model` wraps a learner for applications: a folder on disk with class
    names, an image size to which every picture is resized, a history and undo. Its learner is `Model.learner`.

    Every random draw is determined by `seed` and the position in the stream.

    Args:
        method: Name of a method (`itl methods` lists them).
        buffer: Size of the memory in images.
        seed: Seed of every random draw.
        classes: Number of outputs of the classifier, fixed as in the benchmark. None lets it grow with the classes.
        settings: Values by dotted name that override the method's defaults on the stream of the first task.
        device: "auto", "cpu", "cuda" or "cuda:N".
        callback: Called during training; combine several in a `CallbackList`.
        net: Module to train in place of the network that the settings name. Its classifier and layers are detected; an
            `itl.nets.ModuleAdapter` names them.
        backbone: Name of a backbone, pre-trained if there are weights for it: one that `itl backbones` lists,
            `timm:NAME`, `torchvision:NAME`, or `MODULE:FUNCTION` for a function that returns a torch module. Sets the
            `net` settings that suit it; `settings` override them.

    Raises:
        UserError: The method or a setting does not exist, or the buffer's size is negative.

    Attributes:
        tasks: Classes of each task that was started.
        class_names: Class names in the order of the classifier's outputs, if labels were names; else None.
        position: Stage of the current task and the number of its completed rounds; ("done", 0) between tasks.
        stage_state: Tensors that an unfinished stage needs in addition to network and memory.
        notes: JSON data of the caller, saved with the learner.
        threads: Number of CPU threads when the learner was saved; None if it was not loaded.
    """

    def __init__(
        self,
        method: str = "itl",
        buffer: int = 200,
        seed: int = 0,
        classes: int | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        callback: Callback | None = None,
        net: nn.Module | None = None,
        backbone: str | None = None,
    ) -> None:
        presets.get(method)
        if buffer < 0:
            raise UserError(f"the buffer's size must not be negative, not {buffer}")
        self.method, self.buffer, self.seed, self.classes = method, buffer, seed, classes
        self.device, self.own_net = device, nets.as_adapter(net)
        self.overrides = backbone_overrides(backbone, self.own_net, flatten(settings or {}))
        self.settings: Settings = self.configuration.default_settings()
        self.callback = callback or Callback()
        self.timer = SectionTimer()
        self.tasks: list[tuple[int, ...]] = []
        self.position: tuple[str, int] = ("done", 0)
        self.stage_state = StageState()
        self.notes: dict[str, Any] = {}
        self.class_names: list[str] | None = None
        self.threads: int | None = None
        self.is_built = False  # whether network and memory exist
        self._inside_round = False  # weights, memory and position are inconsistent within a round
        self._generalist: Generalist | None = None
        self._last_generalist: Generalist | None = None
        self._stepper_cache: dict[str, Stepper] = {}  # reused at the next task if the stage has not changed
        self._past_data: list[LabeledSource] = []  # images of earlier tasks, for methods that train on all of them
        self._pool_cache: tuple[Images, ImagePool] | None = None

    def __repr__(self) -> str:
        classes = len({column for task in self.tasks for column in task})
        counts = f"buffer={self.buffer}, seed={self.seed}, tasks={len(self.tasks)}, classes={classes}"
        return f"Learner(method={self.method!r}, {counts}, position={self.position})"

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and pickles, without caches that only save time at the next task."""
        return {**self.__dict__, "_last_generalist": None, "_stepper_cache": {}}

    # ------------------------------------------------------------------ Algorithm 1

    def learn(self, task: Task | ImageData, labels: LabelData | None = None) -> None:
        """Learn a task.

        A learner that was stopped within a round (by divergence, an interrupt or any error) is inconsistent: `learn`
        and `save` raise. Load its last saved state instead.

        Args:
            task: A task of a stream; or uint8 images `[n, h, w]`, `[n, h, w, c]` or `[n, c, h, w]`, a list of Pillow
                images, or a torch `Dataset` or `DataLoader` of images and labels. Images may also be floats from 0
                to 1.
            labels: Labels `[n]` of the images: the classifier's outputs as integers, or class names, of which new ones
                are new classes. None for a task, a `Dataset` or a `DataLoader`.

        Raises:
            UserError: The task does not fit the learner, or the loss is not finite.
        """
        self.check_consistent()
        task, names = task_for(self, task, labels)
        self._start_task(task)
        self.class_names = names
        with self.engine.activate():
            try:
                self._train_specialist(task)  # p_t = argmin L(f_{t-1}; B_{t-1} ∪ D_t)
                self._update_memory(task)  # B_t = B_{t-1} ⊕ D_t
                self._half_pipe(task)  # redraw the classifier
                self._learn_generalist()  # w_t = argmin L(p_t + V(w); B_t)
                self._project(task)  # f_t = π(p_t + V(w_t); B_t)
            except Diverged as error:
                raise UserError(validation.explain_divergence(self.settings, len(self.tasks), error)) from error
        self._finish_task()

    def _train_specialist(self, task: Task) -> None:
        if self.position[0] == "specialist":
            if self.specialist.optimizes:
                run_stage(self, make_training_stage(self, task), "specialist")
            self.position = ("closing", 0)
        if self.position[0] == "closing":
            if (phase := self.specialist.closing_phase()) is not None:
                run_stage(self, make_specialist_stage(self, phase), "specialist")
            self.position = ("memory", 0)

    def _update_memory(self, task: Task) -> None:
        if self.position[0] != "memory":
            return
        with self.timer.section("memory"), CAPTURE_GATE.eager():
            if self.specialist.data != "memory":
                select_memory(self)
            self.specialist.on_task_end()
        self.position = ("generalist", 0)
        self.callback.on_memory_update(self, task)

    def _half_pipe(self, task: Task) -> None:
        """Redraw the classifier and build the generalist at that point, or restore an interrupted one."""
        if self.settings.generalist == "none" or self.position[0] not in ("generalist", "projection"):
            return
        if self.position != ("generalist", 0):
            self._restore_generalist(task.traits)
            return
        with CAPTURE_GATE.eager():
            if not self.stage_state.before_half_pipe:  # already saved if interrupted after the half-pipe
                self.stage_state.before_half_pipe = weights_before_half_pipe(self)
            context = memory_context(self, task.traits)
            generalists.prepare(self.net, context)
            self._generalist = generalists.build(self.net, context, self._last_generalist)

    def _restore_generalist(self, traits: Traits) -> None:
        with CAPTURE_GATE.eager():
            self._generalist = generalists.restore(self.net, memory_context(self, traits), self.stage_state.generalist)

    def _learn_generalist(self) -> None:
        if self._generalist is None or self.position[0] != "generalist":
            return
        run_stage(self, self._generalist.stage, "tangent")
        self._last_generalist = self._generalist
        self.stage_state.generalist = self._generalist.tensors()
        self.position = ("projection", 0)

    def _project(self, task: Task) -> None:
        if self._generalist is None or self.position[0] != "projection":
            return
        if not self.settings.projects:
            if self.settings.generalist == "tangent":  # a tangent model leaves no weights: restore the specialist's
                self.net.load_state_dict(self.stage_state.before_half_pipe, strict=False)
            return
        stage = make_projection_stage(self, task, self._generalist)
        self._generalist = None  # from here on the network itself is evaluated
        run_stage(self, stage, "projection")

    # ------------------------------------------------------------------ predictions and scores

    def evaluate(self, stream: Stream | Task | ImageData, labels: LabelData | None = None) -> metrics.Scores:
        """Class-IL and Task-IL accuracy in percent.

        Args:
            stream: A stream, whose test images of every task are evaluated; or anything that `learn` takes as a task.
            labels: Labels `[n]` if `stream` is images, as for `learn`.

        Returns:
            The accuracies of each task and their means over the tasks learned so far.

        Raises:
            UserError: The learner has learned nothing yet, or the images have another shape.
        """
        if isinstance(stream, Stream):
            return self.scores(stream.tasks, [task.test for task in stream])
        self._check_built()
        task, _ = task_for(self, stream, labels, "evaluate")
        return self.scores([task], [task.test if len(task.test) else task.train])

    def scores(self, tasks: Sequence[Task], images: Sequence[Images]) -> metrics.Scores:
        """Class-IL and Task-IL accuracy of each task on the given images, in one pass over all of them.

        Args:
            tasks: The tasks, whose classes define the Task-IL accuracy.
            images: Images and labels to evaluate, for each task.
        """
        logits = self.logits(Images.join(images), remember=True).split([len(task_images) for task_images in images])
        return task_scores(self, logits, tasks, images)

    def predict(self, images: Images | ImageData) -> np.ndarray:
        """Most probable label of each image.

        Args:
            images: Images in any form that `learn` takes; labels of a `Dataset` or `DataLoader` are ignored.

        Returns:
            Labels int64 `[n]`, or class names if the labels were names.
        """
        return label_outputs(self, np.asarray(self.predict_proba(images).argmax(1)))

    def predict_proba(self, images: Images | ImageData) -> np.ndarray:
        """Probability of each class for each image.

        Args:
            images: Images in any form that `learn` takes; labels of a `Dataset` or `DataLoader` are ignored.

        Returns:
            Probabilities float32 `[n, outputs]`.
        """
        return np.asarray(self.logits(images_to_predict(images)).softmax(1).cpu().numpy())

    def logits(self, images: Images, remember: bool = False) -> Tensor:
        """Logits `[n, outputs]`, on the CPU, of the model of the current stage: specialist, tangent model or expert.

        Args:
            images: The images.
            remember: Keep their features, if the network has a frozen trunk: they will be evaluated again.
        """
        self._check_built()
        validation.check_shape("these images", images, self.image_shape)
        return compute_logits(self, images, remember)

    @property
    def extractor(self) -> FeatureExtractor | None:
        """Computes and caches the features of a frozen trunk; None if the whole network is trained."""
        return self.normalize if isinstance(self.normalize, FeatureExtractor) else None

    @property
    def is_expert(self) -> bool:
        """Whether the network holds the generalist's weights rather than the specialist's."""
        s = self.settings
        leaves_weights = s.generalist in ("full", "linear") or s.projects
        return s.generalist != "none" and leaves_weights and self.position[0] in ("projection", "done")

    # ------------------------------------------------------------------ saved state

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the learner in a model folder. The previous state stays until the new one is complete.

        Args:
            folder: The folder; it is created if it does not exist.

        Raises:
            UserError: The learner has learned nothing, was stopped within a round, or the folder cannot be written.
        """
        self.check_consistent()
        self.get_state().write(folder)

    def get_state(self) -> LearnerState:
        """Everything needed to continue: network, memory, position, unfinished stage, settings and timings."""
        self._check_built()
        return get_state(self)

    def check_consistent(self) -> None:
        """Raise `UserError` if training was stopped within a round, which leaves weights and memory inconsistent."""
        if self._inside_round:
            raise UserError("this learner was stopped in the middle of its training; load its last saved state")

    # ------------------------------------------------------------------ construction

    @property
    def configuration(self) -> Configuration:
        """Arguments that determine the learner's components."""
        arguments = (self.method, self.buffer, self.seed, self.classes)
        return Configuration(*arguments, self.overrides, self.device, self.own_net)

    def prepare(self, task: Task) -> None:
        """Build network and memory for the stream of `task`, without training."""
        if not self.is_built:
            channels, height, width = task.train.source.shape[1:]
            self._build(task.stream, (channels, height, width), task.traits, self.classes or max(task.classes) + 1)

    def _build(
        self,
        stream: str,
        shape: tuple[int, int, int],
        traits: Traits,
        outputs: int,
        saved: SavedNetwork | None = None,
    ) -> None:
        components = build_components(self.configuration, stream, shape, traits, outputs, saved)
        self.stream, self.traits, self.image_shape = stream, traits, shape
        self.backbone = components.backbone
        self.settings, self.specialist, self.engine = components.settings, components.specialist, components.engine
        self.normalize, self.net, self.memory = components.normalize, components.net, components.memory
        self.is_built = True

    def _check_built(self) -> None:
        if not self.is_built:
            raise UserError("this learner has learned nothing yet; call learn first")

    def recall(self, tasks: Sequence[Task]) -> None:
        """Provide the earlier tasks to a loaded learner whose method trains on all of them (`joint`)."""
        if self.is_built and self.specialist.data == "all":
            self._past_data = [(image_pool(self, task.train), task.train.labels.numpy()) for task in tasks]

    def check_memory(self, classes: int) -> None:
        """Raise `UserError` if the memory is too small for `classes` classes and the settings do not allow that."""
        validation.check_memory_size(self.settings.memory, self.memory.size, classes)

    # ------------------------------------------------------------------ tasks and stages

    def _start_task(self, task: Task) -> None:
        """Start a task, or continue it if it is unfinished."""
        self.prepare(task)
        is_new = self.position[0] == "done"
        validation.check_task(self, task, is_new)
        if is_new:
            grow_for_task(self, task)
            self.tasks.append(task.classes)
            self.position = ("specialist", 0)
        self.specialist.context = task_context(self, task)
        if self.position[0] in ("specialist", "closing", "memory"):
            self.memory.begin_task(len(task.train), self.stage_state.candidates)
        if is_new:
            if self.specialist.resets_network:
                self.net.reinitialize(torch_generator(*self._key(), "network"))
            with CAPTURE_GATE.eager():
                if self.specialist.data == "memory":
                    select_memory(self)
                self.specialist.on_task_start()

    def _finish_task(self) -> None:
        self.stage_state, self._generalist = StageState(), None
        self.position = ("done", 0)
        if self.is_expert:
            self.specialist.on_generalist_end(self.net)
        if self.specialist.data == "all":
            self._past_data.append((self.specialist.context.pool, self.specialist.context.labels))
        with self.timer.section("evaluation"):
            self.callback.on_task_end(self)

    def _key(self) -> tuple[int, int]:
        return (self.seed, len(self.tasks))
