"""The training loop: plan a round of epochs, put its inputs on the device, replay one step over them.

It takes callables and has never heard of a task. A step has static shapes, reads its batch out of tensors that hold
the whole round, and never waits for the host: the loss, a flag for non-finite ones and the step's own position stay on
the device, and are read once a round.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from itl.engine.device import Engine
from itl.engine.lanes import ETIQUETTE, own_streams
from itl.engine.shadow import Shadow
from itl.engine.update import Update, available

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Span:
    """Steps whose inputs are ready on the device.

    `groups` holds the inputs of all steps of one shape together, every tensor `[steps, ...]`; `order` tells in which
    order the groups' steps are taken, as (group, how many), each group front to back.
    """

    groups: list[Batch]
    order: list[tuple[int, int]]
    ready: torch.cuda.Event | None = None  # where they are made on another stream: when they are

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

    def with_rates(self, rates: Tensor, send: Callable[[Tensor], Tensor]) -> Span:
        """The same span with each step's learning rate among its inputs. `rates` is `[steps]`, in step order."""
        parts: list[list[Tensor]] = [[] for _ in self.groups]
        first = 0
        for group, count in self.order:
            parts[group].append(rates[first : first + count])
            first += count
        groups = [{**g, "lr": send(torch.cat(p))} for g, p in zip(self.groups, parts, strict=True)]
        return Span(groups, self.order)


@dataclass(frozen=True)
class Descent:
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


class Rounds(Protocol):
    """What a stage's epochs are made of, in rounds of one or more. `plan` is pure CPU work, done one round ahead."""

    count: int  # rounds
    total: int  # steps in all of them
    apart: bool  # whether no step, and no round, changes what another is made of

    def plan(self, index: int) -> Any:
        """Everything random or sequential about a round, as index arrays."""
        ...

    def load(self, plan: Any) -> Iterable[Span]:
        """The planned round's inputs, on the device."""
        ...

    def commit(self, plan: Any) -> None:
        """The round has been trained: take over what it changed outside the step (the memory's images)."""
        ...

    def epoch(self, index: int) -> int:
        """How many epochs are done when round `index` is."""
        ...

    def first(self, index: int) -> int:
        """How many steps were done when round `index` begins."""
        ...


@dataclass
class Stage:
    """One optimisation: over which tensors, through which rounds, with what loss.

    `loss(batch)` returns a scalar. `changed` lists what a step changes besides the parameters (batch-norm statistics,
    stored logits): capturing a step runs it a few times, and these are put back afterwards. `net` is the
    network that is trained, where bf16 may be used for it. `adjust` turns the loss's gradients (in the parameters'
    order) into those to descend by; `after` is called when the parameters are updated. Both are part of the step.
    `seeds` gives a round's seed for a network that draws by itself, as dropout does. `like` names a step that is the
    same from task to task: over the same tensors, a later stage goes on with what the earlier one has captured.
    """

    name: str
    parameters: dict[str, Tensor]
    descent: Descent
    rounds: Rounds
    loss: Callable[[Batch], Tensor]
    changed: list[Tensor] = field(default_factory=list)
    autocast: bool = True
    net: nn.Module | None = None
    capturable: bool = True
    adjust: Callable[[list[Tensor]], list[Tensor]] | None = None
    after: Callable[[], None] | None = None
    seeds: Callable[[int], int] | None = None
    like: str | None = None

    def moves(self) -> list[Tensor]:
        """All that its steps change outside the stepper."""
        return [*self.parameters.values(), *self.changed]


class Diverged(RuntimeError):
    """A loss or a weight was not finite. Carries the stage and the epoch (from 1) it happened in."""

    def __init__(self, stage: str, epoch: int) -> None:
        super().__init__(f"non-finite loss in {stage}, epoch {epoch}")
        self.stage, self.epoch = stage, epoch


class Stepper:
    """One step of a stage, and the device-side state it needs."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self.stage, self.engine = stage, engine
        device = engine.device
        self.leaves = list(stage.parameters.values())
        self.lr = torch.tensor(stage.descent.lr, device=device)
        self.total = torch.zeros((), device=device)
        self.bad = torch.zeros((), device=device)
        self.optimiser = torch.optim.SGD(
            self.leaves, lr=self.lr, momentum=stage.descent.momentum, weight_decay=2 * stage.descent.l2, fused=True
        )
        # The fused kernel leaves weights and momentum alone where this flag is 1: no update after a non-finite loss.
        self.optimiser.found_inf = self.bad  # type: ignore[attr-defined]
        self.momentum: dict[str, Tensor] = {}
        if stage.descent.momentum:
            for name, leaf in stage.parameters.items():
                self.momentum[name] = torch.zeros_like(leaf)
                self.optimiser.state[leaf]["momentum_buffer"] = self.momentum[name]
        self.shadow: Shadow | None = None
        self.update: Update | None = None
        if stage.net is not None and engine.precision == "bf16":
            self.shadow = Shadow(stage.net)
            self.update = self._fused_update(self.shadow)
        self.beside = self._beside()

    def _beside(self) -> torch.cuda.Stream | None:
        """The stream for the gradients of the twins: a second one in a captured step, else the one the rest is on."""
        device = self.engine.device
        if self.shadow is None or device.type != "cuda":
            return None
        captured = self.engine.capture and self.stage.capturable
        return own_streams(device).beside if captured else torch.cuda.current_stream(device)

    def _fused_update(self, shadow: Shadow) -> Update | None:
        """One kernel for the weights that have twins: if all are trained, by the loss's own gradients, with Triton."""
        names = {id(leaf): name for name, leaf in self.stage.parameters.items()}
        whole = self.stage.adjust is None and all(id(master) in names for master in shadow.masters)
        if not whole or not available(shadow):
            return None
        momenta = [self.momentum[names[id(m)]] for m in shadow.masters] if self.momentum else []
        descent = self.stage.descent
        return Update(shadow, momenta, self.lr, self.bad, descent.momentum, 2 * descent.l2)

    def step(self, batch: Batch) -> None:
        """Forward, backward, update; nothing here waits for the device."""
        self.lr.copy_(batch["lr"])
        loss, grads = self._gradients(batch)
        loss = loss.detach().float()
        torch.maximum(self.bad, (~torch.isfinite(loss)).float(), out=self.bad)
        if self.stage.adjust is not None:
            grads = self.stage.adjust(grads)
        if self.update is not None:
            grads = self.update(self.leaves, grads)
        for leaf, grad in zip(self.leaves, grads, strict=True):
            # The optimiser's fused kernel reads a gradient's memory as if it were laid out like the weight's.
            alike = grad is None or grad.stride() == leaf.stride()
            leaf.grad = grad if alike else torch.empty_like(leaf).copy_(grad)
        self.optimiser.step()
        if self.shadow is not None and self.update is None:
            self.shadow.refresh()
        if self.stage.after is not None:
            self.stage.after()
        self.total.add_(loss)

    def _gradients(self, batch: Batch) -> tuple[Tensor, list[Any]]:
        """The loss, and its gradients in the precision of the parameters (of the twins, for the fused update)."""
        if self.shadow is None:
            with self.engine.autocast() if self.stage.autocast else nullcontext():
                loss = self.stage.loss(batch)
            return loss, list(torch.autograd.grad(loss, self.leaves))
        if self.beside is not None:  # whether or not a layer uses it: a captured stream must be joined to the first
            self.beside.wait_stream(torch.cuda.current_stream(self.engine.device))
        with self.shadow.worn(self.beside), self.engine.autocast():
            loss = self.stage.loss(batch)
        grads = list(torch.autograd.grad(loss, self.shadow.stand_in(self.leaves)))
        if self.beside is not None:
            torch.cuda.current_stream(self.engine.device).wait_stream(self.beside)
        return loss, grads if self.update is not None else self.shadow.widen(self.leaves, grads)

    def run(self, span: Span) -> None:
        """All steps of a span, in its order, none while another lane captures."""
        for group, k in span.walk():
            with ETIQUETTE.together():
                self.step({name: t[k] for name, t in span.groups[group].items()})

    def touched(self) -> list[Tensor]:
        """Every tensor a step changes."""
        twins = self.shadow.twins if self.shadow is not None else []
        return [*self.leaves, *self.momentum.values(), *twins, *self.stage.changed, self.lr, self.total, self.bad]

    def close(self, epoch: int, steps: int) -> float:
        """The round's mean loss; raises `Diverged` if one, or a weight or statistic, is not finite. Its one wait."""
        # Nothing would tell of the last update, and a batch norm's statistics can overflow while the loss is finite.
        state = [t.detach() for t in (*self.leaves, *self.stage.changed) if t.is_floating_point()]
        length = torch.nn.utils.get_total_norm(state).float()
        total, bad, norm = torch.stack([self.total, self.bad, length]).tolist()
        if bad or not math.isfinite(norm):
            raise Diverged(self.stage.name, epoch)
        self.total.zero_()
        return float(total) / max(steps, 1)

    def serves(self, stage: Stage) -> bool:
        """Whether `stage` has the very step of the one that is over."""
        old = self.stage
        same = len(stage.moves()) == len(old.moves()) and all(map(operator.is_, stage.moves(), old.moves()))
        return same and (stage.name, stage.descent) == (old.name, old.descent)

    def begin_again(self, stage: Stage) -> None:
        """Go on with `stage`, from its parameters as they are now and no momentum."""
        self.stage = stage
        for tensor in (*self.momentum.values(), self.total, self.bad):
            tensor.zero_()
        if self.shadow is not None:
            self.shadow.refresh()

    def rest(self) -> None:
        """The stage is over; another of its like may follow."""
        for leaf in self.leaves:
            leaf.grad = None

    def done(self) -> None:
        """The stage is over: nothing of it stays behind."""
        self.rest()


def train(
    stage: Stage,
    engine: Engine,
    *,
    start: int = 0,
    momentum: dict[str, Tensor] | None = None,
    after: Callable[[int, float, dict[str, Tensor]], None] | None = None,
) -> None:
    """Run a stage from round `start` (with the momentum it had there) to its end.

    `after(round, mean loss, momentum)` is called when a round is done and committed. Raises `Diverged` within the
    round in which a loss was not finite.
    """
    rounds = stage.rounds
    if start >= rounds.count:
        return
    stepper = _kept(stage, engine) or _stepper(stage, engine)
    for name, value in (momentum or {}).items():
        stepper.momentum[name].copy_(value)
    loader = _Loader(rounds, engine)
    plan = rounds.plan(start)
    spans = loader.begun(plan)
    for index in range(start, rounds.count):
        first = done = rounds.first(index)
        if stage.seeds is not None:
            torch.manual_seed(stage.seeds(index))
        for span in spans:
            loader.wait(span)
            rates = stage.descent.rates(done, span.steps, rounds.total)
            stepper.run(span.with_rates(rates, engine.send))
            done += span.steps
        rounds.commit(plan)
        if index + 1 < rounds.count:
            # The device is busy with this round now: the host draws the next one and queues its views meanwhile.
            plan = rounds.plan(index + 1)
            spans = loader.begun(plan)
        loss = stepper.close(rounds.epoch(index), done - first)
        if after is not None:
            after(index, loss, stepper.momentum)
    if stage.like is None:
        stepper.done()
    else:
        stepper.rest()
        engine.kept[stage.like] = stepper


def _kept(stage: Stage, engine: Engine) -> Stepper | None:
    """The stepper of the last stage like this one, if it serves; one that does not, or whose stage fails, is gone."""
    stepper: Stepper | None = engine.kept.pop(stage.like, None) if stage.like is not None else None
    if stepper is None:
        return None
    if not stepper.serves(stage):
        stepper.done()
        return None
    stepper.begin_again(stage)
    return stepper


class _Loader:
    """Makes a round's spans while the one before trains.

    Where nothing depends on its steps, and no lanes share the device, on a stream of their own: the steps leave most of
    a GPU idle.
    """

    def __init__(self, rounds: Rounds, engine: Engine) -> None:
        self.rounds, self.stream = rounds, None
        if engine.device.type == "cuda" and rounds.apart:
            here = torch.cuda.current_stream(engine.device)
            if here == torch.cuda.default_stream(engine.device):
                self.stream = own_streams(engine.device).ahead
                self.stream.wait_stream(here)

    def begun(self, plan: Any) -> Iterator[Span]:
        """A planned round's spans, the first of them made at once instead of when it is asked for."""
        rest = self._made(plan)
        first = next(rest)
        return itertools.chain([first], rest)

    def wait(self, span: Span) -> None:
        """Let the present stream wait for a span's inputs."""
        if span.ready is None:
            return
        here = torch.cuda.current_stream()
        here.wait_event(span.ready)
        for group in span.groups:
            for tensor in group.values():
                tensor.record_stream(here)

    def _made(self, plan: Any) -> Iterator[Span]:
        """Each made while no other lane captures a graph."""
        rest = iter(self.rounds.load(plan))
        while True:
            with ETIQUETTE.together(), torch.cuda.stream(self.stream):
                span = next(rest, None)
            if span is None:
                return
            yield span if self.stream is None else replace(span, ready=self.stream.record_event())


def _stepper(stage: Stage, engine: Engine) -> Stepper:
    if engine.capture and stage.capturable:
        from itl.engine.capture import CapturedStepper  # imported here: it builds on this module

        return CapturedStepper(stage, engine)
    return Stepper(stage, engine)
