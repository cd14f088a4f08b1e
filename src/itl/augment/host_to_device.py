"""Copy small host tensors to the images' device."""

from __future__ import annotations

import torch
from torch import Tensor


def send(host: Tensor, device: torch.device) -> Tensor:
    """Copy `host` to `device` without blocking the host, which requires pinned memory on CUDA."""
    if host.device == device:
        return host
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def send_constant(host: Tensor, device: torch.device) -> Tensor:
    """Copy a constant to `device`; it can be read from any stream afterwards."""
    constant = host.to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return constant


def select(images: Tensor, index: Tensor) -> Tensor:
    """The images at `index` (host, int64 `[k]`), in that order: `[k, C, H, W]`."""
    return images.index_select(0, send(index, images.device))
