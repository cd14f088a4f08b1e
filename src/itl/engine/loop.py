"""The training loop: plan a round, put its inputs on the device, run the steps.

A step reads its batch from tensors that hold many steps; meanwhile the host plans the next round.
"""

from __future__ import annotations

import math
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
from itl.engine.stage import Diverged, Monitor, RoundPlanner, Stage, StepChunk
from itl.engine.stepper import Stepper

__all__ = ["train"]


def train(
    stage: Stage,
    engine: Engine,
    *,
    start: int = 0,
    momentum: dict[str, Tensor] | None = None,
    on_round_end: Callable[[int, float, dict[str, Tensor]], None] | None = None,
    stepper_cache: dict[str, Stepper] | None = None,
) -> None:
    """Run a stage from round `start` to its end.

    Args:
        stage: The stage to run.
        engine: Device and precision.
        start: First round.
        momentum: Momentum buffers at the beginning of round `start`.
        on_round_end: Called with (round, mean loss, momentum) when a round is trained and committed.
        stepper_cache: Steppers of earlier stages by name; reused where possible and updated.

    Raises:
        Diverged: A loss or weight is not finite; raised at the end of that round.
    """
    planner, monitor = stage.planner, stage.monitor
    if start >= planner.num_rounds or (monitor is not None and monitor.stopped):
        return
    if stage.solve is not None:
        with CAPTURE_GATE.eager():
            objective = stage.solve()
        if on_round_end is not None:
            on_round_end(0, objective, {})
        return
    stepper_cache = {} if stepper_cache is None else stepper_cache
    stepper = _cached_stepper(stage, stepper_cache) or _new_stepper(stage, engine)
    for name, value in (momentum or {}).items():
        stepper.momentum[name].copy_(value)
    prefetcher = _Prefetcher(planner, engine)
    steps_done = planner.first_step(start)

    def load(chunk: StepChunk) -> int:
        """Load a chunk with the learning rates of its steps; return the number of steps."""
        prefetcher.wait_for(chunk)
        rates = stage.optimizer.rates(steps_done, chunk.steps, planner.total_steps)
        if monitor is not None:
            rates = rates * monitor.rate
        stepper.load(chunk.with_learning_rates(rates, engine.send))
        return chunk.steps

    def load_round(index: int) -> tuple[Any, Iterator[StepChunk], int]:
        """Plan a round and load its first chunk."""
        plan = planner.plan(index)
        chunks = prefetcher.chunks(plan)
        return plan, chunks, load(next(chunks))

    plan, chunks, loaded = load_round(start)
    for index in range(start, planner.num_rounds):
        if stage.round_seed is not None:
            torch.manual_seed(stage.round_seed(index))
        while True:
            stepper.run()
            prefetcher.mark_used()
            steps_done += loaded
            chunk = next(chunks, None)
            if chunk is None:
                break
            loaded = load(chunk)
        planner.commit(plan)
        stepper.end_round()
        is_last = index + 1 == planner.num_rounds
        if not is_last and monitor is None:
            # The device is busy with this round: queue the beginning of the next one meanwhile.
            plan, chunks, loaded = load_round(index + 1)
        steps = steps_done - planner.first_step(index)
        loss = _end_round(stepper, monitor, planner.epochs_done(index), steps, is_last)
        if on_round_end is not None:
            on_round_end(index, loss, stepper.momentum)
        if monitor is not None and monitor.stopped:
            break
        if not is_last and monitor is not None:
            plan, chunks, loaded = load_round(index + 1)
    if stage.cache_key is None:
        stepper.close()
    else:
        stepper.release_data()
        stepper_cache[stage.name] = stepper


def _end_round(stepper: Stepper, monitor: Monitor | None, epoch: int, steps: int, is_last: bool) -> float:
    """The mean loss of the ended round; NaN if it diverged and the monitor returned to earlier weights."""
    if monitor is None:
        return stepper.round_loss(epoch, steps)
    with CAPTURE_GATE.eager():
        try:
            loss = stepper.round_loss(epoch, steps)
        except Diverged:
            if not monitor.recovers:
                raise
            monitor.go_back()
            loss = math.nan
        if math.isnan(loss) or monitor.after_round(is_last, loss):
            stepper.weights_changed()
    return loss


def _cached_stepper(stage: Stage, stepper_cache: dict[str, Stepper]) -> Stepper | None:
    """Take the last stepper for this stage name out of the cache; None if it cannot run the stage."""
    stepper = stepper_cache.pop(stage.name, None)
    if stepper is None:
        return None
    if not stepper.can_run(stage):
        stepper.close()
        return None
    stepper.restart(stage)
    return stepper


def _new_stepper(stage: Stage, engine: Engine) -> Stepper:
    return CapturedStepper(stage, engine) if engine.capture and stage.capturable else Stepper(stage, engine)


class _Prefetcher:
    """Prepares the inputs of a round while the previous one trains.

    Where the inputs depend on no earlier step, they are prepared on a separate stream, because the steps leave most of
    a GPU idle. Concurrent runs, which use streams other than the default one, do not: another run uses the idle part.
    """

    MAX_CHUNKS = 3  # in memory: one in training, one waiting, one in preparation

    def __init__(self, planner: RoundPlanner, engine: Engine) -> None:
        self.planner, self.device = planner, engine.device
        self.stream: torch.cuda.Stream | None = None
        self.finished: deque[torch.cuda.Event] = deque()
        if engine.device.type == "cuda" and planner.independent:
            current = torch.cuda.current_stream(engine.device)
            if current == torch.cuda.default_stream(engine.device):
                self.stream = engine_streams(engine.device).prefetch
                self.stream.wait_stream(current)

    def wait_for(self, chunk: StepChunk) -> None:
        """Make the current stream wait for a chunk's inputs."""
        if chunk.ready is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_event(chunk.ready)
        for group in chunk.groups:
            for tensor in group.values():
                tensor.record_stream(current)

    def mark_used(self) -> None:
        """All steps of a chunk are queued: its memory is free when they have finished."""
        if self.stream is not None:
            self.finished.append(torch.cuda.current_stream(self.device).record_event())

    def chunks(self, plan: Any) -> Iterator[StepChunk]:
        """Yield a planned round's chunks, each prepared on request, with at most `MAX_CHUNKS` in memory."""
        remaining = iter(self.planner.load(plan))
        while True:
            if len(self.finished) >= self.MAX_CHUNKS:
                self.finished.popleft().synchronize()
            with CAPTURE_GATE.eager(), nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                chunk = next(remaining, None)
            if chunk is None:
                return
            yield chunk if self.stream is None else replace(chunk, ready=self.stream.record_event())
