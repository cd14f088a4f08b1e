"""Settings that suit a lesson where the user says nothing: a network for the images, epochs for their number."""

from __future__ import annotations

from typing import Any

SMALL, LARGE = 24, 96  # pixels: below, no stride is needed; from here on, the strided stem of large images
STEPS = (300, 200)  # of the specialist, and of a stage on the memory: about so many, whatever the number of images …
EPOCHS = (5, 100)  # … within these bounds for the specialist
ON_MEMORY = (10, 60)  # … and these for what is learned on the memory
GENTLE = {"itl", "itl-na"}  # methods with momentum: small networks take a larger step


def network(size: int, fast: bool, weights: bool) -> dict[str, Any]:
    """A new model's network: one that a processor trains in minutes, or (`fast`) the paper's for a GPU.

    With weights to start from it is the usual ResNet-18, which is what such files hold.
    """
    if weights:
        return {"net.name": "resnet18", "net.strided": True}
    if fast:
        return {"net.name": "resnet18", "net.strided": size >= LARGE}
    name, width = ("resnet8", 16) if size < LARGE else ("resnet10", 16)
    return {"net.name": name, "net.width": width, "net.strided": size > SMALL}


def epochs(images: int, memory: int, batch: int, on_memory: int) -> dict[str, int]:
    """How long to learn `images`, with so many in memory afterwards, in steps of `batch` and of `on_memory`."""
    stages = _about(STEPS[1], memory, on_memory, ON_MEMORY)
    specialist = _about(STEPS[0], images, batch, EPOCHS)
    return {"specialist.epochs": specialist, "tangent.epochs": stages, "projection.epochs": stages}


def rates(method: str, fast: bool) -> dict[str, float]:
    """Learning rates that differ from the method's own."""
    return {"specialist.lr": 0.03} if method in GENTLE and not fast else {}


def _about(steps: int, images: int, batch: int, bounds: tuple[int, int]) -> int:
    a_pass = max(1, -(-images // batch))
    return min(bounds[1], max(bounds[0], -(-steps // a_pass)))
