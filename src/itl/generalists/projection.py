"""Projected distillation: from the tangent model (θ, w) to the weights θ' of an ordinary network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from itl.augment import Augment
from itl.engine.pool import ImageSource
from itl.engine.stage import Stage, StepInputs
from itl.generalists.context import MemoryContext
from itl.generalists.epochs import SampleRoundPlanner, forward_in_chunks
from itl.generalists.learning import optimizer_config
from itl.nets import Net
from itl.specialists.losses import squared_error


def projection_stage(
    net: Net,
    teacher: Callable[[Tensor], Tensor],
    context: MemoryContext,
    data: tuple[ImageSource, int],
    augment: Augment,
) -> Stage:
    """The stage that minimizes ‖p(θ'; x) − g(w; x)‖² + λ‖θ'‖² over θ', starting at the network's weights.

    Args:
        net: The network to train.
        teacher: Maps normalized images `[n, c, h, w]` to the frozen generalist's logits `[n, classes]`. It is called in
            large batches, before the steps.
        context: What the generalist learned from.
        data: X, the images that define the projection: a source and its number of images.
        augment: Augmentation of these images.
    """
    settings, normalize, engine = context.settings.projection, context.normalize, context.engine
    net.train(settings.batch_norm == "train")
    # The first convolution of these networks rounds its inputs to bf16 anyway.
    dtype = torch.bfloat16 if net.supports_fused_paths and engine.precision == "bf16" else torch.float32

    def prepare(images: Tensor, rows: Tensor) -> StepInputs:
        with torch.no_grad():
            x = normalize(images)
            return {"x": engine.to_storage(x.to(dtype)), "target": forward_in_chunks(teacher, x)}

    def loss(batch: StepInputs) -> Tensor:
        return squared_error(net(engine.from_storage(batch["x"])), batch["target"], settings.reduction)

    planner = SampleRoundPlanner(
        *data,
        settings.epochs,
        settings.steps,
        settings.batch,
        (*context.key, "projection"),
        augment,
        prepare,
        8 * context.memory.pixels[0].numel(),
        engine,
    )
    return Stage(
        "projection",
        dict(net.named_parameters()),
        optimizer_config(settings),
        planner,
        loss,
        list(net.buffers()),
        net=net,
        cache_key=settings,
    )
