"""Views by one kernel, where there is a GPU with Triton: the bits of `itl.augment.ops` in one launch."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from itl.augment import lookup_tables
from itl.augment.blend import blend_tables
from itl.augment.device import lasting, send
from itl.augment.ops import moves
from itl.augment.policy import BINS, NAMES, signed
from itl.triton_support import device_guard, kernels_for, load_kernels

PIXELS = 64 * 64  # of an image at most: a program holds all of one
STEPS = (0, 2)  # of a policy
# Operations that send each grey level to another, whatever the picture.
TABLED = {
    "Brightness": lookup_tables.brightness,
    "Posterize": lookup_tables.posterize,
    "Solarize": lookup_tables.solarize,
    "Invert": lookup_tables.invert,
}
EACH = 8  # pixels of a channel that a thread holds
LEAST = 128  # places in a block: four warps of threads at least, each with its own


def fits(images: Tensor, steps: int) -> bool:
    """Whether the kernel can make views of these, with so many steps of a policy."""
    _, channels, height, width = images.shape
    sizes = channels in (1, 3) and 0 < height * width <= PIXELS and len(images) > 0
    return sizes and steps in STEPS and kernels_for(images.device, "itl.augment.view_kernels") is not None


def views(images: Tensor, drawn: Tensor, fill: int) -> Tensor:
    """Views (uint8 [n, C, H, W]) of images of that shape.

    `drawn` int64 [n, 3 + 2 steps]: top and left corner of the crop in the image, 1 where it is mirrored, the steps'
    operations, then their signed bins.
    """
    n, channels, height, width = images.shape
    steps = (drawn.shape[1] - 3) // 2
    drawn = drawn.int()
    drawn[:, 3 + steps :] += BINS - 1
    device = images.device
    images = images.contiguous()
    out = torch.empty_like(images)
    other, rooms = (torch.empty_like(images), images.new_empty((n, channels, 256))) if steps else (out, out)
    how, tables = _tables(height, width, device) if steps else (out, out)
    block = max(LEAST, 1 << (height * width - 1).bit_length())
    warps = min(16, max(4, block // (32 * EACH)))
    with device_guard(device):
        load_kernels("itl.augment.view_kernels").views_kernel[(n,)](
            images, out, other, rooms, send(drawn, device), how, tables, fill,
            C=channels, H=height, W=width, STEPS=steps, BLOCK=block, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@functools.lru_cache(maxsize=64)
def _tables(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What the kernel looks up: moves int32 [5, levels, 6]; bytes [operations, levels, 256] and [levels, 256, 256]."""
    levels = 2 * BINS - 1
    grey = torch.arange(256, dtype=torch.uint8).expand(levels, 1, 1, 256)
    rows = grey.view(levels, 256).repeat(len(NAMES), 1, 1)
    for name, operation in TABLED.items():  # the bins of one without a sign are drawn from 0 on
        rows[NAMES.index(name)] = operation(grey, signed(name, height, width)).view(levels, 256)
    blends, which = blend_tables(signed("Color", height, width), torch.device("cpu"))
    tables = torch.cat([rows.flatten(), blends[which].flatten()])
    return lasting(moves(height, width), device), lasting(tables, device)
