"""Settings that suit a lesson where the user says nothing: a network for the images, epochs for their number."""

from __future__ import annotations

from typing import Any

from itl.apps.model import Model
from itl.apps.teaching.options import TeachingOptions
from itl.engine.device import choose_engine
from itl.presets import settings_for
from itl.settings import Settings

SMALL, LARGE = 24, 96  # pixels: below, no stride is needed; from here on, a larger network with the strided stem
STEPS = (300, 200)  # of the specialist, and of a stage on the memory: about so many, whatever the number of images …
EPOCHS = (5, 100)  # … within these bounds for the specialist
ON_MEMORY = (10, 60)  # … and these for what is learned on the memory
BATCH, LAST = 32, 8  # images of a batch, and of a pass's last one at least: batch norm over four still errs at times
GENTLE = ("itl", "itl-na")  # methods whose rate is the paper's for a large network: small ones take a larger step
LEAST_OF_A_CLASS = 10  # images: a memory that cannot hold so many of each class grows, unless told otherwise
OWN = "own settings"  # in the learner's notes: what the user has set, which later lessons keep to


def for_new(options: TeachingOptions, size: int, images: int) -> dict[str, Any]:
    """A new model's settings for a first lesson of so many `images` of `size` pixels, the user's own on top."""
    fast = choose_engine(options.device).device.type == "cuda"
    suits = {
        **network(size, fast, options.weights is not None),
        **({"specialist.lr": 0.03} if options.way in GENTLE and not fast else {}),
        "memory.outgrown": "grow",
        "memory.least": LEAST_OF_A_CLASS if options.buffer is None else 1,
    }
    first = settings_for(options.way, None, options.room, {**suits, **options.settings})
    return {**suits, **for_lesson(images, min(images, options.room), first), **options.settings}


def for_lesson(images: int, stored: int, settings: Settings) -> dict[str, int]:
    """How many epochs to learn `images` for, with so many `stored` in memory afterwards; and in what batches."""
    on_memory = _about(STEPS[1], stored, settings.tangent.batch, ON_MEMORY)
    specialist = _about(STEPS[0], images, settings.specialist.batch, EPOCHS)
    return {
        "specialist.epochs": specialist,
        "specialist.batch": batch_of(images),
        **{f"{stage}.epochs": on_memory for stage in ("tangent", "projection")},
        **{f"{stage}.batch": batch_of(stored) for stage in ("tangent", "projection")},
    }


def batch_of(images: int) -> int:
    """A batch size, 32 or a little less, that leaves no handful of images for the last batch of a pass."""
    sizes = range(BATCH, BATCH // 2, -1)
    return next((size for size in sizes if not 0 < images % size < LAST), BATCH)


def network(size: int, fast: bool, weights: bool) -> dict[str, Any]:
    """A new model's network: one that a processor trains in minutes, or (`fast`) the paper's for a GPU.

    With weights to start from it is the usual ResNet-18, which is what such files hold.
    """
    if weights:
        return {"net.name": "resnet18", "net.strided": True}
    if fast:
        return {"net.name": "resnet18", "net.strided": size >= LARGE}
    return {"net.name": "resnet8" if size < LARGE else "resnet10", "net.width": 16, "net.strided": size > SMALL}


def own_settings(model: Model) -> dict[str, Any]:
    """What the user has set in earlier calls; one who has resized the memory himself wants it so, if it can be."""
    resized = {"memory.least": 1} if any(entry["what"] == "resize" for entry in model.history) else {}
    return {**resized, **model.learner.notes.get(OWN, {})}


def _about(steps: int, images: int, batch: int, bounds: tuple[int, int]) -> int:
    """Epochs that make about so many steps."""
    a_pass = max(1, -(-images // batch))
    return min(bounds[1], max(bounds[0], -(-steps // a_pass)))
