"""Tangent learning as a convex problem over a fixed set of augmented views of the memory, solved to its minimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from itl.augment import Draws
from itl.engine.device import INFERENCE_BATCH
from itl.engine.keyed_random import generator, torch_generator
from itl.engine.stage import Diverged, OptimizerConfig, Stage, StepChunk
from itl.generalists.context import MemoryContext, MemoryTargets, memory_loss
from itl.generalists.lbfgs import minimize
from itl.generalists.tangent_model import Linearization, TangentModel, Vector
from itl.specialists.losses import at_least_float32

CACHE_BUDGETS = 4  # the cache may use this multiple of the engine's budget for inputs; beyond it all is recomputed
TRACE_PROBES, TRACE_IMAGES = 16, 512  # random directions and images of the estimate of the kernel's trace


class FixedViews:
    """The loss of a tangent model on `tangent.views` augmented views of every memory image; a `LinearProblem`.

    All generalists of a task have the same views. The logits of all views are one batch of `memory_loss`: its mean is
    over views and images; a sum is over images and averaged over views. Only a chunk of the views is in memory at a
    time, apart from a cache of features and, where it has room, of the activations of the linearized layers.

    Args:
        model: The tangent model.
        context: What the generalist learns from.

    Attributes:
        size: Number of parameters.
        initial_logits: Logits at w = 0, `[views · images, classes]`, view by view.
    """

    def __init__(self, model: TangentModel, context: MemoryContext) -> None:
        self.model, self.context = model, context
        self.settings = context.settings.tangent
        self.size = sum(p.numel() for p in model.params.values())
        images, views = len(context.memory), self.settings.views
        self.rows = torch.arange(images).repeat(views)
        self.draws = Draws.cat(
            [context.augment.draw(generator(*context.key, "fixed views", v), images) for v in range(views)]
        )
        self.batch = MemoryTargets(context)(self.rows)
        self.cache: list[Linearization] = []
        self.free_bytes = CACHE_BUDGETS * context.engine.input_bytes
        with torch.no_grad():
            zero = model.zero()
            self.initial_logits = torch.cat([model.logits(zero, part.features) for part in self._linearizations()])
        self._keep_activations()

    def loss(self, logits: Tensor) -> Tensor:
        """`memory_loss` of the logits of all views."""
        value = memory_loss(logits, self.batch, self.settings)
        return value / self.settings.views if self.settings.reduction == "sum" else value

    @torch.no_grad()
    def jvp(self, w: Tensor) -> Tensor:
        """Change of the logits of all views along a vector `[size]`."""
        vector = self.unflatten(w)
        return torch.cat([part.jvp(vector) for part in self._linearizations()])

    @torch.no_grad()
    def vjp(self, cotangent: Tensor) -> Tensor:
        """The transpose of `jvp`: a vector `[size]` of a cotangent `[views · images, classes]`."""
        total = cotangent.new_zeros(self.size)
        sums = self.unflatten(total)  # views of `total`
        for part, rows in zip(self._linearizations(), cotangent.split(INFERENCE_BATCH), strict=True):
            for name, gradient in part.vjp(rows).items():
                sums[name].add_(gradient)
        return total

    def unflatten(self, flat: Tensor) -> Vector:
        """Views of a vector `[size]` with the shapes and strides of the model's parameters."""
        sizes = [p.numel() for p in self.model.params.values()]
        return {
            name: part.as_strided(p.shape, p.stride())
            for (name, p), part in zip(self.model.params.items(), flat.split(sizes), strict=True)
        }

    @torch.no_grad()
    def classifier_share(self) -> float:
        """Estimate of the classifier's share of the tangent kernel's trace, tr J Jᵀ, on views of up to 512 images.

        The trace is the mean of ‖Jᵀ c‖² over random signs c of the logits; each parameter adds its part to it. It does
        not depend on w.
        """
        prefix = f"{self.model.net.classifier_name}."
        part = Linearization(self.model, next(self._linearizations()).features[:TRACE_IMAGES])
        part.keeps_activations = True
        rng = torch_generator(*self.context.key, "trace")
        shape = (TRACE_PROBES, len(part), self.initial_logits.shape[1])
        signs = torch.randint(0, 2, shape, generator=rng).to(self.initial_logits) * 2 - 1
        traces = signs.new_zeros(2)  # of the classifier, and of the other parameters
        for cotangent in signs:
            for name, gradient in part.vjp(cotangent).items():
                traces[0 if name.startswith(prefix) else 1] += gradient.square().sum()
        return float(traces[0] / traces.sum().clamp(min=1e-30))

    def _keep_activations(self) -> None:
        """Let cached parts keep their activations as far as the budget goes; features have priority."""
        if sum(len(part) for part in self.cache) < len(self.rows):
            return
        for part in self.cache:
            needed = part.activation_bytes()
            part.keeps_activations = needed <= self.free_bytes
            self.free_bytes -= needed * part.keeps_activations

    def _linearizations(self) -> Iterator[Linearization]:
        """The views, in chunks of `INFERENCE_BATCH`; from the cache as far as it goes."""
        for index, first in enumerate(range(0, len(self.rows), INFERENCE_BATCH)):
            if index < len(self.cache):
                yield self.cache[index]
                continue
            part = Linearization(self.model, self._compute_features(slice(first, first + INFERENCE_BATCH)))
            if index == len(self.cache) and part.features.nbytes <= self.free_bytes:
                self.cache.append(part)
                self.free_bytes -= part.features.nbytes
            yield part

    def _compute_features(self, part: slice) -> Tensor:
        """Features of some views, with the trunk in the precision of training."""
        context = self.context
        images = context.augment(context.memory.gather(self.rows[part]), self.draws[part])
        with torch.no_grad(), context.engine.autocast():
            return at_least_float32(self.model.features(context.normalize(images)))


class SolverRounds:
    """The single round of a stage that is solved as a whole; a `RoundPlanner`.

    An interrupted solve starts again and gives the same result, because its views have a key.
    """

    num_rounds = 1
    independent = True

    def __init__(self, iterations: int) -> None:
        self.total_steps = iterations

    def plan(self, index: int) -> None:
        """Nothing is planned."""

    def load(self, plan: Any) -> Iterator[StepChunk]:
        """There are no steps."""
        return iter(())

    def commit(self, plan: Any) -> None:
        """The solver changes nothing outside the stage."""

    def epochs_done(self, index: int) -> int:
        """The maximum number of iterations, each of which is an epoch over all views."""
        return self.total_steps

    def first_step(self, index: int) -> int:
        """Number of iterations before round `index`."""
        return index * self.total_steps


def solve(model: TangentModel, context: MemoryContext, stage: str) -> tuple[Vector, dict[str, Any]]:
    """Solve the problem of the settings; returns w and the figures for the record.

    Raises:
        Diverged: The objective is not finite.
    """
    settings = context.settings.tangent
    problem = FixedViews(model, context)
    solution = minimize(problem, settings.l2, settings.iterations, settings.tolerance)
    if not math.isfinite(solution.objective):
        raise Diverged(stage, solution.iterations)
    summary = {
        "objective": solution.objective,
        "gradient_norm": solution.gradient_norm,
        "initial_gradient_norm": solution.initial_gradient_norm,
        "iterations": solution.iterations,
        "classifier_share": problem.classifier_share(),
    }
    return problem.unflatten(solution.w), summary


def solver_stage(
    name: str,
    model: Callable[[], TangentModel],
    parameters: Mapping[str, Tensor],
    context: MemoryContext,
    apply: Callable[[Vector], None],
) -> Stage:
    """The stage that solves the problem with L-BFGS and passes w to `apply`.

    Args:
        name: Name of the stage.
        model: Returns the tangent model.
        parameters: The tensors that `apply` changes.
        context: What the generalist learns from.
        apply: Takes w, one tensor for each of the model's parameters.
    """

    def run() -> float:
        w, stage.summary = solve(model(), context, name)
        with torch.no_grad():
            apply(w)
        return float(stage.summary["objective"])

    stage = solved_stage(name, parameters, context.settings.tangent.iterations, run)
    return stage  # a name, because `run` refers to it


def solved_stage(name: str, parameters: Mapping[str, Tensor], iterations: int, solve: Callable[[], float]) -> Stage:
    """A stage without steps: `solve` sets the parameters in at most `iterations` and returns the objective."""

    def no_loss(batch: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("a solved stage has no steps")

    rounds = SolverRounds(iterations)
    return Stage(name, dict(parameters), OptimizerConfig(0.0), rounds, no_loss, autocast=False, solve=solve)
