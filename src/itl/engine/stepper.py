"""One training step: forward, backward, update, on static shapes, without ever waiting for the host.

The loss and a flag for non-finite ones stay on the device, and are read once a round.
"""

from __future__ import annotations

import math
import operator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from itl.engine.bf16_weights import BF16Weights
from itl.engine.concurrency import CAPTURE_GATE, side_stream
from itl.engine.device import Engine
from itl.engine.fused_sgd import Update, available
from itl.engine.stage import Diverged, Stage, StepChunk, StepInputs
from itl.triton_support import kernels_for


class Stepper:
    """One step of a stage, and the device-side state it needs."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self.stage, self.engine = stage, engine
        self.span: StepChunk | None = None  # whose inputs are there
        device = engine.device
        self.leaves = list(stage.parameters.values())
        self.lr = torch.tensor(stage.optimizer.lr, device=device)
        self.total = torch.zeros((), device=device)
        self.bad = torch.zeros((), device=device)
        self.marked = torch.zeros(3, pin_memory=device.type == "cuda")  # of a round: loss, flag, length of the weights
        self.over = torch.cuda.Event() if device.type == "cuda" else None
        self.optimizer = torch.optim.SGD(
            self.leaves, lr=self.lr, momentum=stage.optimizer.momentum, weight_decay=2 * stage.optimizer.l2, fused=True
        )
        # The fused kernel leaves weights and momentum alone where this flag is 1: no update after a non-finite loss.
        self.optimizer.found_inf = self.bad  # type: ignore[attr-defined]
        self.momentum: dict[str, Tensor] = {}
        if stage.optimizer.momentum:
            for name, leaf in stage.parameters.items():
                self.momentum[name] = torch.zeros_like(leaf)
                self.optimizer.state[leaf]["momentum_buffer"] = self.momentum[name]
        self.shadow: BF16Weights | None = None
        self.update: Update | None = None
        if stage.net is not None and engine.precision == "bf16":
            self.shadow = BF16Weights(stage.net)
            self.update = self._fused_update(self.shadow)
        self.beside = self._beside()

    def _beside(self) -> torch.cuda.Stream | None:
        """The stream for the gradients of the twins: a second one in a captured step, else the one the rest is on."""
        if self.shadow is None or not self.engine.uses_triton:
            return None
        return side_stream(self.engine.device, self.engine.capture and self.stage.capturable)

    def _fused_update(self, shadow: BF16Weights) -> Update | None:
        """One kernel for the weights that have twins: if all are trained, by the loss's own gradients, with Triton."""
        names = {id(leaf): name for name, leaf in self.stage.parameters.items()}
        whole = self.stage.adjust is None and all(id(master) in names for master in shadow.masters)
        if not whole or not available(shadow):
            return None
        momenta = [self.momentum[names[id(m)]] for m in shadow.masters] if self.momentum else []
        optimizer = self.stage.optimizer
        return Update(shadow, momenta, self.lr, self.bad, optimizer.momentum, 2 * optimizer.l2)

    def step(self, batch: StepInputs) -> None:
        """Forward, backward, update; nothing here waits for the device."""
        loss, grads = self._gradients(batch)
        self._tally(loss.detach(), batch["lr"])
        if self.stage.adjust is not None:
            grads = self.stage.adjust(grads)
        if self.update is not None:
            grads = self.update(self.leaves, grads)
        for leaf, grad in zip(self.leaves, grads, strict=True):
            # The optimiser's fused kernel reads a gradient's memory as if it were laid out like the weight's.
            alike = grad is None or grad.stride() == leaf.stride()
            leaf.grad = grad if alike else torch.empty_like(leaf).copy_(grad)
        self.optimizer.step()
        if self.shadow is not None and self.update is None:
            self.shadow.refresh()
        if self.stage.after is not None:
            self.stage.after()

    def _tally(self, loss: Tensor, rate: Tensor) -> None:
        """Sum the loss, flag one that is not finite, set the learning rate: in one kernel, where kernels are."""
        kernels = kernels_for(loss.device, "itl.engine.sgd_kernel")
        if kernels is not None:
            kernels.tally_kernel[(1,)](loss, rate, self.lr, self.bad, self.total, num_warps=1)
            return
        self.lr.copy_(rate)
        self.total.add_(loss)
        self.bad.add_(loss, alpha=0).nan_to_num_(nan=1.0)  # nothing times a loss that is not finite is not a number

    def _gradients(self, batch: StepInputs) -> tuple[Tensor, list[Any]]:
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

    def load(self, span: StepChunk) -> None:
        """Take a span's inputs; `run` takes its steps."""
        self.span = span

    def run(self) -> None:
        """All steps of the span that was loaded, in its order, none while another lane captures."""
        assert self.span is not None
        for g, k in self.span.walk():
            self._take(g, k, self.span.groups[g])
        self.span = None

    def _take(self, g: int, k: int, group: StepInputs) -> None:
        """Step `k` of the span's group `g`."""
        with CAPTURE_GATE.eager():
            self.step({name: t[k] for name, t in group.items()})

    def touched(self) -> list[Tensor]:
        """Every tensor a step changes."""
        twins = self.shadow.twins if self.shadow is not None else []
        return [*self.leaves, *self.momentum.values(), *twins, *self.stage.changed, self.lr, self.total, self.bad]

    def mark(self) -> None:
        """A round's last step is queued: so is what `close` reads, before anything of the next round."""
        # Nothing would tell of the last update, and a batch norm's statistics can overflow while the loss is finite.
        state = [t.detach() for t in (*self.leaves, *self.stage.changed) if t.is_floating_point()]
        length = torch.nn.utils.get_total_norm(state).float()
        self.marked.copy_(torch.stack([self.total, self.bad, length]), non_blocking=self.over is not None)
        self.total.zero_()
        if self.over is not None:
            self.over.record(torch.cuda.current_stream(self.engine.device))

    def close(self, epoch: int, steps: int) -> float:
        """The mean loss of the marked round, its one wait; raises `Diverged` if one, or the state, is not finite."""
        if self.over is not None:
            self.over.synchronize()
        total, bad, norm = self.marked.tolist()
        if bad or not math.isfinite(norm):
            raise Diverged(self.stage.name, epoch)
        return float(total) / max(steps, 1)

    def serves(self, stage: Stage) -> bool:
        """Whether `stage`, of the same name, has the very step of the one that is over."""
        old = self.stage
        same = len(stage.moves()) == len(old.moves()) and all(map(operator.is_, stage.moves(), old.moves()))
        return same and stage.like == old.like

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
        self.stage = self.stage.over()

    def done(self) -> None:
        """The stage is over: nothing of it stays behind."""
        self.rest()
