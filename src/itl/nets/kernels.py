# mypy: ignore-errors
"""Triton kernels for batch norm in training mode, with the residual sum and ReLU that follow it, forward and backward.

PyTorch needs three to five kernels each way for `relu(batch_norm(x) + residual)` on channels-last bf16, and they are a
third of a replay step. Here it is two: one that reduces, one that applies. Rows are pixels (n·h·w of a channels-last
tensor), split into equal parts over programs; every program of the second kernel merges the parts' results itself, in
a fixed order, so that the result is deterministic and no third kernel or atomic is needed.

`groups` batches can stand behind one another in one tensor, each with its own statistics: several forwards in one.
"""

from __future__ import annotations

import triton
import triton.language as tl

# One compiled kernel serves every layer: sizes are run-time arguments, blocks and lanes are the same everywhere.
# (C keeps its specialisation: that it is a multiple of 16 is what lets loads be wide.)
SIZES = ("splits", "part_rows", "group_rows", "groups")


@triton.jit
def _merge(means, squares, group, cols, C, splits, part_rows, group_rows, LANES: tl.constexpr):
    """Mean and biased variance of a group from its parts' means and sums of squared deviations (Chan et al.)."""
    part = tl.arange(0, LANES)
    at = (group * splits + part)[:, None] * C + cols[None, :]
    count = tl.maximum(tl.minimum(part_rows, group_rows - part * part_rows), 0).to(tl.float32)[:, None]
    there = (part < splits)[:, None]
    part_mean = tl.load(means + at, mask=there, other=0.0)
    mean = tl.sum(part_mean * count, 0) / group_rows
    away = part_mean - mean[None, :]
    variance = tl.sum(tl.load(squares + at, mask=there, other=0.0) + away * away * count, 0) / group_rows
    return mean, variance


@triton.jit(do_not_specialize=SIZES)
def statistics_kernel(x, means, squares, C, splits, part_rows, group_rows,
                      LANES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """Each part's mean and sum of squared deviations, channel by channel, in float32."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, local = part // splits, part % splits
    first = group * group_rows + local * part_rows
    stop = group * group_rows + tl.minimum((local + 1) * part_rows, group_rows)
    count = tl.maximum(stop - first, 0).to(tl.float32)
    # Sums around the part's first row: no cancellation when a channel's mean is far from zero.
    pivot = tl.load(x + first * C + cols, mask=cols < tl.where(stop > first, C, 0), other=0.0).to(tl.float32)
    totals = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    powers = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for begin in range(0, part_rows, BLOCK_M):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        value = tl.load(x + rows[:, None] * C + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - pivot[None, :], 0.0)
        totals += value
        powers += value * value
    total, square = tl.sum(totals, 0), tl.sum(powers, 0)
    safe = tl.maximum(count, 1.0)
    tl.store(means + part * C + cols, pivot + total / safe)
    tl.store(squares + part * C + cols, square - total * total / safe)


@triton.jit(do_not_specialize=SIZES)
def apply_kernel(x, residual, y, means, squares, weight, bias, kept_mean, kept_rstd, running_mean, running_var,
                 C, splits, part_rows, group_rows, groups, eps, momentum,
                 HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, LANES: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """y = relu(batch_norm(x) + residual); keeps mean and 1/deviation, and updates the running statistics."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, local = part // splits, part % splits
    mean, variance = _merge(means, squares, group, cols, C, splits, part_rows, group_rows, LANES)
    rstd = 1.0 / tl.sqrt(variance + eps)
    if local == 0:
        tl.store(kept_mean + group * C + cols, mean)
        tl.store(kept_rstd + group * C + cols, rstd)
    if part == 0:
        # One after another, as separate forwards would have done it; the running variance is the unbiased one.
        now_mean = tl.load(running_mean + cols)
        now_var = tl.load(running_var + cols)
        for g in range(groups):
            m, v = _merge(means, squares, g, cols, C, splits, part_rows, group_rows, LANES)
            now_mean += momentum * (m - now_mean)
            now_var += momentum * (v * group_rows / (group_rows - 1) - now_var)
        tl.store(running_mean + cols, now_mean)
        tl.store(running_var + cols, now_var)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    first = group * group_rows + local * part_rows
    stop = group * group_rows + tl.minimum((local + 1) * part_rows, group_rows)
    for begin in range(0, part_rows, BLOCK_M):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        at = rows[:, None] * C + cols[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if HAS_RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def backward_reduce_kernel(dy, y, x, kept_mean, kept_rstd, weight, bias, sums, products,
                           C, splits, part_rows, group_rows,
                           RELU: tl.constexpr, AGAIN: tl.constexpr, LANES: tl.constexpr,
                           BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """Each part's Σ dz and Σ dz·x̂, with dz = dy where the ReLU let through.

    `AGAIN`: whether it did is computed from x again, which is read anyway, instead of read from y.
    """
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, local = part // splits, part % splits
    mean = tl.load(kept_mean + group * C + cols)
    rstd = tl.load(kept_rstd + group * C + cols)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    first = group * group_rows + local * part_rows
    stop = group * group_rows + tl.minimum((local + 1) * part_rows, group_rows)
    totals = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    turned = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for begin in range(0, part_rows, BLOCK_M):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        at = rows[:, None] * C + cols[None, :]
        dz = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            if AGAIN:
                out = value * scale[None, :] + shift[None, :]
            else:
                out = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            dz = tl.where(out > 0, dz, 0.0)
        totals += dz
        turned += dz * (value - mean[None, :])
    tl.store(sums + part * C + cols, tl.sum(totals, 0))
    tl.store(products + part * C + cols, tl.sum(turned, 0) * rstd)


@triton.jit
def _total(parts, group, cols, C, splits, LANES: tl.constexpr):
    """A group's sum over its parts."""
    part = tl.arange(0, LANES)
    at = (group * splits + part)[:, None] * C + cols[None, :]
    return tl.sum(tl.load(parts + at, mask=(part < splits)[:, None], other=0.0), 0)


@triton.jit(do_not_specialize=SIZES)
def backward_apply_kernel(dy, y, x, dx, dresidual, kept_mean, kept_rstd, weight, bias, sums, products, dweight, dbias,
                          C, splits, part_rows, group_rows, groups,
                          HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, AGAIN: tl.constexpr, LANES: tl.constexpr,
                          BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """dx = γ/σ (dz − mean dz − x̂ mean(dz·x̂)), the residual's gradient dz, and those of weight and bias."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, local = part // splits, part % splits
    mean = tl.load(kept_mean + group * C + cols)
    rstd = tl.load(kept_rstd + group * C + cols)
    along = _total(sums, group, cols, C, splits, LANES) / group_rows
    turned = _total(products, group, cols, C, splits, LANES) / group_rows
    if part == 0:
        whole_sum = tl.zeros([BLOCK_C], tl.float32)
        whole_product = tl.zeros([BLOCK_C], tl.float32)
        for g in range(groups):
            whole_sum += _total(sums, g, cols, C, splits, LANES)
            whole_product += _total(products, g, cols, C, splits, LANES)
        tl.store(dbias + cols, whole_sum)
        tl.store(dweight + cols, whole_product)
    scale = tl.load(weight + cols) * rstd
    shift = tl.load(bias + cols) - mean * scale
    first = group * group_rows + local * part_rows
    stop = group * group_rows + tl.minimum((local + 1) * part_rows, group_rows)
    for begin in range(0, part_rows, BLOCK_M):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        at = rows[:, None] * C + cols[None, :]
        dz = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            if AGAIN:
                out = value * scale[None, :] + shift[None, :]
            else:
                out = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
            dz = tl.where(out > 0, dz, 0.0)
        if HAS_RESIDUAL:
            tl.store(dresidual + at, dz.to(dresidual.dtype.element_ty), mask=inside)
        hat = (value - mean[None, :]) * rstd[None, :]
        slope = scale[None, :] * (dz - along[None, :] - hat * turned[None, :])
        tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def dual_kernel(z, a, b, residual, dresidual, y, dy, mean, rstd, weight, bias, dweight, dbias, C, rows,
                HAS_B: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_DRESIDUAL: tl.constexpr, RELU: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """y = relu(norm(z) + residual) in evaluation mode, and dy, its derivative along (dz = a + b, dresidual, dγ, dβ)."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None]
    at = row[:, None] * C + cols[None, :]
    gamma, spread = tl.load(weight + cols), tl.load(rstd + cols)
    hat = (tl.load(z + at, mask=inside, other=0.0) - tl.load(mean + cols)[None, :]) * spread[None, :]
    value = hat * gamma[None, :] + tl.load(bias + cols)[None, :]
    along = tl.load(a + at, mask=inside, other=0.0)
    if HAS_B:
        along += tl.load(b + at, mask=inside, other=0.0)
    along = along * (gamma * spread)[None, :] + hat * tl.load(dweight + cols)[None, :] + tl.load(dbias + cols)[None, :]
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0)
    if HAS_DRESIDUAL:
        along += tl.load(dresidual + at, mask=inside, other=0.0)
    if RELU:
        along = tl.where(value > 0, along, 0.0)
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value, mask=inside)
    tl.store(dy + at, along, mask=inside)


@triton.jit(do_not_specialize=SIZES)
def dual_backward_kernel(g, y, da, dresidual, rstd, weight, sums, products, dweight, dbias,
                         C, splits, part_rows, group_rows,
                         HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr, LANES: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """The gradients of a (= that of b), dresidual, dγ and dβ from that of dy; `sums`, `products` as in the other."""
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if part == 0:
        tl.store(dbias + cols, _total(sums, 0, cols, C, splits, LANES))
        tl.store(dweight + cols, _total(products, 0, cols, C, splits, LANES))
    scale = tl.load(weight + cols) * tl.load(rstd + cols)
    first = part * part_rows
    stop = tl.minimum(first + part_rows, group_rows)
    for begin in range(0, part_rows, BLOCK_M):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        at = rows[:, None] * C + cols[None, :]
        value = tl.load(g + at, mask=inside, other=0.0)
        if RELU:
            value = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, value, 0.0)
        if HAS_RESIDUAL:
            tl.store(dresidual + at, value, mask=inside)
        tl.store(da + at, value * scale[None, :], mask=inside)
