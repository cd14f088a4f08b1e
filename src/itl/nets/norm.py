"""Batch norm, residual sum and ReLU as one operation, fused into one or two kernels on CUDA.

Several batches can share one forward pass, each normalized by its own statistics (`grouped_statistics`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.triton_support import kernels_for, load_kernels, supports_triton

# Launch parameters, the same for every layer so that each kernel is compiled once (tuned: docs/performance.md).
# C counts channels, M rows: a row is a pixel of a channels-last tensor.
REDUCE_PROGRAMS = 256  # programs of a reducing kernel: about two for each multiprocessor
MAX_PARTS = 128  # partial results that the last program of a reducing kernel merges
BLOCK_C, BLOCK_M, WARPS = 32, 64, 4
STAGES = 3  # blocks of rows that a reducing kernel prefetches
APPLY_C, APPLY_M, APPLY_WARPS = 64, 32, 4  # kernels over all elements
# Kernels that reduce and apply in one pass, because a program holds all rows of its channels.
SINGLE_PASS_MAX_ROWS, SINGLE_PASS_C, SINGLE_PASS_WARPS = 512, 8, 4


def norm(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(bn(x) + residual), `[n, c, h, w]`; the sum and the ReLU are optional."""
    groups = getattr(bn, "groups", 1)
    if bn.training and not _single(x, groups) and fusable(x, bn):
        y, again = FusedBatchNorm.apply(x, residual, bn.weight, bn.bias, bn, relu)  # type: ignore[no-untyped-call]
        y.again = again
        return y  # type: ignore[no-any-return]
    if not bn.training and needs_no_derivative(x, bn.weight) and fusable(x, bn):
        return _frozen(x, residual, bn, relu)
    if bn.training and groups > 1:
        out = torch.cat([_batch_norm(bn, part) for part in x.chunk(groups)])
    else:
        out = _batch_norm(bn, x)
    if residual is not None:
        out = out + residual
    return F.relu(out) if relu else out


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` for two consumers. If it is the output of a fused norm, that norm sums their gradients in its kernel."""
    return x, getattr(x, "again", x)


def _batch_norm(bn: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """PyTorch's batch norm without counting batches: the momentum is constant, so the count is not needed."""
    momentum = bn.momentum if bn.momentum is not None else 0.1
    training = bn.training and not _single(x)
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, training, momentum, bn.eps)


def needs_no_derivative(*tensors: Tensor) -> bool:
    """Whether neither autograd nor a `torch.func` transform differentiates through these tensors."""
    return not (torch.is_grad_enabled() or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)))


def _frozen(x: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d, relu: bool) -> Tensor:
    """relu(bn(x) + residual) with running statistics, in one kernel."""
    mean, var, weight, bias = running_stats(bn)
    return apply_norm(x, residual, (mean, (var + bn.eps).rsqrt(), weight, bias), relu)


def running_stats(bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Running mean, running variance, weight and bias of a norm, `[c]` each."""
    assert bn.running_mean is not None
    assert bn.running_var is not None
    return bn.running_mean, bn.running_var, bn.weight.detach(), bn.bias.detach()


def apply_norm(x: Tensor, residual: Tensor | None, params: tuple[Tensor, ...], relu: bool, groups: int = 1) -> Tensor:
    """relu((x − mean) · rstd · weight + bias + residual) in one kernel.

    Args:
        x: `[n, c, h, w]`.
        residual: Like `x`, or None.
        params: Mean and 1/standard deviation, `[groups, c]` each, then weight and bias, `[c]` each.
        relu: Whether to apply the ReLU.
        groups: Number of equal parts of the batch, which have their own statistics.
    """
    y = torch.empty_like(x)
    other = x if residual is None else residual.contiguous(memory_format=torch.channels_last)
    grid, sizes, blocks = elementwise_launch(x, groups)
    load_kernels("itl.nets.norm_kernels").apply_kernel[grid](
        x, other, y, *params, *sizes, HAS_RESIDUAL=residual is not None, RELU=relu, **blocks
    )
    return y


def _single(x: Tensor, groups: int = 1) -> bool:
    """Whether each channel has one value only, hence no variance; the running statistics are used then."""
    return x.numel() == groups * x.shape[1]


@contextmanager
def grouped_statistics(net: nn.Module, groups: int) -> Iterator[None]:
    """Treat each batch within the block as `groups` concatenated batches of equal size with separate statistics."""
    layers = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in layers:
        layer.groups = groups  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.groups = 1  # type: ignore[assignment]


@contextmanager
def fixed_running_statistics(net: nn.Module) -> Iterator[None]:
    """Within the block, training-mode batch norm uses the batch's statistics and leaves the running ones unchanged."""
    layers = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    saved = [(layer.momentum, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0  # for `norm`, which reads the momentum
        layer.track_running_stats = False  # for the forward of a torch module, which counts batches otherwise
    try:
        yield
    finally:
        for layer, (momentum, tracks) in zip(layers, saved, strict=True):
            layer.momentum, layer.track_running_stats = momentum, tracks


def forward_each(net: nn.Module, *batches: Tensor) -> tuple[Tensor, ...]:
    """Logits of each batch, as from separate forward passes.

    Batch norm never mixes the batches. On CUDA, batches of the same shape share one pass if the network supports it.

    Args:
        net: The network.
        batches: Images `[n, channels, height, width]` each.

    Returns:
        Logits `[n, classes]` for each batch.
    """
    alike = len({batch.shape for batch in batches}) == 1 and getattr(net, "supports_fused_paths", False)
    if len(batches) == 1 or not alike or not supports_triton(batches[0].device) or not net.training:
        return tuple(net(batch) for batch in batches)
    with grouped_statistics(net, len(batches)):
        return tuple(net(torch.cat(batches)).chunk(len(batches)))


def fused_kernels_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """The kernels' module if they support `x`, else None.

    They need Triton, a CUDA tensor of one of `dtypes` in channels-last layout, and a supported number of channels.
    """
    kernels, channels = kernels_for(x.device, "itl.nets.norm_kernels"), x.shape[1]
    if kernels is None:  # check this before sizes, so that an exported program does not depend on the batch size
        return None
    supported = (
        x.dtype in dtypes
        and (channels % BLOCK_C == 0 or channels in (8, 16))
        and x.numel() < 2**31  # the kernels use 32-bit offsets
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    return kernels if supported else None


def fusable(x: Tensor, bn: nn.BatchNorm2d) -> bool:
    """Whether the kernels support this norm of `x`."""
    usual = bn.running_mean is not None and bn.momentum is not None
    return usual and fused_kernels_for(x, torch.bfloat16, torch.float32) is not None


def reduction_launch(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """Launch parameters of a reducing kernel over a channels-last tensor.

    Returns:
        The grid, (channels, parts, rows of a part, rows of a group, groups), and the block sizes.
    """
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    block_c = min(BLOCK_C, channels)
    splits = max(1, min(MAX_PARTS, REDUCE_PROGRAMS // (groups * (channels // block_c)), rows // 16))
    blocks = {"MAX_PARTS": MAX_PARTS, "BLOCK_M": BLOCK_M, "BLOCK_C": block_c, "STAGES": STAGES, "num_warps": WARPS}
    return (splits * groups, channels // block_c), (channels, splits, -(-rows // splits), rows, groups), blocks


def elementwise_launch(x: Tensor, groups: int) -> tuple[tuple[int, int], tuple[int, int], dict[str, int]]:
    """Launch parameters of a kernel over all elements: grid, (channels, rows of a group), block sizes."""
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    block_c = min(APPLY_C if channels % APPLY_C == 0 else BLOCK_C, channels)
    blocks = {"BLOCK_M": APPLY_M, "BLOCK_C": block_c, "num_warps": APPLY_WARPS}
    return (groups * -(-rows // APPLY_M), channels // block_c), (channels, rows), blocks


def single_pass_launch(x: Tensor, groups: int) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]] | None:
    """Launch parameters of a kernel whose programs hold all rows of their channels; None if there are too many rows.

    Returns:
        The grid, (channels, rows of a group, groups), and the block sizes.
    """
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    if rows > SINGLE_PASS_MAX_ROWS:
        return None
    blocks = {"BLOCK_M": SINGLE_PASS_MAX_ROWS, "BLOCK_C": SINGLE_PASS_C, "num_warps": SINGLE_PASS_WARPS}
    return (channels // SINGLE_PASS_C,), (channels, rows, groups), blocks


def program_counters(bn: nn.BatchNorm2d) -> Tensor:
    """The norm's counters of finished programs, int32 `[2, channel blocks]`: forward, then backward."""
    own: Tensor | None = getattr(bn, "program_counters", None)
    if own is None or own.device != bn.weight.device:
        own = torch.zeros((2, -(-bn.num_features // min(BLOCK_C, 8))), dtype=torch.int32, device=bn.weight.device)
        bn.program_counters = own  # type: ignore[assignment]
    return own


class FusedBatchNorm(torch.autograd.Function):
    """relu(batch_norm(x) + residual): two kernels forward and two backward, or one each if there are few rows."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, bn: nn.BatchNorm2d, relu: bool
    ) -> tuple[Tensor, Tensor]:
        """The output `[n, c, h, w]`, twice (see `fork`); each of the norm's `groups` has its own statistics."""
        kernels, groups = load_kernels("itl.nets.norm_kernels"), getattr(bn, "groups", 1)
        kept = x.new_empty((2, groups, x.shape[1]), dtype=torch.float32)
        running, few = (bn.running_mean, bn.running_var), single_pass_launch(x, groups)
        if few is not None:
            grid, sizes, blocks = few
            y = torch.empty_like(x)
            other = x if residual is None else residual.contiguous(memory_format=torch.channels_last)
            kernels.single_pass_kernel[grid](
                x, other, y, kept[0], kept[1], *running, weight, bias, *sizes, bn.eps, bn.momentum,
                HAS_RESIDUAL=residual is not None, RELU=relu, **blocks,
            )  # fmt: skip
        else:
            _statistics(x, kept, bn, groups)
            y = apply_norm(x, residual, (kept[0], kept[1], weight, bias), relu, groups)
        # Without a residual, the sign of the ReLU's input follows from x, so y is not read again.
        ctx.save_for_backward(x, x if residual is None else y, weight, bias, kept)
        ctx.has_residual, ctx.relu, ctx.groups, ctx.bn = residual is not None, relu, groups, bn
        ctx.set_materialize_grads(False)
        return y, y.data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of x, residual, weight and bias."""
        given = [g.contiguous(memory_format=torch.channels_last) for g in grads if g is not None]
        if not given:
            return (None,) * 6
        kernels, groups = load_kernels("itl.nets.norm_kernels"), ctx.groups
        x, y, weight, bias, kept = ctx.saved_tensors
        dx, two, again = torch.empty_like(x), len(given) == 2, not ctx.has_residual
        affine = x.new_empty((2, x.shape[1]), dtype=torch.float32)
        params = (kept[0], kept[1], weight, bias)
        few = single_pass_launch(x, groups)
        if few is not None:
            grid, sizes, blocks = few
            dresidual = torch.empty_like(x) if ctx.has_residual else None
            kernels.single_pass_backward_kernel[grid](
                given[0], given[-1], y, x, dx, dx if dresidual is None else dresidual, *params, affine[0], affine[1],
                *sizes, HAS_RESIDUAL=ctx.has_residual, TWO_GRADS=two, RELU=ctx.relu, RECOMPUTE=again, **blocks,
            )  # fmt: skip
            return dx, dresidual, affine[0], affine[1], None, None
        # Store dz if the second kernel would have to read two gradients, or if it is the residual's gradient. Otherwise
        # both kernels compute it from x.
        keep = two or (ctx.has_residual and ctx.relu)
        dz = torch.empty_like(x) if keep else given[0]
        sums = reduce_gradients((given[0], given[-1], y, x, dz), params, affine, program_counters(ctx.bn)[1], groups,
                       {"TWO_GRADS": two, "RELU": ctx.relu, "RECOMPUTE": again, "STORE": keep})  # fmt: skip
        over, each, shape = elementwise_launch(x, groups)
        kernels.backward_apply_kernel[over](
            dz, x, dx, *params, sums[0], sums[1], *each, RECOMPUTE=ctx.relu and not keep, **shape
        )
        return dx, dz if ctx.has_residual else None, affine[0], affine[1], None, None


def _statistics(x: Tensor, kept: Tensor, bn: nn.BatchNorm2d, groups: int) -> None:
    """Write each group's mean and 1/standard deviation to `kept` `[2, groups, c]`; update the running statistics."""
    grid, sizes, blocks = reduction_launch(x, groups)
    parts = x.new_empty((2, grid[0], x.shape[1]), dtype=torch.float32)
    load_kernels("itl.nets.norm_kernels").statistics_kernel[grid](
        x, parts[0], parts[1], kept[0], kept[1], bn.running_mean, bn.running_var, program_counters(bn)[0], *sizes,
        bn.eps, bn.momentum, **blocks,
    )  # fmt: skip


def reduce_gradients(
    given: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    params: tuple[Tensor, ...],
    affine: Tensor,
    counters: Tensor,
    groups: int,
    flags: dict[str, bool],
) -> Tensor:
    """Reduce gradients over the rows of each group.

    Args:
        given: Two summands of y's gradient (the same tensor twice unless `TWO_GRADS`), y, x, and the tensor that dz is
            written to if `STORE`, `[n, c, h, w]` each.
        params: Mean and 1/standard deviation, `[groups, c]` each, then weight and bias, `[c]` each.
        affine: Receives the gradients of weight and bias `[2, c]`.
        counters: Counters of finished programs, see `program_counters`.
        groups: Number of equal parts of the batch.
        flags: Compile-time flags of the kernel.

    Returns:
        Σ dz and Σ dz·x̂ of each group, `[2, groups, c]`.
    """
    x = given[3]
    grid, sizes, blocks = reduction_launch(x, groups)
    parts = x.new_empty((2, grid[0], x.shape[1]), dtype=torch.float32)
    sums = x.new_empty((2, groups, x.shape[1]), dtype=torch.float32)
    load_kernels("itl.nets.norm_kernels").backward_reduce_kernel[grid](
        *given,
        *params,
        parts[0],
        parts[1],
        sums[0],
        sums[1],
        affine[0],
        affine[1],
        counters,
        *sizes,
        **flags,
        **blocks,
    )
    return sums
