# mypy: ignore-errors
"""Triton kernels for batch norm with residual sum and ReLU.

They compute the forward and backward pass in training mode and the forward-mode derivative in evaluation mode.

PyTorch needs three to five kernels each, forward and backward, for `relu(batch_norm(x) + residual)` on channels-last
bf16, a third of the time of a replay step. Here two kernels do it: one reduces, one applies; with few rows, a single
kernel does both. Rows are pixels (n·h·w of a channels-last tensor), split into equal parts over programs. The program
that finishes last merges the parts in a fixed order, so the result is deterministic and there is no third kernel.
`counters` `[channel blocks]` (int32, zero before and after) count the finished programs.

A tensor may hold `groups` concatenated batches with separate statistics: several forward passes in one.
"""

from __future__ import annotations

import triton
import triton.language as tl

# One compiled kernel serves every layer: sizes are run-time arguments, block sizes are the same everywhere.
# C stays specialized, because loads are wide only if it is known to be a multiple of 16.
SIZES = ("splits", "part_rows", "group_rows", "groups")


@triton.jit
def _is_last(counters, programs):
    """Whether all other programs of this channel block have stored their results. Resets the counter if so."""
    tl.debug_barrier()  # all threads of this program have stored
    finished = tl.atomic_add(counters + tl.program_id(1), 1, sem="acq_rel")
    last = finished == programs - 1
    if last:
        tl.store(counters + tl.program_id(1), 0)
    return last


@triton.jit
def _parts(values, group, cols, C, splits, MAX_PARTS: tl.constexpr):
    """Results of a group's parts `[MAX_PARTS, channels]`; bypasses the L1 cache, because other programs wrote them."""
    part = tl.arange(0, MAX_PARTS)
    at = (group * splits + part)[:, None] * C + cols[None, :]
    return tl.load(values + at, mask=(part < splits)[:, None], other=0.0, cache_modifier=".cg")


@triton.jit
def _relu_backward(dz, value, scale, shift, out_at, inside, RECOMPUTE: tl.constexpr):
    """`dz` where the ReLU's input is positive; that input is recomputed (`RECOMPUTE`) or read."""
    if RECOMPUTE:
        out = value * scale[None, :] + shift[None, :]
    else:
        out = tl.load(out_at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(out > 0, dz, 0.0)


@triton.jit(do_not_specialize=SIZES)
def statistics_kernel(x, means, squares, kept_mean, kept_rstd, running_mean, running_var, counters,
                      C, splits, part_rows, group_rows, groups, eps, momentum,
                      MAX_PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
                      STAGES: tl.constexpr):  # fmt: skip
    """Mean and 1/standard deviation of each group and channel in float32; updates the running statistics.

    Each part stores its mean and sum of squared deviations; the last program merges them (Chan et al.).
    """
    part = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, local = part // splits, part % splits
    first = group * group_rows + local * part_rows
    stop = group * group_rows + tl.minimum((local + 1) * part_rows, group_rows)
    count = tl.maximum(stop - first, 0).to(tl.float32)
    # Sums are relative to the part's first row, so that a large mean causes no cancellation.
    pivot = tl.load(x + first * C + cols, mask=cols < tl.where(stop > first, C, 0), other=0.0).to(tl.float32)
    totals = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    powers = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for begin in tl.range(0, part_rows, BLOCK_M, num_stages=STAGES):
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
    if _is_last(counters, splits * groups):
        lane = tl.arange(0, MAX_PARTS)
        weight = tl.maximum(tl.minimum(part_rows, group_rows - lane * part_rows), 0).to(tl.float32)[:, None]
        now_mean = tl.load(running_mean + cols)
        now_var = tl.load(running_var + cols)
        for g in range(groups):
            part_mean = _parts(means, g, cols, C, splits, MAX_PARTS)
            mean = tl.sum(part_mean * weight, 0) / group_rows
            away = part_mean - mean[None, :]
            within = _parts(squares, g, cols, C, splits, MAX_PARTS)
            variance = tl.sum(within + tl.where((lane < splits)[:, None], away * away * weight, 0.0), 0) / group_rows
            tl.store(kept_mean + g * C + cols, mean)
            tl.store(kept_rstd + g * C + cols, 1.0 / tl.sqrt(variance + eps))
            # One update per group, as by separate forward passes; the running variance is unbiased.
            now_mean += momentum * (mean - now_mean)
            now_var += momentum * (variance * group_rows / (group_rows - 1) - now_var)
        tl.store(running_mean + cols, now_mean)
        tl.store(running_var + cols, now_var)


@triton.jit
def _rows(group_rows, BLOCK_M: tl.constexpr):
    """The group of an elementwise program, its rows `[BLOCK_M]`, and which of them exist."""
    each = tl.cdiv(group_rows, BLOCK_M)
    group = tl.program_id(0) // each
    local = (tl.program_id(0) % each) * BLOCK_M + tl.arange(0, BLOCK_M)
    return group, group * group_rows + local, local < group_rows


@triton.jit(do_not_specialize=("group_rows",))
def apply_kernel(x, residual, y, kept_mean, kept_rstd, weight, bias, C, group_rows,
                 HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`y = relu(batch_norm(x) + residual)`."""
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, rows, there = _rows(group_rows, BLOCK_M)
    inside = there[:, None]
    at = rows[:, None] * C + cols[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(kept_mean + group * C + cols)
    scale = tl.load(weight + cols) * tl.load(kept_rstd + group * C + cols)
    shift = tl.load(bias + cols) - mean * scale
    value = value * scale[None, :] + shift[None, :]
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def backward_reduce_kernel(dy, dother, y, x, dz, kept_mean, kept_rstd, weight, bias, sums, products,
                           group_sums, group_products, dweight, dbias, counters,
                           C, splits, part_rows, group_rows, groups,
                           TWO_GRADS: tl.constexpr, RELU: tl.constexpr, RECOMPUTE: tl.constexpr, STORE: tl.constexpr,
                           MAX_PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
                           STAGES: tl.constexpr):  # fmt: skip
    """Σ dz and Σ dz·x̂ of each group, where dz = dy if the ReLU's input is positive; gradients of weight and bias.

    `TWO_GRADS`: y's gradient is dy + dother. `RECOMPUTE`: recompute the ReLU's mask from x, which is read anyway,
    instead of reading y. `STORE`: store dz, which is also the residual's gradient.
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
    for begin in tl.range(0, part_rows, BLOCK_M, num_stages=STAGES):
        rows = first + begin + tl.arange(0, BLOCK_M)
        inside = (rows < stop)[:, None]
        at = rows[:, None] * C + cols[None, :]
        slope = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if TWO_GRADS:
            slope += tl.load(dother + at, mask=inside, other=0.0).to(tl.float32)
            slope = slope.to(dy.dtype.element_ty).to(tl.float32)  # rounded like a sum in that precision
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            slope = _relu_backward(slope, value, scale, shift, y + at, inside, RECOMPUTE)
        if STORE:
            tl.store(dz + at, slope.to(dz.dtype.element_ty), mask=inside)
        totals += slope
        turned += slope * (value - mean[None, :])
    tl.store(sums + part * C + cols, tl.sum(totals, 0))
    tl.store(products + part * C + cols, tl.sum(turned, 0) * rstd)
    if _is_last(counters, splits * groups):
        whole_sum = tl.zeros([BLOCK_C], tl.float32)
        whole_product = tl.zeros([BLOCK_C], tl.float32)
        for g in range(groups):
            group_sum = tl.sum(_parts(sums, g, cols, C, splits, MAX_PARTS), 0)
            group_product = tl.sum(_parts(products, g, cols, C, splits, MAX_PARTS), 0)
            tl.store(group_sums + g * C + cols, group_sum)
            tl.store(group_products + g * C + cols, group_product)
            whole_sum += group_sum
            whole_product += group_product
        tl.store(dbias + cols, whole_sum)
        tl.store(dweight + cols, whole_product)


@triton.jit(do_not_specialize=("group_rows",))
def backward_apply_kernel(dz, x, dx, kept_mean, kept_rstd, weight, bias, group_sums, group_products, C, group_rows,
                          RECOMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`dx = γ/σ (dz − mean dz − x̂ mean(dz·x̂))`. `RECOMPUTE`: apply the ReLU's mask to dz, recomputed from x."""
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    group, rows, there = _rows(group_rows, BLOCK_M)
    inside = there[:, None]
    at = rows[:, None] * C + cols[None, :]
    slope = tl.load(dz + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(kept_mean + group * C + cols)
    rstd = tl.load(kept_rstd + group * C + cols)
    scale = tl.load(weight + cols) * rstd
    along = tl.load(group_sums + group * C + cols) / group_rows
    turned = tl.load(group_products + group * C + cols) / group_rows
    if RECOMPUTE:
        slope = _relu_backward(slope, value, scale, tl.load(bias + cols) - mean * scale, x + at, inside, True)
    hat = (value - mean[None, :]) * rstd[None, :]
    slope = scale[None, :] * (slope - along[None, :] - hat * turned[None, :])
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=("rows",))
def norm_jvp_kernel(z, a, b, residual, dresidual, y, dy, mean, var, weight, bias, dweight, dbias, rstd, C, rows, eps,
                    HAS_B: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_DRESIDUAL: tl.constexpr, RELU: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`y = relu(norm(z) + residual)` in evaluation mode, and dy, its derivative along (dz = a + b, dresidual, dγ, dβ).

    1/standard deviation is stored in `rstd` `[C]` for the backward pass.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None]
    at = row[:, None] * C + cols[None, :]
    gamma, spread = tl.load(weight + cols), 1.0 / tl.sqrt(tl.load(var + cols) + eps)
    tl.store(rstd + cols, spread, mask=cols < tl.where(tl.program_id(0) == 0, C, 0))
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


@triton.jit(do_not_specialize=("rows",))
def norm_jvp_backward_kernel(g, y, da, dresidual, rstd, weight, C, rows,
                         HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """Gradients of a (equal to that of b) and dresidual, from the gradient of dy."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None]
    at = row[:, None] * C + cols[None, :]
    value = tl.load(g + at, mask=inside, other=0.0)
    if RELU:
        value = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, value, 0.0)
    if HAS_RESIDUAL:
        tl.store(dresidual + at, value, mask=inside)
    tl.store(da + at, value * (tl.load(weight + cols) * tl.load(rstd + cols))[None, :], mask=inside)


@triton.jit(do_not_specialize=("group_rows", "groups"))
def single_pass_kernel(x, residual, y, kept_mean, kept_rstd, running_mean, running_var, weight, bias,
                 C, group_rows, groups, eps, momentum,
                 HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`statistics_kernel` and `apply_kernel` in one, for groups of at most BLOCK_M rows, which one program holds."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    local = tl.arange(0, BLOCK_M)
    inside = (local < group_rows)[:, None]
    now_mean = tl.load(running_mean + cols)
    now_var = tl.load(running_var + cols)
    gamma, beta = tl.load(weight + cols), tl.load(bias + cols)
    for g in range(groups):
        at = (g * group_rows + local)[:, None] * C + cols[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(value, 0) / group_rows
        away = tl.where(inside, value - mean[None, :], 0.0)
        variance = tl.sum(away * away, 0) / group_rows
        rstd = 1.0 / tl.sqrt(variance + eps)
        tl.store(kept_mean + g * C + cols, mean)
        tl.store(kept_rstd + g * C + cols, rstd)
        now_mean += momentum * (mean - now_mean)
        now_var += momentum * (variance * group_rows / (group_rows - 1) - now_var)
        scale = gamma * rstd
        value = value * scale[None, :] + (beta - mean * scale)[None, :]
        if HAS_RESIDUAL:
            value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
    tl.store(running_mean + cols, now_mean)
    tl.store(running_var + cols, now_var)


@triton.jit(do_not_specialize=("group_rows", "groups"))
def single_pass_backward_kernel(dy, dother, y, x, dx, dresidual, kept_mean, kept_rstd, weight, bias, dweight, dbias,
                          C, group_rows, groups,
                          HAS_RESIDUAL: tl.constexpr, TWO_GRADS: tl.constexpr, RELU: tl.constexpr,
                          RECOMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`backward_reduce_kernel` and `backward_apply_kernel` in one, for groups of at most BLOCK_M rows.

    `TWO_GRADS`: dy comes in two summands.
    """
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    local = tl.arange(0, BLOCK_M)
    inside = (local < group_rows)[:, None]
    whole_sum = tl.zeros([BLOCK_C], tl.float32)
    whole_product = tl.zeros([BLOCK_C], tl.float32)
    gamma = tl.load(weight + cols)
    for g in range(groups):
        at = (g * group_rows + local)[:, None] * C + cols[None, :]
        mean, rstd = tl.load(kept_mean + g * C + cols), tl.load(kept_rstd + g * C + cols)
        scale = gamma * rstd
        dz = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if TWO_GRADS:
            dz += tl.load(dother + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            dz = _relu_backward(dz, value, scale, tl.load(bias + cols) - mean * scale, y + at, inside, RECOMPUTE)
        if HAS_RESIDUAL:
            tl.store(dresidual + at, dz.to(dresidual.dtype.element_ty), mask=inside)
        hat = (value - mean[None, :]) * rstd[None, :]
        total, product = tl.sum(dz, 0), tl.sum(dz * hat, 0)
        whole_sum += total
        whole_product += product
        slope = scale[None, :] * (dz - (total / group_rows)[None, :] - hat * (product / group_rows)[None, :])
        tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=inside)
    tl.store(dbias + cols, whole_sum)
    tl.store(dweight + cols, whole_product)


@triton.jit(do_not_specialize=("rows",))
def single_pass_norm_jvp_backward_kernel(g, y, z, da, dresidual, mean, rstd, weight, dweight, dbias, C, rows,
                               HAS_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
                               BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """`norm_jvp_backward_kernel` and the gradients of dγ and dβ in one, for at most BLOCK_M rows."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.arange(0, BLOCK_M)
    inside = (row < rows)[:, None]
    at = row[:, None] * C + cols[None, :]
    value = tl.load(g + at, mask=inside, other=0.0)
    spread = tl.load(rstd + cols)
    hat = (tl.load(z + at, mask=inside, other=0.0) - tl.load(mean + cols)[None, :]) * spread[None, :]
    if RELU:
        value = tl.where(tl.load(y + at, mask=inside, other=0.0) > 0, value, 0.0)
    if HAS_RESIDUAL:
        tl.store(dresidual + at, value, mask=inside)
    tl.store(da + at, value * (tl.load(weight + cols) * spread)[None, :], mask=inside)
    tl.store(dbias + cols, tl.sum(value, 0))
    tl.store(dweight + cols, tl.sum(value * hat, 0))
