"""SGD for a network with bf16 twins in one kernel: bf16 gradients in, masters, momenta and twins updated.

Widening gradients, SGD and refreshing the twins as three multi-tensor kernels move twice the bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itl.engine.bf16_weights import BF16Weights
from itl.triton_support import kernels_for, load_kernels

BLOCK = 4096  # elements a program updates


def available(shadow: BF16Weights | None) -> bool:
    """Whether the masters can be updated by the fused kernel."""
    return shadow is not None and kernels_for(shadow.masters[0].device, "itl.engine.sgd_kernel") is not None


class Update:
    """The step that takes the twins' gradients. `lr` and `bad` (no update where it is 1) are scalars on the device."""

    def __init__(
        self, shadow: BF16Weights, momenta: list[Tensor], lr: Tensor, bad: Tensor, momentum: float, decay: float
    ) -> None:
        self.shadow, self.momenta = shadow, momenta
        self.lr, self.bad, self.momentum, self.decay = lr, bad, momentum, decay
        masters, twins = shadow.masters, shadow.twins
        places = [
            [m.data_ptr(), (v if momenta else m).data_ptr(), t.data_ptr(), m.numel()]
            for m, v, t in zip(masters, momenta or masters, twins, strict=True)
        ]
        blocks = [-(-m.numel() // BLOCK) for m in masters]
        owner = np.repeat(np.arange(len(masters)), blocks)
        start = np.concatenate([BLOCK * np.arange(count) for count in blocks])
        device = masters[0].device
        self.places = torch.tensor(places, device=device)
        self.owner = torch.tensor(owner, dtype=torch.int32, device=device)
        self.start = torch.tensor(start, dtype=torch.int32, device=device)
        self.tables: list[tuple[Tensor, list[int]]] = []  # of graphs: where their gradients lie
        self.spare = self._table()  # made outside of any capture: memory that no other part of a graph writes to

    def __call__(self, leaves: list[Tensor], gradients: list[Tensor]) -> list[Tensor | None]:
        """Descend by the twins' gradients among those of all leaves; returns the others, None in the twins' places."""
        of = {id(leaf): grad for leaf, grad in zip(leaves, gradients, strict=True)}
        self._descend([of.pop(id(master)) for master in self.shadow.masters])
        return [of.get(id(leaf)) for leaf in leaves]

    def _descend(self, gradients: list[Tensor]) -> None:
        """Gradients in the order of the shadow's layers."""
        alike = [
            g if g.stride() == t.stride() else torch.empty_like(t).copy_(g)
            for g, t in zip(gradients, self.shadow.twins, strict=True)
        ]
        where, table = [g.data_ptr() for g in alike], self.spare
        if table.is_cuda and torch.cuda.is_current_stream_capturing():
            self.tables.append((table, where))  # a copy from the host cannot be part of a graph: `settle` makes it
        else:
            table.copy_(torch.tensor(where))
        load_kernels("itl.engine.sgd_kernel").descend_kernel[(len(self.owner),)](
            table, self.places, self.owner, self.start, self.lr, self.bad, self.momentum, self.decay,
            HAS_MOMENTUM=bool(self.momenta), BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip

    def settle(self) -> None:
        """After a capture: tell its graph where its gradients lie. The tables live as long as this does."""
        for table, where in self.tables:
            table.copy_(torch.tensor(where))
        self.spare = self._table()

    def _table(self) -> Tensor:
        """Room for the addresses of all gradients."""
        return torch.empty(len(self.places), dtype=torch.int64, device=self.places.device)
