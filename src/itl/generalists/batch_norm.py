"""Batch-norm statistics at which the generalist starts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from itl.engine.keyed_random import generator
from itl.generalists.context import MemoryContext
from itl.nets import Net

BATCH_SIZE = 256  # images per batch
MAX_BATCHES = 64  # enough for any memory; a small one has one batch per view


def statistics_layers(net: nn.Module) -> dict[str, nn.Module]:
    """Batch-norm layers with running statistics that are trained, by name."""
    return {
        name: layer
        for name, layer in net.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        and layer.track_running_stats
        and (layer.weight is None or layer.weight.requires_grad)
    }


@torch.no_grad()
def estimate_statistics(net: Net, context: MemoryContext) -> None:
    """Replace the running statistics of batch norm by their mean over batches of augmented views of the memory.

    The specialist's running statistics are dominated by the last task; those of the memory are balanced over classes.
    The result does not depend on the statistics before, so a repetition gives the same network.
    """
    layers = list(statistics_layers(net).values())
    momenta = [layer.momentum for layer in layers]
    training = net.training
    net.eval()
    for layer in layers:
        layer.train()
    for count, images in enumerate(islice(_batches(context), MAX_BATCHES), 1):
        for layer in layers:
            layer.momentum = 1 / count  # type: ignore[assignment]  # the running values become the mean over batches
        with context.engine.autocast():
            net(context.normalize(images))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    net.train(training)


def _batches(context: MemoryContext) -> Iterator[Tensor]:
    """Augmented views of the memory in batches of equal size, each with images of all classes."""
    memory, size = context.memory, min(BATCH_SIZE, len(context.memory))
    for view in range(context.settings.tangent.views):
        rng = generator(*context.key, "batch norm", view)
        rows = torch.from_numpy(rng.permutation(len(memory)))
        draws = context.augment.draw(rng, len(rows))
        for first in range(0, len(rows) - size + 1, size):
            part = slice(first, first + size)
            yield context.augment(memory.gather(rows[part]), draws[part])
