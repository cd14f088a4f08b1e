"""Learning of the generalist on the memory: tangent learning, or the fine-tuning of the paper's ablation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from itl.engine.concurrency import side_stream
from itl.engine.keyed_random import torch_generator
from itl.engine.stage import OptimizerConfig, Stage, StepInputs
from itl.generalists.batch_norm import estimate_statistics
from itl.generalists.context import MemoryContext, MemoryTargets, memory_loss
from itl.generalists.fixed_views import solve, solver_stage
from itl.generalists.round_planner import SampleRoundPlanner, concatenate, forward_in_chunks, split_in_chunks
from itl.generalists.tangent_model import TangentModel
from itl.nets import Net
from itl.settings import GeneralistStageSettings
from itl.specialists.model_copies import frozen_copy

CONV_OUTPUT = "conv_output."  # prefix of a convolution's name among a step's inputs
MIN_PRECOMPUTED_STEPS = 8  # convolution outputs are precomputed only if so many steps fit in the engine's memory budget


class Generalist(Protocol):
    """A model that learns from the memory at the end of a task.

    Attributes:
        stage: The training stage, for `itl.engine.loop.train`.
    """

    stage: Stage

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]` of normalized images `[n, c, h, w]`."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint; `restore` takes them."""
        ...


def memory_planner(
    context: MemoryContext, stage: str, prepare: Callable[[Tensor], StepInputs], bytes_per_sample: int
) -> SampleRoundPlanner:
    """Epochs over the memory for the stage called `stage`.

    A step's inputs are those of `prepare`, the labels `y`, and, if the memory has them, stored `logits` with their
    `width`, and `weight`; each is `[batch, ...]`.

    Args:
        context: What the generalist learns from.
        stage: Name of the stage.
        prepare: Maps augmented uint8 images `[n, c, h, w]` to step inputs, each `[n, ...]`.
        bytes_per_sample: Approximate size of the prepared inputs.
    """
    memory, settings, engine = context.memory, context.settings.tangent, context.engine
    targets = MemoryTargets(context)

    def inputs(images: Tensor, rows: Tensor) -> StepInputs:
        return {**prepare(images), **targets(rows)}

    return SampleRoundPlanner(
        memory,
        len(memory),
        settings.epochs,
        settings.steps,
        settings.batch,
        (*context.key, stage),
        context.augment,
        inputs,
        bytes_per_sample,
        engine,
    )


def optimizer_config(settings: GeneralistStageSettings) -> OptimizerConfig:
    """The optimizer of a stage on the memory."""
    return OptimizerConfig(settings.lr, settings.momentum, settings.l2, settings.schedule)


def state_shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Shapes of all tensors in a network's state."""
    return {name: t.shape for name, t in net.state_dict().items()}


class TangentLearning:
    """Tangent learning (Algorithm 1, lines 9 and 10): minimize `loss` over w; the anchor θ stays fixed.

    `loss` and `w` define the objective; `stage` minimizes it with the optimizer of the settings.

    Args:
        net: The network at θ, after the half-pipe.
        context: What the generalist learns from.
        previous: The last task's generalist. If its network had the same shapes, its tensors are reused, so that its
            captured CUDA graphs stay valid.

    Attributes:
        anchor: A frozen copy of the network at θ.
        model: The tangent model at θ.
        w: The parameters of the tangent model.
        stage: The training stage.
    """

    anchor: nn.Module
    w: dict[str, Tensor]

    def __init__(self, net: Net, context: MemoryContext, previous: Generalist | None = None) -> None:
        settings, self.context, self.engine = context.settings.tangent, context, context.engine
        reused = previous if isinstance(previous, TangentLearning) and previous.can_reuse(net, context) else None
        if reused is None:
            self.anchor = frozen_copy(net)
        else:
            self.anchor = reused.anchor
            self.anchor.load_state_dict(net.state_dict())
        self.model = TangentModel(self.anchor, settings.layers)  # type: ignore[arg-type]
        if self.engine.uses_triton and self.engine.precision == "bf16" and not self.engine.exact:
            self.model.fold_trunk(torch.bfloat16)
        if reused is None:
            self.w = {name: t.requires_grad_() for name, t in self.model.zero().items()}
        else:
            self.w = reused.w
            with torch.no_grad():
                torch._foreach_zero_(list(self.w.values()))
        if settings.solver == "lbfgs":
            self.stage = solver_stage("tangent", lambda: self.model, dict(self.w), context, self._set_w)
            return
        planner = memory_planner(context, "tangent", self._prepare, self._plan_inputs())
        config = optimizer_config(settings)
        self.stage = Stage("tangent", dict(self.w), config, planner, self.loss, autocast=False, cache_key=settings)

    def _set_w(self, w: dict[str, Tensor]) -> None:
        for name, value in w.items():
            self.w[name].copy_(value)

    def loss(self, batch: StepInputs) -> Tensor:
        """The objective: `memory_loss` of g(w; x), from the inputs that `_prepare` made."""
        features, conv_outputs = batch["h"], None
        if self.precomputes:
            features = self.engine.from_storage(features)
            conv_outputs = {n: self.engine.from_storage(batch[CONV_OUTPUT + n]) for n in self._conv_names}
        return memory_loss(self.model.logits(self.w, features, conv_outputs), batch, self.context.settings.tangent)

    @property
    def is_linear_classifier(self) -> bool:
        """Whether w changes the classifier alone, so that the tangent model is a network with other weights."""
        prefix = f"{self.model.net.classifier_name}."
        return all(name.startswith(prefix) for name in self.w)

    def can_reuse(self, net: Net, context: MemoryContext) -> bool:
        """Whether the tensors of this generalist can be reused for another network."""
        same = context.settings.tangent == self.context.settings.tangent and context.engine is self.engine
        return net.supports_fused_paths and same and state_shapes(self.anchor) == state_shapes(net)

    def _plan_inputs(self) -> int:
        """Decide whether to precompute convolution outputs; returns the bytes per sample of a step's inputs.

        With precomputed outputs the sequential part of a step is half as long, and the convolutions with w run on
        another CUDA stream.
        """
        context, engine = self.context, self.engine
        with torch.no_grad():
            features = self.model.features(context.normalize(context.memory.pixels[:1]))
        outputs = self.model.conv_outputs(features) if engine.uses_triton and self.model.has_jvp_rules else {}
        self._conv_names = list(outputs)
        output_bytes = 4 * sum(t.numel() for t in outputs.values())
        needed = MIN_PRECOMPUTED_STEPS * context.settings.tangent.batch * output_bytes
        self.precomputes = 0 < needed <= engine.input_bytes
        if self.precomputes:
            self.model.side_stream = side_stream(engine.device, engine.capture)
        return 4 * features.numel() + self.precomputes * output_bytes

    def _prepare(self, images: Tensor) -> StepInputs:
        """Features `h` of the frozen trunk and, if planned, the head's convolution outputs, all in channels-last."""
        with self.engine.autocast():  # the trunk is not part of the tangent model's derivative
            h = forward_in_chunks(lambda chunk: self.model.features(self.context.normalize(chunk)), images)
        if not self.precomputes:
            return {"h": h}
        chunks = [{"": chunk, **self.model.conv_outputs(chunk)} for chunk in split_in_chunks(h)]
        joined = {n: concatenate([self.engine.to_storage(chunk[n]) for chunk in chunks]) for n in chunks[0]}
        return {"h": joined.pop(""), **{CONV_OUTPUT + n: t for n, t in joined.items()}}

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """g(w; x) `[n, classes]` of normalized images, with the trunk in the precision of training."""
        with self.engine.autocast():
            features = self.model.features(x).float()
        return self.model.logits(self.w, features)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint: w and θ."""
        anchor = {f"anchor.{name}": t for name, t in self.anchor.state_dict().items()}
        return {**{f"w.{name}": t.detach() for name, t in self.w.items()}, **anchor}


class FineTuning:
    """Fine-tuning on the memory, for the paper's ablation: of all weights (`full`) or of the classifier (`linear`).

    Args:
        net: The network to train. For a projection, the caller passes a copy.
        context: What the generalist learns from.
        linear: Whether only the classifier is trained.
    """

    def __init__(self, net: Net, context: MemoryContext, linear: bool) -> None:
        settings = context.settings.tangent
        self.net, self.is_copy, self.engine = net, context.settings.projects, context.engine
        name = "linear" if linear else "full"
        net.train(not linear and settings.batch_norm == "train")
        if settings.solver == "lbfgs":  # the settings allow it for a linear model only
            parameters = dict(net.classifier.named_parameters("classifier"))
            self.stage = solver_stage(
                name, lambda: TangentModel(net, 1), parameters, context, partial(move_classifier, net)
            )
            return

        def features(images: Tensor) -> StepInputs:
            with torch.no_grad(), context.engine.autocast():
                return {"h": forward_in_chunks(lambda chunk: net.features(context.normalize(chunk)), images)}

        def loss(batch: StepInputs) -> Tensor:
            logits = net.classifier(batch["h"]) if linear else net(context.normalize(batch["h"]))
            return memory_loss(logits, batch, settings)

        image_bytes = context.memory.pixels[0].numel()
        prepare = features if linear else (lambda images: {"h": images})
        planner = memory_planner(context, name, prepare, 4 * net.classifier.in_features if linear else image_bytes)
        trained = net.classifier.named_parameters("classifier") if linear else net.named_parameters()
        changed = [] if linear else list(net.buffers())
        bf16_net = None if linear else net
        self.stage = Stage(name, dict(trained), optimizer_config(settings), planner, loss, changed, net=bf16_net)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logits of the fine-tuned network in evaluation mode, in the precision of training."""
        training = self.net.training
        with self.engine.autocast():
            out: Tensor = self.net.eval()(x)
        self.net.train(training)
        return out

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint: the fine-tuned network, if it is a copy."""
        return {f"clone.{name}": t for name, t in self.net.state_dict().items()} if self.is_copy else {}


def move_classifier(net: Net, w: dict[str, Tensor]) -> None:
    """Add the parameters of a tangent model of the last layer to the classifier."""
    for name, value in w.items():
        net.classifier.get_parameter(name.rpartition(".")[2]).add_(value)


def prepare(net: Net, context: MemoryContext) -> None:
    """Bring the network to the point at which the generalist starts: batch-norm statistics, then the half-pipe."""
    if context.settings.tangent.statistics == "memory":
        estimate_statistics(net, context)
    if context.settings.redraws_classifier:
        half_pipe(net, context)


@torch.no_grad()
def half_pipe(net: Net, context: MemoryContext) -> None:
    """Reinitialize the classifier, with the distribution of the settings; it is the point of linearization."""
    settings = context.settings
    net.reinitialize_classifier(torch_generator(*context.key, "half-pipe"))
    if settings.half_pipe_scale != 1.0:
        for parameter in net.classifier.parameters():
            parameter.mul_(settings.half_pipe_scale)
    if settings.half_pipe == "linear":
        net.eval()
        move_classifier(net, solve(TangentModel(net, 1), context, "half-pipe")[0])


def build(net: Net, context: MemoryContext, previous: Generalist | None = None) -> Generalist:
    """Build the generalist of the settings.

    Args:
        net: The network, after the half-pipe.
        context: What the generalist learns from.
        previous: The last task's generalist, whose tensors may be reused.
    """
    settings = context.settings
    if settings.generalist == "tangent":
        return TangentLearning(net, context, previous)
    trained = copy.deepcopy(net) if settings.projects else net
    return FineTuning(trained, context, settings.generalist == "linear")


def restore(net: Net, context: MemoryContext, saved: dict[str, Tensor]) -> Generalist:
    """Restore a generalist from the tensors of a checkpoint, taken during its stage or after it."""
    state = {name.partition(".")[2]: t for name, t in saved.items() if name.startswith(("anchor.", "clone."))}
    if not state:
        return build(net, context)  # the network itself is fine-tuned, and is saved elsewhere
    restored = copy.deepcopy(net)
    restored.load_state_dict(state)
    if context.settings.generalist != "tangent":
        return FineTuning(restored, context, context.settings.generalist == "linear")
    generalist = TangentLearning(restored, context)
    with torch.no_grad():
        for name, w in generalist.w.items():
            w.copy_(saved[f"w.{name}"])
    return generalist
