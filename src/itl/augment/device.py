"""How small tensors drawn on the host reach the images' device."""

from __future__ import annotations

import torch
from torch import Tensor


def send(host: Tensor, device: torch.device) -> Tensor:
    """`host` on `device`, without making the host wait: only pinned memory is copied asynchronously."""
    if host.device == device:
        return host
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def lasting(host: Tensor, device: torch.device) -> Tensor:
    """`host` on `device` for good, ready for whatever stream will use it."""
    there = host.to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return there


def pick(images: Tensor, index: Tensor) -> Tensor:
    """The images at `index` (host, int64 [k]), in that order: [k, C, H, W]."""
    return images.index_select(0, send(index, images.device))
