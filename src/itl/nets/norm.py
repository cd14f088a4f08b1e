"""Batch norm with what follows it (a residual sum, ReLU) as one operation, fused on CUDA while training.

Several batches can go through one forward, each with its own statistics (`grouped`): what DER++ does in three forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.kernels import kernels_of, launchable

# Sizes of the fused kernels, the same for every layer so that each is compiled once (searched: docs/performance.md).
PROGRAMS = 256  # of a kernel that reduces: about two for each multiprocessor
LANES = 128  # parts whose results the last program merges, at most
BLOCK_C, BLOCK_M, WARPS = 32, 64, 4
APPLY_C, APPLY_M, APPLY_WARPS = 64, 32, 4  # of a kernel that goes over all elements


def norm(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(bn(x) + residual), `[n, c, h, w]`; the last two steps where asked for."""
    groups = getattr(bn, "groups", 1)
    if bn.training and not _single(x, groups) and fusable(x, bn):
        y, again = FusedNorm.apply(x, residual, bn.weight, bn.bias, bn, relu)  # type: ignore[no-untyped-call]
        y.again = again
        return y  # type: ignore[no-any-return]
    if not bn.training and _constant(x, bn) and fusable(x, bn):
        return _frozen(x, residual, bn, relu)
    if bn.training and groups > 1:
        out = torch.cat([_batch_norm(bn, part) for part in x.chunk(groups)])
    else:
        out = _batch_norm(bn, x)
    if residual is not None:
        out = out + residual
    return F.relu(out) if relu else out


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """x for two layers. If it comes from a fused norm, that sums their gradients itself, without a kernel for it."""
    return x, getattr(x, "again", x)


def _batch_norm(bn: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """PyTorch's batch norm, less its count of batches, which nothing reads (momentum is a constant)."""
    momentum = bn.momentum if bn.momentum is not None else 0.1
    training = bn.training and not _single(x)
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, training, momentum, bn.eps)


def _constant(x: Tensor, bn: nn.BatchNorm2d) -> bool:
    """Whether nothing is to be differentiated: neither backwards nor, by `torch.func`, forwards."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not (torch.is_grad_enabled() or wrapped(x) or wrapped(bn.weight))


def _frozen(x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d, relu: bool) -> Tensor:
    """relu(bn(x) + residual) on running statistics, in one kernel."""
    assert bn.running_mean is not None
    assert bn.running_var is not None
    rstd = (bn.running_var + bn.eps).rsqrt()
    return _applied(x, residual, (bn.running_mean, rstd, bn.weight, bn.bias), relu)


def _applied(x: Tensor, residual: Tensor | None, known: tuple[Tensor, ...], relu: bool, groups: int = 1) -> Tensor:
    """relu((x − mean) / deviation · weight + bias + residual) in one kernel.

    `known` are mean and 1/deviation, `[groups, c]` each, weight and bias `[c]`.
    """
    y = torch.empty_like(x)
    other = x if residual is None else residual.contiguous(memory_format=torch.channels_last)
    grid, sizes, blocks = elementwise(x, groups)
    kernels_of("nets").apply_kernel[grid](
        x, other, y, *known, *sizes, HAS_RESIDUAL=residual is not None, RELU=relu, **blocks
    )
    return y


def _single(x: Tensor, groups: int = 1) -> bool:
    """One value a channel (a last batch of one image, shrunk to a pixel) has no deviation: running statistics do."""
    return x.numel() == groups * x.shape[1]


@contextmanager
def grouped(net: nn.Module, groups: int) -> Iterator[None]:
    """Within, a batch is `groups` equal batches behind one another, each normalised by its own statistics."""
    layers = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in layers:
        layer.groups = groups  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.groups = 1  # type: ignore[assignment]


def forwards(net: nn.Module, *batches: Tensor) -> tuple[Tensor, ...]:
    """The network on each batch, as if called one after another; batches of one shape share one forward on CUDA."""
    alike = len({batch.shape for batch in batches}) == 1 and getattr(net, "ours", False)
    if len(batches) == 1 or not alike or not launchable(batches[0].device) or not net.training:
        return tuple(net(batch) for batch in batches)
    with grouped(net, len(batches)):
        return tuple(net(torch.cat(batches)).chunk(len(batches)))


def fused_kernels(x: Tensor, *dtypes: torch.dtype) -> Any:
    """The fused kernels if they can take this: channels-last on CUDA, a channel count they know, Triton installed."""
    channels = x.shape[1]
    fits = (
        launchable(x.device)
        and x.dtype in dtypes
        and (channels % BLOCK_C == 0 or channels in (8, 16))
        and x.numel() < 2**31  # they count in 32 bits
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    return kernels_of("nets") if fits else None


def fusable(x: Tensor, bn: nn.BatchNorm2d) -> bool:
    """Whether a training-mode norm of x can be fused."""
    usual = bn.running_mean is not None and bn.momentum is not None
    return usual and fused_kernels(x, torch.bfloat16, torch.float32) is not None


def layout(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """For a reducing kernel over a channels-last tensor: the grid, (channels, splits, rows of a part, rows of a group,
    groups), the block sizes.
    """
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    block_c = min(BLOCK_C, channels)
    splits = max(1, min(LANES, PROGRAMS // (groups * (channels // block_c)), rows // 16))
    blocks = {"LANES": LANES, "BLOCK_M": BLOCK_M, "BLOCK_C": block_c, "num_warps": WARPS}
    return (splits * groups, channels // block_c), (channels, splits, -(-rows // splits), rows, groups), blocks


def elementwise(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, int], dict[str, int]]:
    """For a kernel over all elements: the grid, (channels, rows of a group), the block sizes."""
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    block_c = min(APPLY_C if channels % APPLY_C == 0 else BLOCK_C, channels)
    blocks = {"BLOCK_M": APPLY_M, "BLOCK_C": block_c, "num_warps": APPLY_WARPS}
    return (groups * -(-rows // APPLY_M), channels // block_c), (channels, rows), blocks


def tickets(bn: nn.BatchNorm2d) -> Tensor:
    """The norm's own counters of finished programs `[2, channel blocks]`: one row for each way."""
    own: Tensor | None = getattr(bn, "tickets", None)
    if own is None or own.device != bn.weight.device:
        own = torch.zeros((2, -(-bn.num_features // min(BLOCK_C, 8))), dtype=torch.int32, device=bn.weight.device)
        bn.tickets = own  # type: ignore[assignment]
    return own


class FusedNorm(torch.autograd.Function):
    """relu(batch_norm(x) + residual) in two kernels forward and two backward."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, bn: nn.BatchNorm2d, relu: bool
    ) -> tuple[Tensor, Tensor]:
        """`[n, c, h, w]` channels-last, twice; statistics over each of the norm's `groups` equal parts of the batch."""
        kernels, groups = kernels_of("nets"), getattr(bn, "groups", 1)
        grid, sizes, blocks = layout(x, groups)
        channels = x.shape[1]
        parts = x.new_empty((2, grid[0], channels), dtype=torch.float32)
        kept = x.new_empty((2, groups, channels), dtype=torch.float32)
        running = (bn.running_mean, bn.running_var)
        kernels.statistics_kernel[grid](
            x, parts[0], parts[1], kept[0], kept[1], *running, tickets(bn)[0], *sizes, bn.eps, bn.momentum, **blocks
        )
        y = _applied(x, residual, (kept[0], kept[1], weight, bias), relu, groups)
        # Without a residual, x alone tells where the ReLU let through: y need not be read again.
        ctx.save_for_backward(x, x if residual is None else y, weight, bias, kept)
        ctx.has_residual, ctx.relu, ctx.groups, ctx.tickets = residual is not None, relu, groups, tickets(bn)[1]
        ctx.set_materialize_grads(False)
        return y, y.data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of x, residual, weight and bias."""
        given = [g.contiguous(memory_format=torch.channels_last) for g in grads if g is not None]
        if not given:
            return (None,) * 6
        dy = (given[0], given[-1])
        kernels, groups = kernels_of("nets"), ctx.groups
        x, y, weight, bias, kept = ctx.saved_tensors
        grid, sizes, blocks = layout(x, groups)
        channels = x.shape[1]
        parts = x.new_empty((2, grid[0], channels), dtype=torch.float32)
        whole = x.new_empty((2, groups, channels), dtype=torch.float32)
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if ctx.has_residual else None
        affine = x.new_empty((2, channels), dtype=torch.float32)
        known = (kept[0], kept[1], weight, bias)
        how = {"TWO": len(given) == 2, "RELU": ctx.relu, "AGAIN": not ctx.has_residual}
        kernels.backward_reduce_kernel[grid](
            *dy, y, x, *known, parts[0], parts[1], whole[0], whole[1], affine[0], affine[1], ctx.tickets, *sizes,
            **how, **blocks,
        )  # fmt: skip
        grid, sizes, blocks = elementwise(x, groups)
        kernels.backward_apply_kernel[grid](
            *dy, y, x, dx, dx if dresidual is None else dresidual, *known, whole[0], whole[1], *sizes,
            HAS_RESIDUAL=ctx.has_residual, **how, **blocks,
        )  # fmt: skip
        return dx, dresidual, affine[0], affine[1], None, None
