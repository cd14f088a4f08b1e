# mypy: ignore-errors
"""Triton kernels for global average pooling with the classifier: the forward pass and its derivative."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("pixels", "classes"))
def pooled_classifier_kernel(y, dy, weight, bias, dweight, dbias, means, value, along, C, pixels, classes,
                             PIXELS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Logits of one image, from the mean of y over its pixels, and their derivative along (dy, dweight, dbias).

    y and dy are `[n, pixels, C]`; the means `[n, C]` are stored for the backward pass.
    """
    image = tl.program_id(0)
    pixel, k = tl.arange(0, PIXELS), tl.arange(0, BLOCK_K)
    seen = (pixel < pixels)[:, None]
    real = k < classes
    whole = tl.load(bias + k, mask=real, other=0.0)
    moved = tl.load(dbias + k, mask=real, other=0.0)
    for begin in range(0, C, BLOCK_C):
        cols = begin + tl.arange(0, BLOCK_C)
        there = cols < C
        at = (image * pixels + pixel)[:, None] * C + cols[None, :]
        mean = tl.sum(tl.load(y + at, mask=seen & there[None, :], other=0.0), 0) / pixels
        slope = tl.sum(tl.load(dy + at, mask=seen & there[None, :], other=0.0), 0) / pixels
        tl.store(means + image * C + cols, mean, mask=there)
        at = k[:, None] * C + cols[None, :]
        inside = real[:, None] & there[None, :]
        fixed = tl.load(weight + at, mask=inside, other=0.0)
        whole += tl.sum(fixed * mean[None, :], 1)
        moved += tl.sum(fixed * slope[None, :] + tl.load(dweight + at, mask=inside, other=0.0) * mean[None, :], 1)
    tl.store(value + image * classes + k, whole, mask=real)
    tl.store(along + image * classes + k, moved, mask=real)


@triton.jit(do_not_specialize=("images", "pixels", "classes"))
def pooled_classifier_backward_kernel(g, weight, means, ddy, dweight, dbias, C, images, pixels, classes,
                                      PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
                                      BLOCK_K: tl.constexpr):  # fmt: skip
    """Gradients of dy, dweight and dbias, from the gradient g `[images, classes]` of the logits' derivative."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    there, k = cols < C, tl.arange(0, BLOCK_K)
    real = k < classes
    fixed = tl.load(weight + k[:, None] * C + cols[None, :], mask=real[:, None] & there[None, :], other=0.0)
    moved = tl.zeros([BLOCK_K, BLOCK_C], tl.float32)
    shift = tl.zeros([BLOCK_K], tl.float32)
    for begin in range(0, images, BLOCK_N):
        image = begin + tl.arange(0, BLOCK_N)
        inside = (image < images)[:, None]
        slope = tl.load(g + image[:, None] * classes + k[None, :], mask=inside & real[None, :], other=0.0)
        mean = tl.load(means + image[:, None] * C + cols[None, :], mask=inside & there[None, :], other=0.0)
        moved = tl.dot(tl.trans(slope), mean, moved, input_precision=PRECISION)
        shift += tl.sum(slope, 0)
        back = tl.dot(slope, fixed, input_precision=PRECISION) / pixels
        for pixel in range(pixels):
            at = (image * pixels + pixel)[:, None] * C + cols[None, :]
            tl.store(ddy + at, back, mask=inside & there[None, :])
    tl.store(dweight + k[:, None] * C + cols[None, :], moved, mask=real[:, None] & there[None, :])
    tl.store(dbias + k, shift, mask=k < tl.where(tl.program_id(0) == 0, classes, 0))
