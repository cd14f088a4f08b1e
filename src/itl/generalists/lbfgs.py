"""L-BFGS for convex objectives of a linear model: minimize L(f₀ + J w) + λ‖w‖² over w.

The model is linear in w, so the logits along a direction d are f + t J d. One product with J serves the whole line
search, which is exact, and the logits are tracked by addition. An iteration costs one product with J and one with its
transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PAIRS = 10  # pairs of differences that approximate the inverse Hessian
LINE_STEPS = 8  # Newton steps of a line search
MIN_CURVATURE = 1e-5  # cosine between step and change of gradient below which a pair is rounding error
CHECK_INTERVAL = 5  # iterations between two checks of the gradient norm, each of which waits for the device


class LinearProblem(Protocol):
    """A loss of the logits of a linear model.

    Attributes:
        size: Number of parameters.
        initial_logits: f₀, the logits at w = 0, `[n, classes]`.
    """

    size: int
    initial_logits: Tensor

    def jvp(self, w: Tensor) -> Tensor:
        """J w, `[n, classes]`, of a vector `[size]`."""
        ...

    def vjp(self, cotangent: Tensor) -> Tensor:
        """Jᵀ c, `[size]`, of a cotangent `[n, classes]`."""
        ...

    def loss(self, logits: Tensor) -> Tensor:
        """L of logits `[n, classes]`: a convex, twice differentiable scalar."""
        ...


@dataclass(frozen=True)
class Solution:
    """The result of `minimize`.

    Attributes:
        w: The parameters `[size]`.
        objective: L(f₀ + J w) + λ‖w‖².
        gradient_norm: Norm of the objective's gradient at w.
        initial_gradient_norm: Norm of the gradient at w = 0.
        iterations: Number of iterations.
    """

    w: Tensor
    objective: float
    gradient_norm: float
    initial_gradient_norm: float
    iterations: int


@torch.no_grad()
def minimize(problem: LinearProblem, l2: float, iterations: int, tolerance: float) -> Solution:
    """Minimize L(f₀ + J w) + λ‖w‖², starting at w = 0.

    Args:
        problem: The loss and the model.
        l2: λ.
        iterations: Maximum number of iterations.
        tolerance: Stop when the gradient's norm is at most this fraction of its norm at w = 0.
    """
    logits = problem.initial_logits
    w = logits.new_zeros(problem.size)
    gradient = problem.vjp(_loss_gradient(problem.loss, logits))
    initial = gradient.square().sum()
    pairs = _InverseHessian()
    done = 0
    while done < iterations:
        if done % CHECK_INTERVAL == 0 and bool(gradient.square().sum() <= tolerance**2 * initial):
            break
        direction = pairs.direction(gradient)
        change = problem.jvp(direction)
        # Before there are pairs, start the line search where the largest logit changes by one.
        guess = torch.ones_like(initial) if pairs.steps else 1 / change.abs().max().clamp(min=1e-12)
        penalty = 2 * l2 * torch.stack([(w * direction).sum(), direction.square().sum()])
        step = _line_search(problem.loss, logits, change, penalty, guess)
        w, logits = w + step * direction, logits + step * change
        previous, gradient = gradient, problem.vjp(_loss_gradient(problem.loss, logits)) + 2 * l2 * w
        pairs.add(step * direction, gradient - previous)
        done += 1
    value = problem.loss(logits) + l2 * w.square().sum()
    objective, norm, initial_norm = torch.stack([value, gradient.square().sum().sqrt(), initial.sqrt()]).tolist()
    return Solution(w, objective, norm, initial_norm, done)


class _InverseHessian:
    """The approximation of the inverse Hessian from the last `PAIRS` steps."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []
        self.changes: list[Tensor] = []
        self.weights: list[Tensor] = []  # 1 / (step · change); 0 leaves a pair out
        self.scale: Tensor | float = 1.0

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add a step and the change of the gradient along it.

        Near the minimum, changes of the gradient are rounding errors. Such pairs are left out; with them the method
        diverges.
        """
        curvature, squared = (step * change).sum(), change.square().sum()
        is_valid = curvature > MIN_CURVATURE * (step.square().sum() * squared).sqrt()
        self.scale = torch.where(is_valid, curvature / squared, self.scale)
        self.weights.append(torch.where(is_valid, 1 / curvature, 0.0))
        self.steps.append(step)
        self.changes.append(change)
        if len(self.steps) > PAIRS:
            del self.steps[0], self.changes[0], self.weights[0]

    def direction(self, gradient: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times the gradient; minus the gradient if that is no descent."""
        out, factors = -gradient, []
        for step, change, weight in zip(self.steps[::-1], self.changes[::-1], self.weights[::-1], strict=True):
            factors.append(weight * (step * out).sum())
            out = out - factors[-1] * change
        out = out * self.scale
        for step, change, weight, factor in zip(self.steps, self.changes, self.weights, factors[::-1], strict=True):
            out = out + (factor - weight * (change * out).sum()) * step
        return torch.where((out * gradient).sum() < 0, out, -gradient)


def _loss_gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Gradient of the loss with respect to the logits."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf), leaf)[0]


def _line_search(
    loss: Callable[[Tensor], Tensor], logits: Tensor, change: Tensor, penalty: Tensor, guess: Tensor
) -> Tensor:
    """The t ≥ 0 that minimizes loss(logits + t change) + penalty, by Newton's method within a bracket.

    It never waits for the device.

    Args:
        loss: A convex loss.
        logits: Logits `[n, classes]`.
        change: Their change per unit of t, `[n, classes]`.
        penalty: Slope of the penalty at t = 0, and its curvature.
        guess: First t to try.
    """
    t = guess
    low, high = torch.zeros_like(t), torch.full_like(t, torch.inf)
    for _ in range(LINE_STEPS):
        with torch.enable_grad():
            leaf = t.detach().requires_grad_()
            (slope,) = torch.autograd.grad(loss(logits + leaf * change), leaf, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, leaf)
        slope = slope.detach() + penalty[0] + t * penalty[1]
        low, high = torch.where(slope <= 0, t, low), torch.where(slope > 0, t, high)
        newton = t - slope / (curvature + penalty[1])
        middle = torch.where(high.isinf(), 2 * t, (low + high) / 2)
        inside = (newton > low) & (newton < high)  # False if it is not a number
        t = torch.where(inside, newton, torch.where(slope == 0, t, middle))
    return t
