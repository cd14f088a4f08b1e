"""Estimate the time and memory of teaching, by counting training steps and timing a few."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from itl import nets
from itl.engine.device import INFERENCE_BATCH, Engine, choose_engine
from itl.learner.stage_estimate import GENERALIST, StageEstimate, estimate_stages
from itl.settings import Network, Settings

FEATURE_BATCH = 8  # images of the timed forward pass through a frozen trunk
TIMED_STEPS = 2  # after one step to warm up
TIMED_BATCH, TIMED_CLASSES = 16, 10  # images and outputs of the timed steps
# Cost of an image relative to the specialist: a generalist trains the last layers only, a projection runs two models.
RELATIVE_IMAGE_COST = {"specialist": 1.0, GENERALIST: 0.5, "projection": 1.5}
LAZY_LIBRARY_BYTES = 128 << 20  # main memory for libraries that are loaded when training starts


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of teaching.

    Attributes:
        seconds: Training time.
        bytes: Main memory of the whole process, or GPU memory without what PyTorch itself takes.
        device: The device that this is for.
    """

    seconds: float
    bytes: int
    device: str


@dataclass(frozen=True)
class Speed:
    """Speed of training steps: a step takes a constant time plus a time per image.

    Attributes:
        per_step: Seconds per step.
        per_image: Seconds per image.
        activations: Bytes of the activations of one image.
    """

    per_step: float
    per_image: float
    activations: float

    def seconds(self, stage: StageEstimate) -> float:
        """Return the time of a stage."""
        return stage.steps * (self.per_step + self.per_image * stage.images * RELATIVE_IMAGE_COST[stage.stage])


@lru_cache
def measure_speed(net: Network, precision: str | None, size: int, device: str) -> Speed:
    """Time training steps of two batch sizes on blank images of `size` x `size` pixels, once for each network."""
    engine = choose_engine(device, precision)
    module, size = _build(net, TIMED_CLASSES, engine), net.size or size
    single, activations = _measure_step(module, torch.zeros(TIMED_BATCH, 3, size, size, device=engine.device))
    double, _ = _measure_step(module, torch.zeros(2 * TIMED_BATCH, 3, size, size, device=engine.device))
    per_image = max(double - single, single / 4) / TIMED_BATCH
    return Speed(max(single - per_image * TIMED_BATCH, 0.0), per_image, activations / TIMED_BATCH)


def _build(net: Network, classes: int, engine: Engine) -> nn.Module:
    return engine.to_device(nets.build(net.name, classes, width=net.width, strided=net.strided))


def estimate_cost(
    lessons: Sequence[tuple[Settings, int]], size: int, classes: int, buffer: int, stored: int, device: str
) -> CostEstimate:
    """Estimate the cost of lessons.

    Args:
        lessons: Settings and number of training images of each lesson.
        size: Width and height of the images.
        classes: Number of classes.
        buffer: Size of the memory.
        stored: Number of images in memory now.
        device: Name of the device.
    """
    first = lessons[0][0]
    engine = choose_engine(device, first.precision)
    net = _build(first.net, classes, engine)
    process = _peak_memory() + LAZY_LIBRARY_BYTES if engine.device.type == "cpu" else 0
    weights = sum(parameter.numel() for parameter in net.parameters())
    pixels = 3 * size * size * (max(count for _, count in lessons) + buffer)
    if first.net.trained is not None:  # training on cached features takes much less time than computing them
        side = first.net.size or size
        per_image = _measure_features(net, torch.zeros(FEATURE_BATCH, 3, side, side, device=engine.device))
        seconds = per_image * sum(count for _, count in lessons)
        return CostEstimate(seconds, 16 * weights + pixels + process, str(engine.device))
    speed = measure_speed(first.net, first.precision, size, device)
    seconds = 0.0
    for task, (settings, count) in enumerate(lessons, 1):
        before, stored = stored, min(buffer, stored + count)
        seconds += sum(speed.seconds(stage) for stage in estimate_stages(settings, task, count, before, stored))
    # Number of images whose activations are in memory at once.
    concurrent_images = max(2 * first.specialist.batch, min(INFERENCE_BATCH, stored) // 2)
    data = 16 * weights + int(speed.activations * concurrent_images) + pixels
    return CostEstimate(seconds, data + process, str(engine.device))


@torch.no_grad()
def _measure_features(net: nn.Module, x: Tensor) -> float:
    """Return the seconds per image of a forward pass on `x` `[n, c, h, w]`."""
    net.eval()(x)
    start = time.perf_counter()
    net(x)
    return (time.perf_counter() - start) / len(x)


def _peak_memory() -> int:
    """Return this process's peak main memory in bytes: it has already loaded most of what teaching needs."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _measure_step(net: nn.Module, x: Tensor) -> tuple[float, int]:
    """Return the seconds of a training step on `x` `[n, c, h, w]` and the bytes of its activations."""
    activations = 0

    def count(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal activations
        if isinstance(output, Tensor):
            activations += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in net.modules() if not list(module.children())]
    momenta = [(parameter, torch.zeros_like(parameter)) for parameter in net.parameters()]
    net(x).sum().backward()
    for hook in hooks:
        hook.remove()
    times = []
    for _ in range(TIMED_STEPS):
        start = time.perf_counter()
        net(x).sum().backward()
        _update(momenta)
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times), activations


@torch.no_grad()
def _update(momenta: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
    """Compute an SGD update with momentum and learning rate 0. An optimizer of PyTorch takes seconds to import."""
    for parameter, momentum in momenta:
        if parameter.grad is not None:
            parameter.sub_(momentum.mul_(0.9).add_(parameter.grad), alpha=0.0)
