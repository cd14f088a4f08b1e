"""Default settings for teaching: a network that suits the image size and the device, epochs that suit the data."""

from __future__ import annotations

from typing import Any

from itl.apps.model import Model
from itl.apps.teaching.options import TeachingOptions
from itl.engine.device import choose_engine
from itl.nets import backbone_settings
from itl.presets import settings_for
from itl.settings import Settings

UNSTRIDED_MAX_SIZE = 24  # pixels: up to this image size a CPU network needs no strided stem
LARGE_IMAGE_SIZE = 96  # pixels: from this image size on, a deeper network or a strided stem
SPECIALIST_STEPS, MEMORY_STEPS = 300, 200  # target number of steps of the specialist, and of each stage on the memory
SPECIALIST_EPOCHS, MEMORY_EPOCHS = (5, 100), (10, 60)  # minimum and maximum number of epochs
BATCH_SIZE = 32
MIN_LAST_BATCH = 8  # images: batch norm over fewer images is unreliable
CPU_LEARNING_RATE = 0.03  # small networks learn well at a higher rate than the paper's, which is for a ResNet-18
CPU_LEARNING_RATE_METHODS = ("itl", "itl-na")
MIN_MEMORY_PER_CLASS = 10  # images: the memory grows to hold this many of each class, unless `buffer` is given
USER_SETTINGS_NOTE = "own settings"  # key in `Learner.notes`: settings chosen by the user, kept for later lessons


def new_model_settings(options: TeachingOptions, size: int, images: int) -> dict[str, Any]:
    """Return a new model's settings for a first lesson of `images` images; the user's own settings take precedence."""
    gpu = choose_engine(options.device).device.type == "cuda"
    method, buffer = options.method_or_default, options.buffer_or_default
    if options.backbone is None:
        network = default_network(size, gpu, options.weights is not None)
        small = method in CPU_LEARNING_RATE_METHODS and not gpu
        network |= {"specialist.lr": CPU_LEARNING_RATE} if small else {}
    else:
        network = {**backbone_settings(options.backbone), "net.size": None}  # the model's images have the right size
        network |= {"net.strided": True} if options.weights is not None else {}
    defaults = {
        **network,
        "memory.outgrown": "grow",
        "memory.least": MIN_MEMORY_PER_CLASS if options.buffer is None else 1,
    }
    settings = settings_for(method, None, buffer, {**defaults, **options.settings})
    return {**defaults, **lesson_settings(images, min(images, buffer), settings), **options.settings}


def lesson_settings(images: int, stored: int, settings: Settings) -> dict[str, int]:
    """Return epochs and batch sizes for a lesson of `images` images with `stored` images in memory afterwards."""
    specialist = _epochs(SPECIALIST_STEPS, images, settings.specialist.batch, SPECIALIST_EPOCHS)
    on_memory = _epochs(MEMORY_STEPS, stored, settings.tangent.batch, MEMORY_EPOCHS)
    return {
        "specialist.epochs": specialist,
        "specialist.batch": batch_size(images),
        **{f"{stage}.epochs": on_memory for stage in ("tangent", "projection")},
        **{f"{stage}.batch": batch_size(stored) for stage in ("tangent", "projection")},
    }


def batch_size(images: int) -> int:
    """Return a batch size of at most 32 whose last batch in an epoch is not too small for batch norm."""
    sizes = range(BATCH_SIZE, BATCH_SIZE // 2, -1)
    return next((size for size in sizes if not 0 < images % size < MIN_LAST_BATCH), BATCH_SIZE)


def default_network(size: int, gpu: bool, pretrained: bool) -> dict[str, Any]:
    """Return a new model's network settings: one that a CPU trains in minutes, or the paper's ResNet-18 on a GPU.

    Files of pretrained weights usually hold a standard ResNet-18.
    """
    if pretrained:
        return {"net.name": "resnet18", "net.strided": True}
    if gpu:
        return {"net.name": "resnet18", "net.strided": size >= LARGE_IMAGE_SIZE}
    name = "resnet8" if size < LARGE_IMAGE_SIZE else "resnet10"
    return {"net.name": name, "net.width": 16, "net.strided": size > UNSTRIDED_MAX_SIZE}


def user_settings(model: Model) -> dict[str, Any]:
    """Return the settings that the user chose in earlier calls; after a `resize` the memory grows only if it must."""
    resized = {"memory.least": 1} if any(entry["what"] == "resize" for entry in model.history) else {}
    return {**resized, **model.learner.notes.get(USER_SETTINGS_NOTE, {})}


def _epochs(steps: int, images: int, batch: int, bounds: tuple[int, int]) -> int:
    """Return the number of epochs that makes about `steps` steps, within bounds."""
    steps_per_epoch = max(1, -(-images // batch))
    return min(bounds[1], max(bounds[0], -(-steps // steps_per_epoch)))
