"""Steps captured as CUDA graphs, one for each input shape, and replayed over a round's inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from itl.engine.concurrency import in_capture_thread
from itl.engine.device import Engine
from itl.engine.packed_inputs import PackedInputs
from itl.engine.stage import Stage, StepChunk, StepInputs
from itl.engine.stepper import Stepper

WARM_UP_STEPS = 1  # eager steps before capture: cuDNN chooses its algorithms, autograd allocates
MIN_STEPS_TO_CAPTURE = 4  # a shape with fewer steps in a stage runs eagerly


def shape_of(group: StepInputs) -> tuple[Any, ...]:
    """Names, shapes and types of a step's inputs; steps of one shape share a graph."""
    return tuple((name, tuple(t.shape[1:]), t.dtype) for name, t in sorted(group.items()))


@dataclass
class CapturedStep:
    """A graph, the inputs it reads, and the device-side index `[1]` of the step its next replay takes."""

    graph: torch.cuda.CUDAGraph
    inputs: PackedInputs
    counter: Tensor

    def fill(self, group: StepInputs) -> None:
        """Copy a group's inputs to where the graph reads them."""
        self.inputs.fill(group)
        self.counter.zero_()

    def fits(self, group: StepInputs) -> bool:
        """Whether all steps of the group fit."""
        return group["lr"].shape[0] <= len(self.inputs)


class CapturedStepper(Stepper):
    """A stepper whose steps are graph replays; a counter on the device selects the batch."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        super().__init__(stage, engine)
        self.graphs: dict[tuple[Any, ...], CapturedStep] = {}
        self.loaded: list[CapturedStep | None] = []  # one for each group of the loaded chunk
        self.pool = torch.cuda.graph_pool_handle()  # shared by all graphs: they never run at the same time

    def load(self, chunk: StepChunk) -> None:
        """Copy a chunk's inputs to where graphs read them; capture new shapes that occur often enough."""
        super().load(chunk)
        capacities = chunk.capacity or (0,) * len(chunk.groups)
        self.loaded = [self._graph(group, capacity) for group, capacity in zip(chunk.groups, capacities, strict=True)]
        for graph, group in zip(self.loaded, chunk.groups, strict=True):
            if graph is not None:
                graph.fill(group)

    def _run_step(self, g: int, k: int, group: StepInputs) -> None:
        """Replay the group's graph; run eagerly if it has none."""
        graph = self.loaded[g]
        if graph is not None:
            graph.graph.replay()
        else:
            super()._run_step(g, k, group)

    def _graph(self, group: StepInputs, capacity: int) -> CapturedStep | None:
        shape = shape_of(group)
        known = self.graphs.get(shape)
        if known is not None and known.fits(group):
            return known
        if max(capacity, group["lr"].shape[0]) * self.stage.planner.num_rounds < MIN_STEPS_TO_CAPTURE:
            return None
        self.graphs[shape] = self._capture(group, capacity)
        return self.graphs[shape]

    def _capture(self, group: StepInputs, capacity: int) -> CapturedStep:
        """Capture a step and restore everything that warm-up and capture changed."""
        inputs = PackedInputs(group, capacity)
        counter = torch.zeros(1, dtype=torch.int64, device=self.engine.device)

        def body() -> None:
            self.step(inputs.at(counter))

        saved = [t.detach().clone() for t in self.mutable_tensors()]
        caller = torch.cuda.current_stream(self.engine.device)
        graph = in_capture_thread(lambda: self._record(body, counter, caller), self.engine.device)
        if self.fused_sgd is not None:
            self.fused_sgd.finish_capture()
        with torch.no_grad():
            torch._foreach_copy_([t.detach() for t in self.mutable_tensors()], saved)
        return CapturedStep(graph, inputs, counter)

    def _record(self, body: Callable[[], None], counter: Tensor, caller: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Warm up, then capture `body` and the counter's increment on the current stream; `caller` waits for it."""
        stream = torch.cuda.current_stream(self.engine.device)
        stream.wait_stream(caller)
        with self.engine.cudnn_search():
            for _ in range(WARM_UP_STEPS):
                body()
        caller.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # cuBLAS keeps one workspace per stream. All graphs are captured on the same streams, but concurrent runs replay
        # them at the same time, so each graph must get its own workspace, from its pool.
        torch._C._cuda_clearCublasWorkspaces()
        # `torch.cuda.graph` would first synchronize the device, including the queued epochs of other runs.
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            body()
            counter.add_(1)
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
        return graph

    def close(self) -> None:
        """Release the graphs' memory, too."""
        super().close()
        self.loaded = []
        self.graphs.clear()
