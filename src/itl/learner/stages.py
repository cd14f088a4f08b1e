"""Runs the stages of a task and builds their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from itl.engine.concurrency import CAPTURE_GATE
from itl.engine.image_pool import ImagePool, ImageSource
from itl.engine.keyed_random import generator, torch_generator
from itl.engine.loop import train
from itl.engine.stage import Stage
from itl.errors import UserError
from itl.generalists import (
    Generalist,
    MemoryContext,
    TangentLearning,
    exact_projection_stage,
    projection_stage,
    statistics_layers,
    teacher_scale,
)
from itl.learner.builder import build_augment
from itl.learner.early_stopping import ConvergenceMonitor
from itl.replay import ReplayRoundPlanner, phase_data, specialist_stage
from itl.specialists import Phase, TaskContext
from itl.streams import Images, Task, Traits

if TYPE_CHECKING:
    from itl.learner.learner import Learner


TEACHER_SCALE = "teacher_scale"  # name among the tensors of an unfinished stage


def grow_for_task(learner: Learner, task: Task) -> None:
    """Make classifier and memory large enough for the classes of a new task."""
    classes = len({column for known in (*learner.tasks, task.classes) for column in known})
    learner.check_memory(classes)
    settings = learner.settings.memory
    if settings.policy != "none" and settings.outgrown == "grow":
        learner.memory.grow(classes * settings.least)
        learner.buffer = max(learner.buffer, learner.memory.size)
    outputs = max(learner.net.classifier.out_features, max(task.classes) + 1)
    learner.net.grow_classifier(outputs, torch_generator(learner.seed, "outputs", outputs))
    learner.memory.grow_logits(outputs)


def image_pool(learner: Learner, images: Images) -> ImagePool:
    """Images on the device; with a frozen trunk, references to their features, which are computed now."""
    extractor, engine = learner.extractor, learner.engine
    if extractor is None:
        return ImagePool(images, len(images), engine)
    extractor.progress = lambda done, total: learner.callback.on_features(learner, done, total or done)
    with learner.timer.section("features"), CAPTURE_GATE.eager():
        references = Images(extractor.add(images), images.labels)
    extractor.progress = None
    return ImagePool(references, len(images), engine)


def task_pool(learner: Learner, task: Task) -> ImagePool:
    """Images of the task on the device, cached while the same task is being learned."""
    if learner._pool_cache is None or learner._pool_cache[0] is not task.train:
        learner._pool_cache = (task.train, image_pool(learner, task.train))
    return learner._pool_cache[1]


def task_context(learner: Learner, task: Task) -> TaskContext:
    """Inputs of the specialist for a task."""
    settings, references, pool = learner.settings.augment, learner.extractor is not None, task_pool(learner, task)
    if learner.extractor is not None:
        past = [(source, len(labels)) for source, labels in learner._past_data]
        sources: list[tuple[ImageSource, int]] = [(pool, len(task.train)), (learner.memory, len(learner.memory)), *past]
        with CAPTURE_GATE.eager():
            used = [source.gather(torch.arange(count)).cpu() for source, count in sources]
            learner.extractor.keep_on_device(torch.cat(used))
    return TaskContext(
        net=learner.net,
        memory=learner.memory,
        pool=pool,
        labels=task.train.labels.numpy(),
        tasks=tuple(learner.tasks),
        key=learner._key(),
        augment_task=build_augment(settings, task.traits, settings.task, references),
        augment_memory=build_augment(settings, task.traits, settings.memory, references),
        normalize=learner.normalize,
        engine=learner.engine,
    )


def memory_context(learner: Learner, traits: Traits) -> MemoryContext:
    """Inputs of the generalist."""
    settings = learner.settings
    return MemoryContext(
        memory=learner.memory,
        augment=build_augment(
            settings.augment, traits, settings.augment.generalist_policy, learner.extractor is not None
        ),
        normalize=learner.normalize,
        engine=learner.engine,
        key=learner._key(),
        settings=settings,
    )


def make_specialist_stage(learner: Learner, phase: Phase) -> Stage:
    """Build the stage of a phase of the specialist.

    Raises:
        UserError: The phase trains on all tasks, and the images of some are missing.
    """
    specialist = learner.specialist
    missing = len(learner.tasks) - 1 - len(learner._past_data)
    if phase.data == "all" and missing:
        raise UserError(
            f"{specialist.name} learns from the images of all tasks, and those of {missing} earlier tasks are "
            "missing; pass these tasks to learner.recall first"
        )
    return specialist_stage(ReplayRoundPlanner(specialist, phase, *phase_data(phase, specialist, learner._past_data)))


def make_training_stage(learner: Learner, task: Task) -> Stage:
    """Build the stage of the specialist's training phase, which ends early if the settings say so."""
    stage = make_specialist_stage(learner, learner.specialist.training_phase())
    patience = learner.settings.specialist.patience
    if patience is not None:
        rounds = stage.planner.num_rounds
        stage.monitor = ConvergenceMonitor(learner, task.validation, patience, rounds, stage.summary)
    return stage


def make_projection_stage(learner: Learner, task: Task, generalist: Generalist) -> Stage:
    """Build the stage that distills a generalist into the network, or adds its weights where that is exact.

    The factor of the teacher's logits is kept with the unfinished stage, because the classifier is scaled only once.
    """
    settings, state = learner.settings, learner.stage_state.generalist
    context = memory_context(learner, task.traits)
    if settings.projection.over == "memory":
        data: tuple[ImageSource, int] = (learner.memory, len(learner.memory))
        augment = context.augment
    else:
        data = (task_pool(learner, task), len(task.train))
        augment = build_augment(settings.augment, task.traits, settings.augment.task, learner.extractor is not None)
    with CAPTURE_GATE.eager():
        if settings.projection.teacher_rms is not None and TEACHER_SCALE not in state:
            state[TEACHER_SCALE] = teacher_scale(learner.net, generalist.logits, context)
        scale = state.get(TEACHER_SCALE)
        if isinstance(generalist, TangentLearning) and generalist.is_linear_classifier:
            return exact_projection_stage(learner.net, generalist, scale)
        return projection_stage(learner.net, generalist.logits, context, data, augment, scale)


def run_stage(learner: Learner, stage: Stage, section: str) -> None:
    """Train a stage from the learner's position to its end, with callbacks; its time counts toward `section`."""
    state, timer = learner.stage_state, learner.timer
    learner.callback.on_stage_start(learner, stage)

    def after_round(index: int, loss: float, momentum: dict[str, Tensor]) -> None:
        learner.position = (learner.position[0], index + 1)
        state.momentum = momentum
        if stage.monitor is not None:
            state.monitor = stage.monitor.tensors()
        if learner._generalist is not None:
            state.generalist = learner._generalist.tensors()
        if learner.memory.candidates is not None:
            state.candidates = learner.memory.candidates.tensors()
        learner._inside_round = False
        with timer.section("evaluation"):
            learner.callback.on_round_end(learner, stage, stage.planner.epochs_done(index), loss)
        learner._inside_round = True

    if not learner.net.supports_fused_paths:
        _adapt_to_module(learner, stage)
    if learner.extractor is not None and learner.extractor.resident is None:
        stage.capturable = False  # a step would wait for features from the host
    if stage.monitor is not None and state.monitor:
        stage.monitor.load_tensors(state.monitor)
    with timer.section(section):
        learner._inside_round = True
        start, steppers = learner.position[1], learner._stepper_cache
        train(
            stage,
            learner.engine,
            start=start,
            momentum=state.momentum,
            on_round_end=after_round,
            stepper_cache=steppers,
        )
        learner._inside_round = False
    state.momentum, state.monitor = {}, {}
    with timer.section("evaluation"):
        learner.callback.on_stage_end(learner, stage)


def _adapt_to_module(learner: Learner, stage: Stage) -> None:
    """For a user's module or layers after a frozen trunk: no fused paths, frozen layers stay, dropout is seeded."""
    stage.capturable = stage.capturable and learner.net.capturable and stage.name != "tangent"
    stage.net = None
    stage.parameters = {name: p for name, p in stage.parameters.items() if p.requires_grad}
    stage.round_seed = lambda index: torch_generator(*learner._key(), stage.name, index, "network").initial_seed()


def select_memory(learner: Learner) -> None:
    """Update the memory by a policy that selects samples at the end of a task."""
    rng, context = generator(learner.seed, len(learner.tasks), "memory"), learner.specialist.context
    outputs = learner.net.classifier.out_features
    learner.memory.end_task(context.pool, context.labels, context.task, outputs, rng, context.model_outputs())
    learner.stage_state.candidates = {}


def weights_before_half_pipe(learner: Learner) -> dict[str, Tensor]:
    """Copies of the tensors that the half-pipe or a method's `on_generalist_start` replaces; calls the latter."""
    before = {name: tensor.clone() for name, tensor in learner.net.state_dict().items()}
    replaced = learner.specialist.on_generalist_start(learner.net)
    changed = [learner.net.classifier_name]
    if learner.settings.tangent.statistics == "memory":
        changed += statistics_layers(learner.net)
    prefixes = tuple(f"{name}." for name in changed)
    return {name: tensor for name, tensor in before.items() if replaced or name.startswith(prefixes)}
