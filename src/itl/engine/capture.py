"""The same step as one CUDA graph for each shape, replayed over the round's inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from itl.engine.concurrency import in_capture_thread
from itl.engine.device import Engine
from itl.engine.packed_inputs import Packed
from itl.engine.stage import Stage, StepChunk, StepInputs
from itl.engine.stepper import Stepper

WARM_UP = 1  # eager runs before capture: cuDNN chooses its algorithms, autograd allocates
WORTH = 4  # a shape that runs fewer steps than this in a stage is not worth a graph


def shape_of(group: StepInputs) -> tuple[Any, ...]:
    """What a step's inputs look like: steps of one shape share one graph."""
    return tuple((name, tuple(t.shape[1:]), t.dtype) for name, t in sorted(group.items()))


@dataclass
class Captured:
    """A graph, the inputs it reads, and the counter `[1]` of which of them its next replay takes."""

    graph: torch.cuda.CUDAGraph
    inputs: Packed
    counter: Tensor

    def fill(self, group: StepInputs) -> None:
        """Put a group's inputs where the graph reads them."""
        self.inputs.fill(group)
        self.counter.zero_()

    def holds(self, group: StepInputs) -> bool:
        """Whether the group's steps fit."""
        return group["lr"].shape[0] <= len(self.inputs)


class CapturedStepper(Stepper):
    """A stepper whose steps are graph replays; a device-side counter says which batch is next."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        super().__init__(stage, engine)
        self.graphs: dict[tuple[Any, ...], Captured] = {}
        self.loaded: list[Captured | None] = []  # of the span's groups
        self.pool = torch.cuda.graph_pool_handle()  # one for all its graphs: they never run at the same time

    def load(self, span: StepChunk) -> None:
        """Put a span's inputs where graphs read them; a shape that is new is captured if it will be seen often."""
        super().load(span)
        rooms = span.room or (0,) * len(span.groups)
        self.loaded = [self._graph(group, room) for group, room in zip(span.groups, rooms, strict=True)]
        for graph, group in zip(self.loaded, span.groups, strict=True):
            if graph is not None:
                graph.fill(group)

    def _take(self, g: int, k: int, group: StepInputs) -> None:
        """By its graph, where there is one."""
        graph = self.loaded[g]
        if graph is not None:
            graph.graph.replay()
        else:
            super()._take(g, k, group)

    def _graph(self, group: StepInputs, room: int) -> Captured | None:
        shape = shape_of(group)
        known = self.graphs.get(shape)
        if known is not None and known.holds(group):
            return known
        if max(room, group["lr"].shape[0]) * self.stage.planner.num_rounds < WORTH:
            return None
        self.graphs[shape] = self._capture(group, room)
        return self.graphs[shape]

    def _capture(self, group: StepInputs, room: int) -> Captured:
        inputs = Packed(group, room)
        counter = torch.zeros(1, dtype=torch.int64, device=self.engine.device)

        def body() -> None:
            self.step(inputs.at(counter))

        kept = [t.detach().clone() for t in self.touched()]
        here = torch.cuda.current_stream(self.engine.device)
        graph = in_capture_thread(lambda: self._record(body, counter, here), self.engine.device)
        if self.update is not None:
            self.update.settle()
        with torch.no_grad():
            torch._foreach_copy_([t.detach() for t in self.touched()], kept)
        return Captured(graph, inputs, counter)

    def _record(self, body: Callable[[], None], counter: Tensor, here: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Warm up, then capture `body` and the counter's advance, on the present stream; `here` waits for it."""
        stream = torch.cuda.current_stream(self.engine.device)
        stream.wait_stream(here)
        with self.engine.searching():
            for _ in range(WARM_UP):
                body()
        here.wait_stream(stream)
        for leaf in self.leaves:
            leaf.grad = None
        graph = torch.cuda.CUDAGraph()
        # cuBLAS has a workspace for each stream, and all graphs are captured on the same ones, but lanes replay them at
        # the same time: each graph gets its own, from its pool. Nobody else launches anything meanwhile.
        torch._C._cuda_clearCublasWorkspaces()
        # `torch.cuda.graph` would first wait for the whole device, other lanes' queued epochs included.
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            body()
            counter.add_(1)
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
        return graph

    def done(self) -> None:
        """Give back what the graphs hold."""
        super().done()
        self.loaded = []
        self.graphs.clear()
