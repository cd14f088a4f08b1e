"""Inputs of a captured step, stored contiguously per step so that one kernel fetches them all."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.stage import StepInputs

ALIGNMENT = 16  # bytes; kernels expect tensor addresses to be multiples of this


class PackedInputs:
    """Inputs of many steps of one shape, one row per step. The host fills the rows; a CUDA graph reads them.

    Args:
        group: Inputs `{name: [steps, ...]}` that define names, shapes and types, and fill the first rows.
        capacity: Minimum number of rows.
    """

    def __init__(self, group: StepInputs, capacity: int = 0) -> None:
        self.layout = {name: (t.dtype, t.shape[1:]) for name, t in group.items()}
        self.byte_ranges: dict[str, slice] = {}
        width = 0
        for name, t in group.items():
            size = t.element_size() * t[0].numel()
            self.byte_ranges[name] = slice(width, width + size)
            width += -(-size // ALIGNMENT) * ALIGNMENT
        steps = max(capacity, next(iter(group.values())).shape[0])
        device = next(iter(group.values())).device
        self.rows = torch.zeros((steps, width // 8), dtype=torch.int64, device=device)
        self.inputs = self._unpack(self.rows)
        self.fill(group)

    def __len__(self) -> int:
        return self.rows.shape[0]

    def fill(self, group: StepInputs) -> None:
        """Copy the inputs of at most `len(self)` steps into the first rows."""
        for name, tensor in group.items():
            self.inputs[name][: tensor.shape[0]].copy_(tensor)

    def at(self, index: Tensor) -> StepInputs:
        """Inputs of step `index` (int64 `[1]`, on the device), each `[...]`."""
        return {name: t.squeeze(0) for name, t in self._unpack(self.rows.index_select(0, index)).items()}

    def _unpack(self, rows: Tensor) -> StepInputs:
        """Views of `rows` as the original tensors."""
        raw = rows.view(torch.uint8)
        return {
            name: raw[:, self.byte_ranges[name]].view(dtype).view(len(rows), *shape)
            for name, (dtype, shape) in self.layout.items()
        }
