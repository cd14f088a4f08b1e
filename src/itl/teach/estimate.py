"""How long a learn would take and how much memory: one step is timed, and the steps are counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from itl import nets
from itl.engine.device import choose_engine
from itl.settings import Settings

TRIES = 2  # steps timed, after one to warm up


@dataclass(frozen=True)
class Estimate:
    """Seconds, and bytes of main (or, on a GPU, device) memory beside what PyTorch itself takes."""

    seconds: float
    bytes: int
    device: str


def estimate(
    lessons: Sequence[tuple[Settings, int]], size: int, classes: int, buffer: int, device: str, begun: bool
) -> Estimate:
    """For lessons (settings, images) of `size` pixels with a memory of `buffer`, which holds images if `begun`.

    An image costs the same in every stage, but half in the tangent's, which trains the last layers only.
    """
    first = lessons[0][0]
    engine = choose_engine(device, first.precision)
    net = engine.place(nets.build(first.net.name, classes, width=first.net.width, strided=first.net.strided))
    batch = first.specialist.batch
    seconds, activations = _step(net, torch.zeros(batch, 3, size, size, device=engine.device))
    total, seen = 0.0, buffer if begun else 0
    for settings, count in lessons:
        s, g, p = settings.specialist, settings.tangent, settings.projection
        passes = min(s.epochs * count, (s.steps or 1 << 40) * s.batch)
        replayed = s.replay * s.draws / s.batch if settings.memory.policy != "none" and seen else 0
        total += passes * (1 + replayed)
        seen += count
        stored = min(buffer, seen)
        if settings.generalist != "none":
            total += (g.epochs * stored if g.steps is None else g.steps * g.batch) / 2
        if settings.projects:
            total += p.epochs * stored if p.steps is None else p.steps * p.batch
    weights = sum(parameter.numel() for parameter in net.parameters())
    pixels = 3 * size * size * (max(count for _, count in lessons) + buffer)
    return Estimate(total * seconds / batch, 16 * weights + 2 * activations + pixels, str(engine.device))


def _step(net: nn.Module, x: Tensor) -> tuple[float, int]:
    """Seconds of a training step over `x` `[n, c, h, w]`, and bytes of its activations."""
    held = 0

    def count(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal held
        if isinstance(output, Tensor):
            held += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in net.modules() if not list(module.children())]
    net(x).sum().backward()
    for hook in hooks:
        hook.remove()
    times = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        net(x).sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times), held
