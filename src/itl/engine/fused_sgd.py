"""SGD for a network with bf16 weights in one kernel: reads bf16 gradients, updates masters, momenta and bf16 copies.

Converting gradients, SGD and refreshing the copies in three multi-tensor kernels moves twice as many bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.bf16_weights import BF16Weights
from itl.triton_support import kernels_for, load_kernels

BLOCK = 4096  # elements that one program updates
KERNELS = "itl.engine.sgd_kernel"


def available(weights: BF16Weights | None) -> bool:
    """Whether the fused kernel can update these weights."""
    return weights is not None and kernels_for(weights.masters[0].device, KERNELS) is not None


class FusedSGD:
    """Updates the master weights from the gradients of their bf16 copies.

    Args:
        weights: Masters and their bf16 copies.
        momenta: Momentum buffers in the masters' order; empty without momentum.
        lr: Learning rate, a scalar on the device.
        skip: Scalar on the device; no update happens where it is 1.
        momentum: Momentum factor.
        decay: Weight decay.
    """

    def __init__(
        self, weights: BF16Weights, momenta: list[Tensor], lr: Tensor, skip: Tensor, momentum: float, decay: float
    ) -> None:
        self.weights, self.momenta = weights, momenta
        self.lr, self.skip, self.momentum, self.decay = lr, skip, momentum, decay
        masters, copies = weights.masters, weights.copies
        pointers = [
            [m.data_ptr(), (v if momenta else m).data_ptr(), t.data_ptr(), m.numel()]
            for m, v, t in zip(masters, momenta or masters, copies, strict=True)
        ]
        blocks = [-(-m.numel() // BLOCK) for m in masters]
        owner = np.repeat(np.arange(len(masters)), blocks)
        start = np.concatenate([BLOCK * np.arange(count) for count in blocks])
        device = masters[0].device
        self.pointers = torch.tensor(pointers, device=device)
        self.owner = torch.tensor(owner, dtype=torch.int32, device=device)
        self.start = torch.tensor(start, dtype=torch.int32, device=device)
        self.captured_tables: list[tuple[Tensor, list[int]]] = []  # gradient addresses of each captured graph
        self.next_table = self._new_table()  # allocated outside any capture, so no other part of a graph writes to it

    def __call__(self, leaves: list[Tensor], gradients: list[Tensor]) -> list[Tensor | None]:
        """Update the masters among `leaves`; return the other gradients, with None in place of those used."""
        by_leaf = {id(leaf): grad for leaf, grad in zip(leaves, gradients, strict=True)}
        self._update([by_leaf.pop(id(master)) for master in self.weights.masters])
        return [by_leaf.get(id(leaf)) for leaf in leaves]

    def _update(self, gradients: list[Tensor]) -> None:
        """Launch the kernel on gradients in the masters' order."""
        matching = [
            g if g.stride() == t.stride() else torch.empty_like(t).copy_(g)
            for g, t in zip(gradients, self.weights.copies, strict=True)
        ]
        addresses, table = [g.data_ptr() for g in matching], self.next_table
        if table.is_cuda and torch.cuda.is_current_stream_capturing():
            # A copy from the host cannot be part of a graph; `finish_capture` does it.
            self.captured_tables.append((table, addresses))
        else:
            table.copy_(torch.tensor(addresses))
        load_kernels(KERNELS).sgd_kernel[(len(self.owner),)](
            table, self.pointers, self.owner, self.start, self.lr, self.skip, self.momentum, self.decay,
            HAS_MOMENTUM=bool(self.momenta), BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip

    def finish_capture(self) -> None:
        """Write the gradient addresses that captured graphs read. The tables live as long as this object."""
        for table, addresses in self.captured_tables:
            table.copy_(torch.tensor(addresses))
        self.next_table = self._new_table()

    def _new_table(self) -> Tensor:
        """An uninitialized table for the addresses of all gradients."""
        return torch.empty(len(self.pointers), dtype=torch.int64, device=self.pointers.device)
