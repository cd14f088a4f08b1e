"""One training step: forward, backward and update on static shapes, without host synchronization.

The loss and a flag for non-finite values stay on the device and are read once per round.
"""

from __future__ import annotations

import math
import operator
from contextlib import nullcontext
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from itl.engine.bf16_weights import BF16Weights
from itl.engine.concurrency import CAPTURE_GATE, side_stream
from itl.engine.device import Engine
from itl.engine.fused_sgd import KERNELS, FusedSGD, available
from itl.engine.stage import Diverged, Stage, StepChunk, StepInputs
from itl.triton_support import kernels_for


class Stepper:
    """Runs the steps of a stage and keeps their state on the device."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self.stage, self.engine = stage, engine
        self.chunk: StepChunk | None = None  # the loaded inputs
        device = engine.device
        self.leaves = list(stage.parameters.values())
        self.lr = torch.tensor(stage.optimizer.lr, device=device)
        self.total_loss = torch.zeros((), device=device)
        self.non_finite = torch.zeros((), device=device)
        # Loss, flag and norm of the state at the end of a round, on the host.
        self.round_summary = torch.zeros(3, pin_memory=device.type == "cuda")
        self.summary_ready = torch.cuda.Event() if device.type == "cuda" else None
        self.momentum: dict[str, Tensor] = {}
        if stage.optimizer.momentum:
            self.momentum = {name: torch.zeros_like(leaf) for name, leaf in stage.parameters.items()}
        self.bf16_weights: BF16Weights | None = None
        self.fused_sgd: FusedSGD | None = None
        if stage.net is not None and engine.precision == "bf16":
            self.bf16_weights = BF16Weights(stage.net)
            self.fused_sgd = self._make_fused_sgd(self.bf16_weights)
        self.side_stream = self._choose_side_stream()

    def _choose_side_stream(self) -> torch.cuda.Stream | None:
        """Stream for the gradients of the bf16 weights."""
        if self.bf16_weights is None or not self.engine.uses_triton:
            return None
        return side_stream(self.engine.device, self.engine.capture and self.stage.capturable)

    def _make_fused_sgd(self, weights: BF16Weights) -> FusedSGD | None:
        """The fused update, if Triton is available and all bf16 weights are trained by the loss's own gradients."""
        names = {id(leaf): name for name, leaf in self.stage.parameters.items()}
        applicable = self.stage.transform_gradients is None and all(id(master) in names for master in weights.masters)
        if not applicable or not available(weights):
            return None
        momenta = [self.momentum[names[id(m)]] for m in weights.masters] if self.momentum else []
        optimizer = self.stage.optimizer
        return FusedSGD(weights, momenta, self.lr, self.non_finite, optimizer.momentum, 2 * optimizer.l2)

    def step(self, inputs: StepInputs) -> None:
        """Forward, backward, update. Never waits for the device."""
        loss, grads = self._gradients(inputs)
        self._record_loss(loss.detach(), inputs["lr"])
        if self.stage.transform_gradients is not None:
            grads = self.stage.transform_gradients(grads)
        if self.fused_sgd is not None:
            grads = self.fused_sgd(self.leaves, grads)
        self._update(grads)
        if self.bf16_weights is not None and self.fused_sgd is None:
            self.bf16_weights.refresh()
        if self.stage.after_step is not None:
            self.stage.after_step()

    @torch.no_grad()
    def _update(self, grads: list[Any]) -> None:
        """Update the parameters that have a gradient; after a non-finite loss, update nothing.

        This calls the function behind `torch.optim.SGD`, because constructing the class takes seconds: it imports
        TorchDynamo.
        """
        # The fused kernel assumes that a gradient has the same strides as its weight.
        matching = [
            grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)
            for leaf, grad in zip(self.leaves, grads, strict=True)
            if grad is not None
        ]
        used = [grad is not None for grad in grads]
        leaves, momenta = list(compress(self.leaves, used)), list(compress(self.momentum.values(), used))
        config = self.stage.optimizer
        sgd(
            leaves, matching, momenta, fused=True, found_inf=self.non_finite, lr=self.lr,  # type: ignore[arg-type]
            momentum=config.momentum, weight_decay=2 * config.l2, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip

    def _record_loss(self, loss: Tensor, rate: Tensor) -> None:
        """Add the loss to the total, flag a non-finite one and set the learning rate; one kernel with Triton."""
        kernels = kernels_for(loss.device, KERNELS)
        if kernels is not None:
            kernels.bookkeeping_kernel[(1,)](loss, rate, self.lr, self.non_finite, self.total_loss, num_warps=1)
            return
        self.lr.copy_(rate)
        self.total_loss.add_(loss)
        self.non_finite.add_(loss, alpha=0).nan_to_num_(nan=1.0)  # 0 times a non-finite loss is NaN

    def _gradients(self, inputs: StepInputs) -> tuple[Tensor, list[Any]]:
        """The loss and its gradients, in the parameters' precision (bf16 for the fused update)."""
        if self.bf16_weights is None:
            with self.engine.autocast() if self.stage.autocast else nullcontext():
                loss = self.stage.loss(inputs)
            return loss, list(torch.autograd.grad(loss, self.leaves))
        if self.side_stream is not None:  # a captured stream must join the first, whether or not a layer uses it
            self.side_stream.wait_stream(torch.cuda.current_stream(self.engine.device))
        with self.bf16_weights.use_bf16_weights(self.side_stream), self.engine.autocast():
            loss = self.stage.loss(inputs)
        grads = list(torch.autograd.grad(loss, self.bf16_weights.differentiable(self.leaves)))
        if self.side_stream is not None:
            torch.cuda.current_stream(self.engine.device).wait_stream(self.side_stream)
        return loss, grads if self.fused_sgd is not None else self.bf16_weights.to_float(self.leaves, grads)

    def load(self, chunk: StepChunk) -> None:
        """Load the inputs of the steps that `run` will take."""
        self.chunk = chunk

    def run(self) -> None:
        """Run all steps of the loaded chunk in order."""
        assert self.chunk is not None
        for g, k in self.chunk.iterate():
            self._run_step(g, k, self.chunk.groups[g])
        self.chunk = None

    def _run_step(self, g: int, k: int, group: StepInputs) -> None:
        """Run step `k` of the chunk's group `g`, while no other run captures."""
        with CAPTURE_GATE.eager():
            self.step({name: t[k] for name, t in group.items()})

    def mutable_tensors(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        copies = self.bf16_weights.copies if self.bf16_weights is not None else []
        own = [self.lr, self.total_loss, self.non_finite]
        return [*self.leaves, *self.momentum.values(), *copies, *self.stage.mutated, *own]

    def end_round(self) -> None:
        """Queue the summary that `round_loss` reads; call it before queuing anything of the next round."""
        # No loss follows the last update, and batch-norm statistics can overflow while the loss is finite.
        state = [t.detach() for t in (*self.leaves, *self.stage.mutated) if t.is_floating_point()]
        norm = torch.nn.utils.get_total_norm(state).float()
        summary = torch.stack([self.total_loss, self.non_finite, norm])
        self.round_summary.copy_(summary, non_blocking=self.summary_ready is not None)
        self.total_loss.zero_()
        if self.summary_ready is not None:
            self.summary_ready.record(torch.cuda.current_stream(self.engine.device))

    def round_loss(self, epoch: int, steps: int) -> float:
        """Wait for the ended round and return its mean loss.

        Raises:
            Diverged: A loss, a weight or another trained tensor is not finite.
        """
        if self.summary_ready is not None:
            self.summary_ready.synchronize()
        total, non_finite, norm = self.round_summary.tolist()
        if non_finite or not math.isfinite(norm):
            raise Diverged(self.stage.name, epoch)
        return float(total) / max(steps, 1)

    def can_run(self, stage: Stage) -> bool:
        """Whether `stage`, which has the same name as the finished one, has exactly the same step."""
        old, new = self.stage.mutable_tensors(), stage.mutable_tensors()
        same_tensors = len(new) == len(old) and all(map(operator.is_, new, old))
        return same_tensors and stage.cache_key == self.stage.cache_key

    def restart(self, stage: Stage) -> None:
        """Begin `stage` with its current parameters and zero momentum."""
        self.stage = stage
        self.total_loss.zero_()
        self.weights_changed()

    def weights_changed(self) -> None:
        """Continue from parameters that were changed from outside, with zero momentum."""
        for tensor in (*self.momentum.values(), self.non_finite):
            tensor.zero_()
        if self.bf16_weights is not None:
            self.bf16_weights.refresh()

    def release_data(self) -> None:
        """Release the finished stage's data; `restart` may follow."""
        self.stage = self.stage.without_data()

    def close(self) -> None:
        """Release everything the stage holds."""
        self.release_data()
