# mypy: ignore-errors
"""A Triton kernel for augmentation: crop, flip and the two steps of a policy, one program per image.

Bit-equal to `itl.augment.ops`, which needs hundreds of launches; those would be most of the host's work between the
generalist's short stages.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Operation codes, as in `policy.NAMES`; the other operations are lookups in a table of 256 bytes.
SHEAR_X, ROTATE = tl.constexpr(1), tl.constexpr(5)
CONTRAST, AUTOCONTRAST, EQUALIZE = tl.constexpr(7), tl.constexpr(10), tl.constexpr(11)
COLOR, SHARPNESS = tl.constexpr(13), tl.constexpr(14)
OPERATIONS, LEVELS = tl.constexpr(15), tl.constexpr(19)


@triton.jit
def _luma(source, at, inside, C: tl.constexpr, PIXELS: tl.constexpr):
    """Luma of every pixel as in Pillow, int32."""
    if C == 1:
        return tl.load(source + at, mask=inside, other=0).to(tl.int32)
    red = tl.load(source + at, mask=inside, other=0).to(tl.int32)
    green = tl.load(source + PIXELS + at, mask=inside, other=0).to(tl.int32)
    blue = tl.load(source + 2 * PIXELS + at, mask=inside, other=0).to(tl.int32)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@triton.jit
def _affine(source, target, f, fill, at, inside, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Affine map in 16.16 fixed point; pixels outside the source are `fill`."""
    x, y = at % W, at // W
    column = (tl.load(f) * x + tl.load(f + 1) * y + tl.load(f + 2)) >> 16
    row = (tl.load(f + 3) * x + tl.load(f + 4) * y + tl.load(f + 5)) >> 16
    known = inside & (column >= 0) & (column < W) & (row >= 0) & (row < H)
    for c in range(C):
        pixel = tl.load(source + c * H * W + row * W + column, mask=known, other=0).to(tl.int32)
        tl.store(target + c * H * W + at, tl.where(known, pixel, fill).to(tl.uint8), mask=inside)


@triton.jit
def _autocontrast(source, target, at, inside, C: tl.constexpr, PIXELS: tl.constexpr):
    """AutoContrast: three operations in double precision, each rounded separately."""
    for c in range(C):
        pixel = tl.load(source + c * PIXELS + at, mask=inside, other=0).to(tl.int32)
        low, high = tl.min(tl.where(inside, pixel, 255)), tl.max(pixel)
        span = tl.where(high > low, high - low, 1).to(tl.float64)
        scale = (span * 0.0 + 255.0) / span
        offset = -low.to(tl.float64) * scale
        value = pixel.to(tl.float64) * scale + offset
        value = tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32)
        tl.store(target + c * PIXELS + at, tl.where(high > low, value, pixel).to(tl.uint8), mask=inside)


@triton.jit
def _equalize(source, target, lookup, at, inside, C: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr):
    """Equalize by a table for each channel, which is first written to `lookup` `[C, 256]`."""
    level = tl.arange(0, 256)
    for c in range(C):
        pixel = tl.load(source + c * PIXELS + at, mask=inside, other=0).to(tl.int32)
        counts = tl.histogram(pixel, 256) - tl.where(level == 0, BLOCK - PIXELS, 0)  # minus the block's unused elements
        lightest = tl.sum(tl.where(level == tl.max(pixel), counts, 0))
        step = (PIXELS - lightest) // 255
        before = tl.cumsum(counts, 0) - counts
        spread = tl.minimum((before + step // 2) // tl.maximum(step, 1), 255)
        tl.store(lookup + c * 256 + level, tl.where(step > 0, spread, level).to(tl.uint8))
    tl.debug_barrier()
    for c in range(C):
        pixel = tl.load(source + c * PIXELS + at, mask=inside, other=0).to(tl.int32)
        tl.store(target + c * PIXELS + at, tl.load(lookup + c * 256 + pixel, mask=inside, other=0), mask=inside)


@triton.jit
def _sharpness(source, target, table, at, inside, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Blend with the image smoothed over 3x3 pixels, weight 5 at the center; the border is unchanged."""
    x, y = at % W, at // W
    inner = inside & (x > 0) & (x < W - 1) & (y > 0) & (y < H - 1)
    for c in range(C):
        center = source + c * H * W + at
        pixel = tl.load(center, mask=inside, other=0).to(tl.int32)
        total = 4 * pixel
        for k in range(9):
            total += tl.load(center + (k // 3 - 1) * W + (k % 3 - 1), mask=inner, other=0).to(tl.int32)
        smooth = tl.where(inner, (total * (2 * 40330) + 13 * 40330) >> 20, pixel)
        tl.store(target + c * H * W + at, tl.load(table + smooth * 256 + pixel, mask=inside, other=0), mask=inside)


@triton.jit
def _step(source, target, lookup, op, level, moves, tables, fill, at, inside,
          C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Apply one policy step from one buffer to the other."""
    PIXELS: tl.constexpr = H * W
    # Blend table of the level's factor: [256 degenerate, 256 pixel].
    blend = tables + (OPERATIONS * LEVELS + level * 256) * 256
    if (op >= SHEAR_X) & (op <= ROTATE):
        _affine(source, target, moves + ((op - 1) * LEVELS + level) * 6, fill, at, inside, C, H, W)
    elif op == AUTOCONTRAST:
        _autocontrast(source, target, at, inside, C, PIXELS)
    elif op == EQUALIZE:
        _equalize(source, target, lookup, at, inside, C, PIXELS, BLOCK)
    elif op == SHARPNESS:
        _sharpness(source, target, blend, at, inside, C, H, W)
    elif op == COLOR:
        row = blend + _luma(source, at, inside, C, PIXELS) * 256
        for c in range(C):
            pixel = tl.load(source + c * PIXELS + at, mask=inside, other=0).to(tl.int32)
            tl.store(target + c * PIXELS + at, tl.load(row + pixel, mask=inside, other=0), mask=inside)
    else:
        table = tables + (op * LEVELS + level) * 256
        if op == CONTRAST:
            total = tl.sum(tl.where(inside, _luma(source, at, inside, C, PIXELS), 0))
            table = blend + (total * 2 + PIXELS) // (2 * PIXELS) * 256
        for c in range(C):
            pixel = tl.load(source + c * PIXELS + at, mask=inside, other=0).to(tl.int32)
            tl.store(target + c * PIXELS + at, tl.load(table + pixel, mask=inside, other=0), mask=inside)


@triton.jit
def views_kernel(images, views, scratch, lookups, draws, moves, tables, fill,
                 C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
                 STEPS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Crop and flip, then apply the steps, alternating between the buffers `views` and `scratch`.

    `draws` int32 `[n, 3 + 2 STEPS]`: top and left corner, flip, operations, levels (from 0). `moves` int32
    `[5, LEVELS, 6]`: affine coefficients. `tables`: the bytes of `[OPERATIONS, LEVELS, 256]` followed by
    `[LEVELS, 256, 256]`. `lookups` `[n, C, 256]`: space for tables that depend on the image.
    """
    n = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < H * W
    first, second, lookup = views + n * C * H * W, scratch + n * C * H * W, lookups + n * C * 256
    draw = draws + n * (3 + 2 * STEPS)
    step = draw + 3
    row = at // W + tl.load(draw)
    x = at % W
    column = tl.where(tl.load(draw + 2) != 0, W - 1 - x, x) + tl.load(draw + 1)
    known = inside & (column >= 0) & (column < W) & (row >= 0) & (row < H)
    for c in range(C):
        pixel = tl.load(images + (n * C + c) * H * W + row * W + column, mask=known, other=0)
        tl.store(first + c * H * W + at, pixel, mask=inside)
    if STEPS == 2:
        tl.debug_barrier()
        _step(first, second, lookup, tl.load(step), tl.load(step + 2), moves, tables, fill, at, inside, C, H, W, BLOCK)
        tl.debug_barrier()
        _step(
            second, first, lookup, tl.load(step + 1), tl.load(step + 3), moves, tables, fill, at, inside, C, H, W, BLOCK
        )
