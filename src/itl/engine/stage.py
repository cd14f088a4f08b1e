"""Data structures of a training stage: planned rounds, a loss, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

StepInputs = dict[str, Tensor]


@dataclass(frozen=True)
class StepChunk:
    """A run of consecutive steps whose inputs are on the device.

    Attributes:
        groups: Inputs of all steps that share one shape; every tensor is `[steps, ...]`.
        order: The order of the steps, as (group, number of steps). Each group is consumed front to back.
        ready: Event after which inputs made on another stream may be read.
        capacity: For each group, the largest number of steps of its shape in any chunk of the stage, if known.
    """

    groups: list[StepInputs]
    order: list[tuple[int, int]]
    ready: torch.cuda.Event | None = None
    capacity: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps in the chunk."""
        return sum(count for _, count in self.order)

    def iterate(self) -> Iterator[tuple[int, int]]:
        """Yield the steps in order, as (group, index in the group)."""
        position = [0] * len(self.groups)
        for group, count in self.order:
            for k in range(position[group], position[group] + count):
                yield group, k
            position[group] += count

    def with_learning_rates(self, rates: Tensor, send: Callable[[Tensor], Tensor]) -> StepChunk:
        """A copy whose inputs include each step's learning rate.

        Args:
            rates: Learning rates `[steps]` in step order, on the CPU.
            send: Copies a tensor to the device.
        """
        parts: list[list[Tensor]] = [[] for _ in self.groups]
        first = 0
        for group, count in self.order:
            parts[group].append(rates[first : first + count])
            first += count
        groups = [{**g, "lr": send(torch.cat(p))} for g, p in zip(self.groups, parts, strict=True)]
        return StepChunk(groups, self.order, capacity=self.capacity)


@dataclass(frozen=True)
class OptimizerConfig:
    """SGD with a learning-rate schedule.

    Attributes:
        lr: Base learning rate.
        momentum: Momentum factor.
        l2: λ of the penalty λ‖w‖², which equals a weight decay of 2λ.
        schedule: "constant", "cosine" (cosine decay) or "warm" (linear warm-up, then cosine decay).
        curve: Replaces the schedule: maps steps `k` (float64 `[n]`) and the total number of steps to factors of `lr`.
    """

    lr: float
    momentum: float = 0.0
    l2: float = 0.0
    schedule: str = "constant"
    curve: Callable[[Tensor, int], Tensor] | None = None

    def rates(self, first: int, steps: int, total: int) -> Tensor:
        """Learning rates of steps `first` to `first + steps` of `total`: float32 `[steps]`."""
        k = torch.arange(first, first + steps, dtype=torch.float64)
        if self.curve is not None:
            return (self.lr * self.curve(k, total)).float()
        if self.schedule == "constant":
            return torch.full((steps,), self.lr)
        warmup = total // 4 if self.schedule == "warm" else 0
        decay = 0.5 * (1 + torch.cos(torch.pi * (k - warmup) / (total - warmup)))
        return (self.lr * torch.where(k < warmup, (k + 1) / (warmup + 1), decay)).float()


class RoundPlanner(Protocol):
    """Plans a stage's epochs in rounds of one or more epochs.

    `plan` runs on the CPU, one round ahead of training. Random draws are made there, or in `load` where each epoch has
    its own key.

    Attributes:
        num_rounds: Number of rounds.
        total_steps: Number of steps in all rounds.
        independent: Whether the inputs of a round depend on no earlier step or round.
    """

    num_rounds: int
    total_steps: int
    independent: bool

    def plan(self, index: int) -> Any:
        """Plan round `index`; everything that depends on earlier rounds is decided here."""
        ...

    def load(self, plan: Any) -> Iterable[StepChunk]:
        """Yield the planned round's inputs, on the device."""
        ...

    def commit(self, plan: Any) -> None:
        """Apply what the trained round changes outside the step, such as the memory's images."""
        ...

    def epochs_done(self, index: int) -> int:
        """Number of epochs finished when round `index` is finished."""
        ...

    def first_step(self, index: int) -> int:
        """Number of steps before round `index`."""
        ...


class Monitor(Protocol):
    """Watches a stage after each round: may change the weights, lower the rate, or end the stage.

    Attributes:
        rate: Factor of the learning rate of the next round.
        stopped: Whether the stage has ended early.
        recovers: Whether it returns to earlier weights if a loss or weight is not finite; otherwise the stage fails.
    """

    rate: float
    stopped: bool
    recovers: bool

    def after_round(self, is_last: bool, loss: float) -> bool:
        """Look at the weights after a round with this mean loss; returns whether it changed them."""
        ...

    def go_back(self) -> None:
        """Return to earlier weights, because the loss or a weight is not finite."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to checkpoint."""
        ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore them."""
        ...


@dataclass
class Stage:
    """One optimization: which tensors, over which rounds, with which loss.

    Attributes:
        name: The stage's name in records and error messages.
        parameters: Trained tensors by name.
        optimizer: Optimizer and schedule.
        planner: Provides the steps' inputs.
        loss: Maps a step's inputs to a scalar.
        mutated: Tensors that a step changes besides the parameters (batch-norm statistics, stored logits). Capturing a
            step runs it a few times; these are restored afterwards.
        autocast: Whether the loss runs under the engine's autocast.
        net: The trained network, if it may use bf16 weights.
        capturable: Whether a step can be captured as a CUDA graph.
        transform_gradients: Maps the loss's gradients (in the parameters' order) to those the optimizer uses.
        after_step: Called when the parameters have been updated; part of the captured step.
        round_seed: Seed for a round, for networks that draw random numbers themselves (dropout).
        cache_key: Everything the step depends on except its tensors. A later stage with the same name, tensors and key
            reuses this stage's captured graphs. None disables reuse.
        solve: Replaces all steps: solves for the parameters at once and returns the objective. The stage has one round.
        monitor: Watches the stage after each round.
        summary: Figures about the finished stage, for the record.
    """

    name: str
    parameters: dict[str, Tensor]
    optimizer: OptimizerConfig
    planner: RoundPlanner
    loss: Callable[[StepInputs], Tensor]
    mutated: list[Tensor] = field(default_factory=list)
    autocast: bool = True
    net: nn.Module | None = None
    capturable: bool = True
    transform_gradients: Callable[[list[Tensor]], list[Tensor]] | None = None
    after_step: Callable[[], None] | None = None
    round_seed: Callable[[int], int] | None = None
    cache_key: Any = None
    solve: Callable[[], float] | None = None
    monitor: Monitor | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return self.epochs_before(self.planner.num_rounds)

    def epochs_before(self, index: int) -> int:
        """Number of epochs before round `index`."""
        return self.planner.epochs_done(index - 1) if index else 0

    def mutable_tensors(self) -> list[Tensor]:
        """Every tensor outside the stepper that a step changes."""
        return [*self.parameters.values(), *self.mutated]

    def without_data(self) -> Stage:
        """A copy for comparison with later stages that keeps no training data alive."""
        unset: dict[str, Any] = {"planner": None, "loss": None}
        return replace(self, **unset, transform_gradients=None, after_step=None, round_seed=None, monitor=None)


class Diverged(RuntimeError):
    """A loss or weight is not finite.

    Attributes:
        stage: Name of the stage.
        epoch: The epoch it happened in, counted from 1.
    """

    def __init__(self, stage: str, epoch: int) -> None:
        super().__init__(f"non-finite loss in {stage}, epoch {epoch}")
        self.stage, self.epoch = stage, epoch
