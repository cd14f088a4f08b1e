"""Projected distillation: from the tangent model (θ, w) to the weights θ' of an ordinary network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from itl.augment import Augment
from itl.engine.image_pool import ImageSource
from itl.engine.stage import Stage, StepInputs
from itl.generalists.context import MemoryContext
from itl.generalists.fixed_views import solved_stage
from itl.generalists.learning import TangentLearning, move_classifier, optimizer_config
from itl.generalists.projection_monitor import ProjectionMonitor
from itl.generalists.round_planner import SampleRoundPlanner, forward_in_chunks
from itl.nets import Net
from itl.specialists.losses import EPSILON, distillation, squared_error


@torch.no_grad()
def teacher_scale(net: Net, teacher: Callable[[Tensor], Tensor], context: MemoryContext) -> Tensor:
    """Scale the classifier by the factor that gives the teacher's logits the root mean square of the settings.

    Returns:
        The factor, for `projection_stage`. The mean square is over the memory's images without augmentation, after
        subtracting the mean logit of each image.
    """
    memory, wanted = context.memory, context.settings.projection.teacher_rms
    assert wanted is not None
    logits = forward_in_chunks(lambda images: teacher(context.normalize(images)), memory.pixels[: len(memory)])
    rms = (logits - logits.mean(1, keepdim=True)).square().mean().sqrt()
    factor = wanted / rms.clamp(min=EPSILON)
    for parameter in net.classifier.parameters():
        parameter.mul_(factor)
    return factor


def exact_projection_stage(net: Net, generalist: TangentLearning, scale: Tensor | None = None) -> Stage:
    """The stage that adds w to the classifier, for a tangent model of the classifier alone.

    The network is linear in the classifier's weights, so it then equals the tangent model on all images. Distillation
    on the memory would change it on other images.

    Args:
        net: The network at θ, with its classifier scaled by `scale`.
        generalist: The generalist.
        scale: Factor of the generalist's logits; None for 1.
    """

    def run() -> float:
        with torch.no_grad():
            move_classifier(net, {name: w if scale is None else w * scale for name, w in generalist.w.items()})
        return 0.0  # no difference is left

    return solved_stage("projection", dict(net.classifier.named_parameters("classifier")), 1, run)


def projection_stage(
    net: Net,
    teacher: Callable[[Tensor], Tensor],
    context: MemoryContext,
    data: tuple[ImageSource, int],
    augment: Augment,
    scale: Tensor | None = None,
) -> Stage:
    """The stage that minimizes ‖p(θ'; x) − g(w; x)‖² + λ‖θ'‖² over θ', starting at the network's weights.

    With `projection.loss=kl` it minimizes the cross-entropy of softened probabilities instead.

    Args:
        net: The network to train.
        teacher: Maps normalized images `[n, c, h, w]` to the frozen generalist's logits `[n, classes]`. It is called in
            large batches, before the steps.
        context: What the generalist learned from.
        data: X, the images that define the projection: a source and its number of images.
        augment: Augmentation of these images.
        scale: Factor of the teacher's logits; None for 1.
    """
    settings, normalize, engine = context.settings.projection, context.normalize, context.engine
    net.train(settings.batch_norm == "train")
    # The first convolution of these networks rounds its inputs to bf16 anyway.
    dtype = torch.bfloat16 if net.supports_fused_paths and engine.precision == "bf16" else torch.float32

    def prepare(images: Tensor, rows: Tensor) -> StepInputs:
        with torch.no_grad():
            x = normalize(images)
            target = forward_in_chunks(teacher, x)
            return {"x": engine.to_storage(x.to(dtype)), "target": target if scale is None else target * scale}

    def loss(batch: StepInputs) -> Tensor:
        logits = net(engine.from_storage(batch["x"]))
        if settings.loss == "kl":
            return settings.temperature**2 * distillation(logits, batch["target"], settings.temperature)
        return squared_error(logits, batch["target"], settings.reduction)

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
    stage = Stage(
        "projection",
        dict(net.named_parameters()),
        optimizer_config(settings),
        planner,
        loss,
        list(net.buffers()),
        net=net,
        cache_key=settings,
    )
    if settings.monitor:
        stage.monitor = ProjectionMonitor(net, teacher, context, stage.summary)
    return stage
