"""Projected distillation: from (θ, w) to one set of weights θ', along the memory (or the task)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from itl.augment import Augment
from itl.engine.pool import ImageSource
from itl.engine.stage import Stage, StepInputs
from itl.generalists.epochs import SampleRoundPlanner, in_parts
from itl.generalists.learning import MemoryContext, optimizer
from itl.nets import Net
from itl.specialists.losses import squared_error


def projection_stage(
    net: Net,
    teacher: Callable[[Tensor], Tensor],
    ground: MemoryContext,
    over: tuple[ImageSource, int],
    augment: Augment,
) -> Stage:
    """Minimise ‖p(θ'; x) − g(w; x)‖² + λ‖θ'‖² over θ', starting at the network's present weights.

    `teacher` gives the frozen generalist's logits for normalised images; it is asked in large batches, ahead of the
    steps. `over` is X, the data that defines the projection (a source and how many of its rows), `augment` its views.
    """
    settings, normalize, engine = ground.settings.projection, ground.normalize, ground.engine
    net.train(settings.batch_norm == "train")
    # What the first convolution of our own networks would round images to.
    dtype = torch.bfloat16 if net.supports_fused_paths and engine.precision == "bf16" else torch.float32

    def prepare(views: Tensor, rows: Tensor) -> StepInputs:
        with torch.no_grad():
            x = normalize(views)
            return {"x": engine.to_storage(x.to(dtype)), "target": in_parts(teacher, x)}

    def loss(batch: StepInputs) -> Tensor:
        return squared_error(net(engine.from_storage(batch["x"])), batch["target"], settings.reduction)

    rounds = SampleRoundPlanner(
        *over,
        settings.epochs,
        settings.steps,
        settings.batch,
        (*ground.key, "projection"),
        augment,
        prepare,
        8 * ground.memory.pixels[0].numel(),
        engine,
    )
    return Stage(
        "projection",
        dict(net.named_parameters()),
        optimizer(settings),
        rounds,
        loss,
        list(net.buffers()),
        net=net,
        cache_key=settings,
    )
