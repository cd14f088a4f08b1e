"""What a stage is: epochs planned in rounds, a loss, how it descends. It has never heard of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

StepInputs = dict[str, Tensor]


@dataclass(frozen=True)
class StepChunk:
    """Steps whose inputs are ready on the device.

    `groups` holds the inputs of all steps of one shape together, every tensor `[steps, ...]`; `order` tells in which
    order the groups' steps are taken, as (group, how many), each group front to back. `room`, where it is known, is how
    many steps of each group's shape the stage's longest span has.
    """

    groups: list[StepInputs]
    order: list[tuple[int, int]]
    ready: torch.cuda.Event | None = None  # where they are made on another stream: when they are
    room: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps the span has."""
        return sum(count for _, count in self.order)

    def walk(self) -> Iterator[tuple[int, int]]:
        """Its steps one after another, as (group, place in the group)."""
        at = [0] * len(self.groups)
        for group, count in self.order:
            for k in range(at[group], at[group] + count):
                yield group, k
            at[group] += count

    def with_rates(self, rates: Tensor, send: Callable[[Tensor], Tensor]) -> StepChunk:
        """The same span with each step's learning rate among its inputs. `rates` is `[steps]`, in step order."""
        parts: list[list[Tensor]] = [[] for _ in self.groups]
        first = 0
        for group, count in self.order:
            parts[group].append(rates[first : first + count])
            first += count
        groups = [{**g, "lr": send(torch.cat(p))} for g, p in zip(self.groups, parts, strict=True)]
        return StepChunk(groups, self.order, room=self.room)


@dataclass(frozen=True)
class OptimizerConfig:
    """How a stage descends: SGD with a learning rate that is constant, falls by a cosine, or rises before it falls so
    ("warm"). `l2` is λ of λ‖w‖² (weight decay 2λ).

    `curve(k, total)`, where given, takes the schedule's place: by what `lr` is multiplied at steps `k` (float64 `[n]`).
    """

    lr: float
    momentum: float = 0.0
    l2: float = 0.0
    schedule: str = "constant"
    curve: Callable[[Tensor, int], Tensor] | None = None

    def rates(self, first: int, steps: int, total: int) -> Tensor:
        """The learning rate of steps `first` to `first + steps` of `total`: float32 `[steps]`."""
        k = torch.arange(first, first + steps, dtype=torch.float64)
        if self.curve is not None:
            return (self.lr * self.curve(k, total)).float()
        if self.schedule == "constant":
            return torch.full((steps,), self.lr)
        rise = total // 4 if self.schedule == "warm" else 0
        fall = 0.5 * (1 + torch.cos(torch.pi * (k - rise) / (total - rise)))
        return (self.lr * torch.where(k < rise, (k + 1) / (rise + 1), fall)).float()


class RoundPlanner(Protocol):
    """What a stage's epochs are made of, in rounds of one or more. `plan` is pure CPU work, done one round ahead.

    What is random is drawn there or, where each epoch has keys of its own, in `load`.
    """

    num_rounds: int
    total_steps: int
    independent: bool  # whether no step, and no round, changes what another is made of

    def plan(self, index: int) -> Any:
        """What a round is made of; all that depends on the rounds before it."""
        ...

    def load(self, plan: Any) -> Iterable[StepChunk]:
        """The planned round's inputs, on the device."""
        ...

    def commit(self, plan: Any) -> None:
        """The round has been trained: take over what it changed outside the step (the memory's images)."""
        ...

    def epochs_done(self, index: int) -> int:
        """How many epochs are done when round `index` is."""
        ...

    def first_step(self, index: int) -> int:
        """How many steps were done when round `index` begins."""
        ...


@dataclass
class Stage:
    """One optimisation: over which tensors, through which rounds, with what loss.

    `loss(batch)` returns a scalar. `changed` lists what a step changes besides the parameters (batch-norm statistics,
    stored logits): capturing a step runs it a few times, and these are put back afterwards. `net` is the
    network that is trained, where bf16 may be used for it. `adjust` turns the loss's gradients (in the parameters'
    order) into those to descend by; `after` is called when the parameters are updated. Both are part of the step.
    `seeds` gives a round's seed for a network that draws by itself, as dropout does. `like` is all that its step
    depends on but its tensors: a later stage of the same name, with the same tensors and an equal `like`, goes on with
    what this one has captured. None: no other will.
    """

    name: str
    parameters: dict[str, Tensor]
    optimizer: OptimizerConfig
    planner: RoundPlanner
    loss: Callable[[StepInputs], Tensor]
    changed: list[Tensor] = field(default_factory=list)
    autocast: bool = True
    net: nn.Module | None = None
    capturable: bool = True
    adjust: Callable[[list[Tensor]], list[Tensor]] | None = None
    after: Callable[[], None] | None = None
    seeds: Callable[[int], int] | None = None
    like: Any = None

    def moves(self) -> list[Tensor]:
        """All that its steps change outside the stepper."""
        return [*self.parameters.values(), *self.changed]

    def over(self) -> Stage:
        """What is left to tell whether a later one is like it: nothing of the data it was trained on."""
        return replace(self, planner=None, loss=None, adjust=None, after=None, seeds=None)  # type: ignore[arg-type]


class Diverged(RuntimeError):
    """A loss or a weight was not finite. Carries the stage and the epoch (from 1) it happened in."""

    def __init__(self, stage: str, epoch: int) -> None:
        super().__init__(f"non-finite loss in {stage}, epoch {epoch}")
        self.stage, self.epoch = stage, epoch
