"""References to cached features, which take the place of pixels: row in the cache (eight bytes) and view (one)."""

from __future__ import annotations

import torch
from torch import Tensor

REFERENCE_SHAPE = (9, 1, 1)
VIEW = 8  # position of the view: 0 for the image, 1 for its mirror image


def make_references(rows: Tensor) -> Tensor:
    """References uint8 `[n, 9, 1, 1]` to the first view of the cache's rows int64 `[n]`."""
    references = torch.zeros((len(rows), *REFERENCE_SHAPE), dtype=torch.uint8)
    references[:, :VIEW, 0, 0] = rows.clone().view(torch.uint8).view(-1, VIEW)
    return references


def split_references(references: Tensor) -> tuple[Tensor, Tensor]:
    """Rows int64 `[n]` and views int64 `[n]`, on the device of the references."""
    flat = references.flatten(1)
    return flat[:, :VIEW].reshape(-1).clone().view(torch.int64), flat[:, VIEW].long()


def is_reference(images: Tensor) -> bool:
    """Whether a batch holds references rather than pixels."""
    return tuple(images.shape[1:]) == REFERENCE_SHAPE
