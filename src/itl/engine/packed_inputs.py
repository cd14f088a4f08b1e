"""A captured step's inputs, those of one step side by side in memory: one kernel fetches them all."""

from __future__ import annotations

import torch
from torch import Tensor

from itl.engine.stage import StepInputs

ALIGNED = 16  # bytes: what kernels expect of a tensor's address


class Packed:
    """The inputs of as many steps as a group has, one row a step; a graph reads from here what the host fills in."""

    def __init__(self, group: StepInputs, room: int = 0) -> None:
        """Made like the group, `{name: [steps, ...]}`, and filled with it, with room for so many steps at least."""
        self.like = {name: (t.dtype, t.shape[1:]) for name, t in group.items()}
        self.places: dict[str, slice] = {}
        width = 0
        for name, t in group.items():
            size = t.element_size() * t[0].numel()
            self.places[name] = slice(width, width + size)
            width += -(-size // ALIGNED) * ALIGNED
        steps = max(room, next(iter(group.values())).shape[0])
        device = next(iter(group.values())).device
        self.rows = torch.zeros((steps, width // 8), dtype=torch.int64, device=device)
        self.inputs = self._seen(self.rows)
        self.fill(group)

    def __len__(self) -> int:
        return self.rows.shape[0]

    def fill(self, group: StepInputs) -> None:
        """Put a group's inputs, of no more steps than there is room for, into the first rows."""
        for name, tensor in group.items():
            self.inputs[name][: tensor.shape[0]].copy_(tensor)

    def at(self, index: Tensor) -> StepInputs:
        """The inputs of the step that `index` (int64 `[1]`, on the device) says, each `[...]`."""
        return {name: t.squeeze(0) for name, t in self._seen(self.rows.index_select(0, index)).items()}

    def _seen(self, rows: Tensor) -> StepInputs:
        """Rows as the tensors that lie in them."""
        raw = rows.view(torch.uint8)
        return {
            name: raw[:, self.places[name]].view(dtype).view(len(rows), *shape)
            for name, (dtype, shape) in self.like.items()
        }
