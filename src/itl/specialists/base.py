"""What a replay method is: what it draws from memory, and what its loss is. It never loops over batches itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from itl.settings import SpecialistSettings


@dataclass
class View:
    """A batch as a method sees it: images `[n, c, h, w]` float, labels `[n]`, logits `[n, classes]` beside them.

    For a batch from memory `logits` are the stored ones (`widths` `[n]`: how many columns they had, None for all). For
    the task's batch a method that stores logits leaves there what is to be stored.
    """

    x: Tensor
    y: Tensor
    logits: Tensor | None = None
    widths: Tensor | None = None


class Specialist:
    """A method that trains on a task with replay."""

    name: ClassVar[str]
    stores_logits: ClassVar[bool] = False
    needs_memory: ClassVar[bool] = True
    capturable: ClassVar[bool] = True

    def __init__(self, settings: SpecialistSettings) -> None:
        self.settings = settings

    @property
    def draws(self) -> int:
        """How many independent batches from memory a step takes."""
        return self.settings.draws

    def loss(self, net: nn.Module, now: View, pasts: tuple[View, ...]) -> Tensor:
        """The step's loss on the task's batch and those from memory (none of them while the memory is empty)."""
        raise NotImplementedError


def join(*tensors: Tensor) -> Tensor:
    """Batches as one, so that one forward (and batch norm) sees them together."""
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]
