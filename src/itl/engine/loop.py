"""The training loop: plan a round of epochs, put its inputs on the device, replay one step over them.

A step reads its batch out of tensors that hold the whole round; the host draws the next one meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from itl.engine.capture import CapturedStepper
from itl.engine.concurrency import CAPTURE_GATE, engine_streams
from itl.engine.device import Engine
from itl.engine.stage import RoundPlanner, Stage, StepChunk
from itl.engine.stepper import Stepper

__all__ = ["train"]


def train(
    stage: Stage,
    engine: Engine,
    *,
    start: int = 0,
    momentum: dict[str, Tensor] | None = None,
    after: Callable[[int, float, dict[str, Tensor]], None] | None = None,
    resting: dict[str, Stepper] | None = None,
) -> None:
    """Run a stage from round `start` (with the momentum it had there) to its end.

    `after(round, mean loss, momentum)` is called when a round is done and committed. `resting` are the steppers of
    earlier stages by name, for those that are like them. Raises `Diverged` within the round in which a loss was not
    finite.
    """
    rounds = stage.planner
    if start >= rounds.num_rounds:
        return
    resting = {} if resting is None else resting
    stepper = _woken(stage, resting) or _stepper(stage, engine)
    for name, value in (momentum or {}).items():
        stepper.momentum[name].copy_(value)
    loader = _Loader(rounds, engine)
    done = rounds.first_step(start)

    def load(span: StepChunk) -> int:
        """Hand a span to the stepper, with the rates of its steps: how many they are."""
        loader.wait(span)
        rates = stage.optimizer.rates(done, span.steps, rounds.total_steps)
        stepper.load(span.with_rates(rates, engine.send))
        return span.steps

    plan = rounds.plan(start)
    spans = loader.made(plan)
    steps = load(next(spans))
    for index in range(start, rounds.num_rounds):
        if stage.seeds is not None:
            torch.manual_seed(stage.seeds(index))
        while True:
            stepper.run()
            loader.used()
            done += steps
            span = next(spans, None)
            if span is None:
                break
            steps = load(span)
        rounds.commit(plan)
        stepper.mark()
        if index + 1 < rounds.num_rounds:
            # The device is busy with this round now: the host queues the beginning of the next one meanwhile.
            plan = rounds.plan(index + 1)
            spans = loader.made(plan)
            steps = load(next(spans))
        loss = stepper.close(rounds.epochs_done(index), done - rounds.first_step(index))
        if after is not None:
            after(index, loss, stepper.momentum)
    if stage.like is None:
        stepper.done()
    else:
        stepper.rest()
        resting[stage.name] = stepper


def _woken(stage: Stage, resting: dict[str, Stepper]) -> Stepper | None:
    """The stepper of the last stage of this name, if it serves; one that does not, or whose stage fails, is gone."""
    stepper = resting.pop(stage.name, None)
    if stepper is None:
        return None
    if not stepper.serves(stage):
        stepper.done()
        return None
    stepper.begin_again(stage)
    return stepper


class _Loader:
    """Makes a round's spans while the one before trains.

    Where nothing depends on its steps, on a stream of their own, for the steps leave most of a GPU idle; but not for
    lanes (which have streams other than the default one): what one of them leaves idle, another takes.
    """

    MOST = 3  # spans in memory: one that trains, one that waits, one that is made

    def __init__(self, rounds: RoundPlanner, engine: Engine) -> None:
        self.rounds, self.device = rounds, engine.device
        self.stream: torch.cuda.Stream | None = None
        self.over: deque[torch.cuda.Event] = deque()
        if engine.device.type == "cuda" and rounds.independent:
            here = torch.cuda.current_stream(engine.device)
            if here == torch.cuda.default_stream(engine.device):
                self.stream = engine_streams(engine.device).ahead
                self.stream.wait_stream(here)

    def wait(self, span: StepChunk) -> None:
        """Let the present stream wait for a span's inputs."""
        if span.ready is None:
            return
        here = torch.cuda.current_stream(self.device)
        here.wait_event(span.ready)
        for group in span.groups:
            for tensor in group.values():
                tensor.record_stream(here)

    def used(self) -> None:
        """The steps of a span are queued: when they are done, it is no longer needed."""
        if self.stream is not None:
            self.over.append(torch.cuda.current_stream(self.device).record_event())

    def made(self, plan: Any) -> Iterator[StepChunk]:
        """A planned round's spans. Each is made when it is asked for, while no other lane captures a graph, and no more
        than `MOST` are in memory.
        """
        rest = iter(self.rounds.load(plan))
        while True:
            if len(self.over) >= self.MOST:
                self.over.popleft().synchronize()
            with CAPTURE_GATE.eager(), nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                span = next(rest, None)
            if span is None:
                return
            yield span if self.stream is None else replace(span, ready=self.stream.record_event())


def _stepper(stage: Stage, engine: Engine) -> Stepper:
    return CapturedStepper(stage, engine) if engine.capture and stage.capturable else Stepper(stage, engine)
