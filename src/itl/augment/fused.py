"""Augmentation by one Triton kernel on a GPU; bit-equal to `itl.augment.ops`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from itl.augment import lookup_tables
from itl.augment.blend import blend_tables
from itl.augment.host_to_device import send, send_constant
from itl.augment.ops import geometric_coefficients
from itl.augment.policy import BINS, OPERATION_NAMES, signed
from itl.triton_support import device_guard, kernels_for, load_kernels

KERNELS = "itl.augment.view_kernels"
MAX_PIXELS = 64 * 64  # of an image; one program holds a whole image
POLICY_STEPS = (0, 2)
# Operations that map each gray level to another, independently of the image.
LEVEL_MAPS = {
    "Brightness": lookup_tables.brightness,
    "Posterize": lookup_tables.posterize,
    "Solarize": lookup_tables.solarize,
    "Invert": lookup_tables.invert,
}
PIXELS_PER_THREAD = 8  # of one channel
MIN_BLOCK = 128  # pixels; one for each thread of four warps


def fits(images: Tensor, steps: int) -> bool:
    """Whether the kernel supports these images and this number of policy steps."""
    _, channels, height, width = images.shape
    supported = channels in (1, 3) and 0 < height * width <= MAX_PIXELS and len(images) > 0
    return supported and steps in POLICY_STEPS and kernels_for(images.device, KERNELS) is not None


def views(images: Tensor, drawn: Tensor, fill: int) -> Tensor:
    """Augment images.

    Args:
        images: uint8 `[n, C, H, W]`.
        drawn: int64 `[n, 3 + 2 steps]`: top and left corner of the crop, 1 for a flip, the operations of the steps,
            their signed bins.
        fill: Gray level of uncovered pixels.

    Returns:
        uint8 `[n, C, H, W]`.
    """
    n, channels, height, width = images.shape
    steps = (drawn.shape[1] - 3) // 2
    drawn = drawn.int()
    drawn[:, 3 + steps :] += BINS - 1
    device = images.device
    images = images.contiguous()
    out = torch.empty_like(images)
    scratch, lookups = (torch.empty_like(images), images.new_empty((n, channels, 256))) if steps else (out, out)
    moves, tables = _tables(height, width, device) if steps else (out, out)
    block = max(MIN_BLOCK, 1 << (height * width - 1).bit_length())
    warps = min(16, max(4, block // (32 * PIXELS_PER_THREAD)))
    with device_guard(device):
        load_kernels(KERNELS).views_kernel[(n,)](
            images, out, scratch, lookups, send(drawn, device), moves, tables, fill,
            C=channels, H=height, W=width, STEPS=steps, BLOCK=block, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@functools.lru_cache(maxsize=64)
def _tables(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel's tables: affine coefficients and byte tables.

    Returns:
        int32 `[5, levels, 6]`, and the bytes of level maps `[operations, levels, 256]` followed by blends
        `[levels, 256, 256]`.
    """
    levels = 2 * BINS - 1
    levels_in = torch.arange(256, dtype=torch.uint8).expand(levels, 1, 1, 256)
    rows = levels_in.view(levels, 256).repeat(len(OPERATION_NAMES), 1, 1)
    for name, operation in LEVEL_MAPS.items():  # unsigned operations only use bins from 0 on
        rows[OPERATION_NAMES.index(name)] = operation(levels_in, signed(name, height, width)).view(levels, 256)
    blends, which = blend_tables(signed("Color", height, width), torch.device("cpu"))
    tables = torch.cat([rows.flatten(), blends[which].flatten()])
    return send_constant(geometric_coefficients(height, width), device), send_constant(tables, device)
