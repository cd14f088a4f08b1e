"""How long a learn would take and how much memory: steps are timed, and counted."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from itl import nets
from itl.engine.device import AT_ONCE, choose_engine
from itl.learner.stage_estimate import GENERALIST, estimate_stages
from itl.settings import Settings

TRIES = 3  # steps timed, after one to warm up
COST = {"specialist": 1.0, GENERALIST: 0.5, "projection": 1.5}  # of an image: last layers only; a second model is asked
LATER = 128 << 20  # bytes of main memory that a run takes beside its data: libraries loaded at their first use


@dataclass(frozen=True)
class Estimate:
    """Seconds, and bytes: of main memory for the whole process, or of a GPU's beside what PyTorch itself takes."""

    seconds: float
    bytes: int
    device: str


def estimate(
    lessons: Sequence[tuple[Settings, int]], size: int, classes: int, buffer: int, held: int, device: str
) -> Estimate:
    """For lessons (settings, images) of `size` pixels with a memory of `buffer`, which holds `held` images.

    A step costs something by itself and something for each image: steps of two sizes tell both.
    """
    first = lessons[0][0]
    engine = choose_engine(device, first.precision)
    net = engine.to_device(nets.build(first.net.name, classes, width=first.net.width, strided=first.net.strided))
    batch = first.specialist.batch
    small, activations = _step(net, torch.zeros(batch, 3, size, size, device=engine.device))
    large, _ = _step(net, torch.zeros(2 * batch, 3, size, size, device=engine.device))
    each = max(large - small, small / 4) / batch
    alone = max(small - each * batch, 0.0)
    seconds, stored = 0.0, held
    for task, (settings, count) in enumerate(lessons, 1):
        before, stored = stored, min(buffer, stored + count)
        for leg in estimate_stages(settings, task, count, before, stored):
            seconds += leg.steps * (alone + each * leg.images * COST[leg.stage])
    weights = sum(parameter.numel() for parameter in net.parameters())
    pixels = 3 * size * size * (max(count for _, count in lessons) + buffer)
    at_once = max(2 * batch, min(AT_ONCE, stored) // 2)  # images whose activations are there together
    data = 16 * weights + activations * at_once // batch + pixels
    return Estimate(seconds, data + (_resident() + LATER if engine.device.type == "cpu" else 0), str(engine.device))


def _resident() -> int:
    """Bytes of main memory that this process has had at most; it has loaded and done much of what a learn does."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _step(net: nn.Module, x: Tensor) -> tuple[float, int]:
    """Seconds of a training step over `x` `[n, c, h, w]`, and bytes of its activations."""
    held = 0

    def count(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal held
        if isinstance(output, Tensor):
            held += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in net.modules() if not list(module.children())]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    net(x).sum().backward()
    for hook in hooks:
        hook.remove()
    times = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        net(x).sum().backward()
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times), held
