"""Default settings for teaching: a network that suits the image size and the device, training to convergence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from itl import specialists
from itl.apps.model import Model
from itl.apps.teaching.estimate import measure_speed
from itl.apps.teaching.options import DEFAULT_MINUTES, TeachingOptions
from itl.engine.device import choose_engine
from itl.errors import UserError
from itl.learner.stage_estimate import estimate_stages, images_per_epoch
from itl.nets import backbone_settings, fixed_input_size
from itl.presets import settings_for
from itl.settings import MAX_COUNT, Settings, build, flatten
from itl.specialists.er_balanced import ERBalanced

UNSTRIDED_MAX_SIZE = 48  # pixels: up to this image size a CPU network needs no strided stem
LARGE_IMAGE_SIZE = 96  # pixels: from this image size on, a deeper network or a strided stem
SPECIALIST_STEPS, MEMORY_STEPS = 600, 200  # target number of steps of the specialist, and of each stage on the memory
SPECIALIST_EPOCHS, MEMORY_EPOCHS = (60, 150), (2, 60)  # minimum and maximum number of epochs
PATIENCE_STEPS, PATIENCE_EPOCHS = 200, (4, 30)  # target number of steps without progress, bounds in epochs
MIN_TRAINING_SHARE = 0.5  # of the time for a lesson, at least this is for the new images, the rest for the memory
BATCH_SIZE = 32
MIN_REMAINDER = 8  # images: batch norm over fewer images is unreliable
CPU_LEARNING_RATE = 0.03  # small networks learn well at a higher rate than the paper's, which is for a ResNet-18
FOLDER_METHODS = ("itl", "itl-na")  # methods whose rate and specialist are chosen here
BALANCED_SPECIALIST = "er-balanced"  # better alone than before a generalist, see benchmarks/results/own-images
PREVIOUS_NETWORK_COST = 4 / 3  # relative time of a step with one more forward pass; a backward pass takes two
GENERALIST_SETTINGS = ("generalist", "half_pipe", "project", "tangent.", "projection.", "design")  # prefixes
MIN_MEMORY_PER_CLASS = 10  # images: the memory grows to hold this many of each class, unless `buffer` is given
USER_SETTINGS_NOTE = "own settings"  # key in `Learner.notes`: settings chosen by the user, kept for later lessons


@dataclass(frozen=True)
class LessonSize:
    """What the training of a lesson depends on.

    Attributes:
        images: Number of training images.
        before: Number of images in memory before the lesson.
        buffer: Size of the memory.
        pixels: Width and height of the images.
        has_new_classes: Whether some of its classes are new.
    """

    images: int
    before: int
    buffer: int
    pixels: int
    has_new_classes: bool = True

    @property
    def after(self) -> int:
        """Number of images in memory after the lesson."""
        return min(self.buffer, self.before + self.images)


def new_model_settings(options: TeachingOptions, lesson: LessonSize) -> dict[str, Any]:
    """Return a new model's settings for its first lesson; the user's own settings take precedence."""
    fixed = fixed_settings(options, lesson)
    settings = settings_for(options.method_or_default, None, lesson.buffer, fixed)
    return {**training_settings(lesson, settings, options.settings, options, None), **fixed}


def fixed_settings(options: TeachingOptions, lesson: LessonSize) -> dict[str, Any]:
    """Return the settings of a new model that do not depend on its lessons, and the user's own settings."""
    gpu = choose_engine(options.device).device.type == "cuda"
    method, own = options.method_or_default, options.settings
    if options.backbone is None:
        network = default_network(lesson.pixels, gpu, options.weights is not None)
        small = method in FOLDER_METHODS and not gpu
        network |= {"specialist.lr": CPU_LEARNING_RATE} if small else {}
        network |= {"net.weights": os.fspath(options.weights)} if options.weights is not None else {}
    else:
        network = backbone_settings(options.backbone, options.weights)
        network["net.size"] = fixed_input_size(options.backbone)  # otherwise the model's images have the right size
        if options.weights is not None or not network.get("net.pretrained"):
            network["net.strided"] = default_network(lesson.pixels, gpu, options.weights is not None)["net.strided"]
    balanced = method in FOLDER_METHODS and own.get("memory.policy", "stratified") == "stratified"
    alone = balanced and not network.get("net.pretrained")
    alone = alone and not any(name.startswith(GENERALIST_SETTINGS) for name in own)
    return {
        **network,
        **({"specialist.name": BALANCED_SPECIALIST} if balanced else {}),
        **({"generalist": "none"} if alone else {}),
        "memory.outgrown": "grow",
        "memory.least": MIN_MEMORY_PER_CLASS if options.buffer is None else 1,
        **own,
    }


def training_settings(
    lesson: LessonSize, settings: Settings, chosen: Mapping[str, Any], options: TeachingOptions, saved: float | None
) -> dict[str, Any]:
    """Return epochs, patience, batch sizes and the maximum number of steps for a lesson.

    Args:
        lesson: The size of the lesson.
        settings: The model's settings.
        chosen: Settings chosen by the user, which take precedence. With a number of epochs, all of them are trained.
        options: The user's options.
        saved: The minutes for a lesson that the user gave earlier, or None.
    """
    defaults = {**lesson_settings(lesson, settings), "specialist.steps": None}
    if "specialist.epochs" in chosen:
        defaults["specialist.patience"] = None
    timed = "specialist.epochs" not in chosen or options.minutes is not None
    if timed and settings.net.trained is None and specialists.build(settings.specialist).optimizes:
        seconds = 60 * (options.minutes or saved or DEFAULT_MINUTES)
        built = build(flatten(settings.model_dump()), defaults, chosen)
        defaults["specialist.steps"] = steps_within(seconds, built, lesson, options.device)
    return defaults


def lesson_settings(lesson: LessonSize, settings: Settings) -> dict[str, int | None]:
    """Return the maximum number of epochs, the patience and the batch sizes for a lesson."""
    count = images_per_epoch(settings, lesson.images, lesson.before)
    batch = batch_size(count)
    on_memory = _epochs(MEMORY_STEPS, lesson.after, settings.tangent.batch, MEMORY_EPOCHS)
    return {
        "specialist.epochs": _epochs(SPECIALIST_STEPS, count, batch, SPECIALIST_EPOCHS),
        "specialist.patience": _epochs(PATIENCE_STEPS, count, batch, PATIENCE_EPOCHS),
        "specialist.batch": batch,
        **{f"{stage}.epochs": on_memory for stage in ("tangent", "projection")},
        **{f"{stage}.batch": batch_size(lesson.after) for stage in ("tangent", "projection")},
    }


def steps_within(seconds: float, settings: Settings, lesson: LessonSize, device: str) -> int:
    """Return the number of steps on the new images for which this time suffices, besides the stages on the memory.

    It is at most what the setting `specialist.steps` allows.
    """
    speed = measure_speed(settings.net, settings.precision, lesson.pixels, device)
    task = 2 if lesson.before else 1
    training, *others = estimate_stages(settings, task, lesson.images, lesson.before, lesson.after)
    left = max(seconds - sum(speed.seconds(stage) for stage in others), MIN_TRAINING_SHARE * seconds)
    needed = speed.seconds(training) * (PREVIOUS_NETWORK_COST if _uses_previous_network(settings, lesson) else 1.0)
    return min(MAX_COUNT, max(1, int(left * training.steps / needed)))


def _uses_previous_network(settings: Settings, lesson: LessonSize) -> bool:
    """Whether each training step also computes the predictions of the network before the lesson."""
    specialist = specialists.build(settings.specialist)
    return not lesson.has_new_classes and isinstance(specialist, ERBalanced) and specialist.options.consistency > 0


def batch_size(images: int) -> int:
    """Return a batch size of at most 32 whose last batch in an epoch is not too small for batch norm."""
    sizes = range(BATCH_SIZE, BATCH_SIZE // 2, -1)
    return next((size for size in sizes if not 0 < images % size < MIN_REMAINDER), BATCH_SIZE)


def default_network(size: int, gpu: bool, pretrained: bool) -> dict[str, Any]:
    """Return a new model's network settings: one that a CPU trains in minutes, or the paper's ResNet-18 on a GPU.

    Files of pre-trained weights usually hold a standard ResNet-18.
    """
    if pretrained:
        return {"net.name": "resnet18", "net.strided": True}
    if gpu:
        return {"net.name": "resnet18", "net.strided": size >= LARGE_IMAGE_SIZE}
    name = "resnet8" if size < LARGE_IMAGE_SIZE else "resnet10"
    return {"net.name": name, "net.width": 16, "net.strided": size > UNSTRIDED_MAX_SIZE}


def user_settings(model: Model) -> dict[str, Any]:
    """Return the settings that the user chose in earlier calls; after a `resize` the memory grows only if it must.

    Raises:
        UserError: If the folder contains something else.
    """
    resized = {"memory.least": 1} if any(entry["what"] == "resize" for entry in model.history) else {}
    saved = model.learner.notes.get(USER_SETTINGS_NOTE, {})
    if not isinstance(saved, dict):
        raise UserError(
            f"the model folder {model.path} is damaged: the saved settings are not a mapping; "
            f"restore an earlier state: itl undo {model.path}"
        )
    return {**resized, **saved}


def _epochs(steps: int, images: int, batch: int, bounds: tuple[int, int]) -> int:
    """Return the number of epochs that makes about `steps` steps, within bounds."""
    steps_per_epoch = max(1, -(-images // batch))
    return min(bounds[1], max(bounds[0], -(-steps // steps_per_epoch)))
