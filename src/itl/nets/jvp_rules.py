"""Forward-mode derivatives (Jacobian-vector products) of the ResNet family's layers, in evaluation mode.

Each rule maps a value and its derivative (x, dx) to (y, dy), along a direction w of the parameters. The result equals
`torch.func.jvp` with less overhead: values need no autograd graph, and a norm with its derivative is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itl.nets import pooled_classifier
from itl.nets.norm import (
    elementwise_launch,
    fused_kernels_for,
    program_counters,
    reduce_gradients,
    running_stats,
    single_pass_launch,
)
from itl.nets.overlapped_conv import SideStreamConv, WaitForStream
from itl.nets.resnet import BasicBlock, Bottleneck, GlobalAvgPool, Shortcut, Stem

Vector = dict[str, Tensor]
Pair = tuple[Tensor, Tensor | None]  # a value and its derivative; None for a derivative of zero


def supports(module: nn.Module) -> bool:
    """Whether there is a rule for every layer of `module`."""
    return type(module) in RULES and all(
        supports(child) for child in module.children() if type(module) is nn.Sequential
    )


@dataclass
class JVPContext:
    """Inputs of one Jacobian-vector product.

    Attributes:
        w: The direction: one tensor for each parameter.
        known: Convolution outputs by layer name, or None. They do not depend on `w`, so they can be given in advance;
            missing ones are computed and added.
        side_stream: CUDA stream for the convolutions with `w` and their gradients, which the chain need not wait for.
        fuse_pooling: Whether the module ends in pooling and a classifier that one kernel can compute.
    """

    w: Vector
    known: Vector | None
    side_stream: torch.cuda.Stream | None
    fuse_pooling: bool

    @torch.no_grad()
    def conv_output(self, name: str, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """The output of the convolution called `name`."""
        z = None if self.known is None else self.known.get(name)
        if z is None:
            z = F.conv2d(x, conv.weight, None, conv.stride, conv.padding)  # type: ignore[arg-type]
            if self.known is not None:
                self.known[name] = z
        return z


def jvp(
    module: nn.Module, x: Tensor, w: Vector, known: Vector | None = None, side_stream: torch.cuda.Stream | None = None
) -> tuple[Tensor, Tensor]:
    """A module's value and its derivative along a direction of its parameters.

    Args:
        module: A module that `supports` accepts, in evaluation mode.
        x: The input, which is constant.
        w: The direction: a tensor for each parameter, by its name.
        known: `conv_outputs(module, x)`, if they were computed in advance, or an empty dict, which receives them.
        side_stream: A CUDA stream for computations that the chain of derivatives does not wait for.

    Returns:
        The value and the derivative, `[n, ...]` each.
    """
    if side_stream is not None:
        w = dict(zip(w, WaitForStream.apply(side_stream, *w.values()), strict=True))  # type: ignore[no-untyped-call]
    y, dy = _apply(module, "", (x, None), JVPContext(w, known, side_stream, pooled_classifier.is_fusable(module)))
    assert dy is not None
    return y, dy


@torch.no_grad()
def conv_outputs(module: nn.Module, x: Tensor) -> Vector:
    """The output `[n, c, h, w]` of every convolution for `x`, by layer name; `jvp` can reuse them."""
    found: Vector = {}
    hooks = [
        layer.register_forward_hook(lambda _, given, out, name=name: found.update({name: out}))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    try:
        with torch.autocast(x.device.type, enabled=False):  # `jvp` computes in float32 too
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _apply(module: nn.Module, name: str, pair: Pair, context: JVPContext) -> Pair:
    """Apply the rule of a layer called `name`."""
    return RULES[type(module)](module, name, pair, context)


def _sequential(module: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    for child_name, child in module.named_children():
        pair = _apply(child, f"{name}.{child_name}" if name else child_name, pair, context)
    return pair


def _basic(block: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    out = conv_norm(block.conv1, block.bn1, f"{name}.conv1", f"{name}.bn1", pair, context)
    short = _shortcut(block.shortcut, f"{name}.shortcut", pair, context)
    return conv_norm(block.conv2, block.bn2, f"{name}.conv2", f"{name}.bn2", out, context, residual=short)


def _bottleneck(block: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    out = conv_norm(block.conv1, block.bn1, f"{name}.conv1", f"{name}.bn1", pair, context)
    out = conv_norm(block.conv2, block.bn2, f"{name}.conv2", f"{name}.bn2", out, context)
    short = _shortcut(block.shortcut, f"{name}.shortcut", pair, context)
    return conv_norm(block.conv3, block.bn3, f"{name}.conv3", f"{name}.bn3", out, context, residual=short)


def _shortcut(module: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    if not module.changes:
        return pair
    return conv_norm(module.conv, module.bn, f"{name}.conv", f"{name}.bn", pair, context, relu=False)


def _stem(module: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    y, dy = conv_norm(module.conv, module.bn, f"{name}.conv", f"{name}.bn", pair, context)
    if not module.strided:
        return y, dy
    with torch.no_grad():
        y, where = F.max_pool2d(y, 3, 2, 1, return_indices=True)
    assert dy is not None
    return y, dy.flatten(2).gather(2, where.flatten(2)).view_as(where)


def _pool(module: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    y, dy = pair
    if context.fuse_pooling and pooled_classifier.is_supported(y, dy):
        return pair  # the classifier's kernel pools
    return module(y), None if dy is None else module(dy)


def _linear(module: Any, name: str, pair: Pair, context: JVPContext) -> Pair:
    x, dx = pair
    w, bias = context.w, f"{name}.bias"
    if x.dim() == 4:
        return pooled_classifier.PooledClassifierJVP.apply(x, dx, w[f"{name}.weight"], w[bias], module)  # type: ignore[no-any-return, no-untyped-call]
    dy = F.linear(x, w[f"{name}.weight"], w.get(bias))
    if dx is not None:
        dy = dy + F.linear(dx, module.weight.detach())
    with torch.no_grad():
        y = F.linear(x, module.weight, module.bias)
    return y, dy


RULES: dict[type[nn.Module], Callable[[Any, str, Pair, JVPContext], Pair]] = {
    nn.Sequential: _sequential,
    BasicBlock: _basic,
    Bottleneck: _bottleneck,
    Shortcut: _shortcut,
    Stem: _stem,
    GlobalAvgPool: _pool,
    nn.Linear: _linear,
}


def conv_norm(
    conv: nn.Conv2d,
    bn: nn.BatchNorm2d,
    conv_name: str,
    bn_name: str,
    pair: Pair,
    context: JVPContext,
    residual: Pair | None = None,
    relu: bool = True,
) -> Pair:
    """relu(bn(conv(x)) + residual) and its derivative; `residual` is such a pair, too."""
    x, dx = pair
    shape: Any = (conv.stride, conv.padding)
    z = context.conv_output(conv_name, x, conv)
    short, dshort = residual if residual is not None else (None, None)
    weight = context.w[f"{conv_name}.weight"]
    ready = None if context.side_stream is None else torch.cuda.current_stream(z.device).record_event()
    by_input = None if dx is None else F.conv2d(dx, conv.weight.detach(), None, *shape)
    if ready is None:
        by_weight = F.conv2d(x, weight, None, *shape)
    else:
        by_weight = SideStreamConv.apply(x, weight, shape, context.side_stream, ready)  # type: ignore[no-untyped-call]
    moved = (context.w[f"{bn_name}.weight"], context.w[f"{bn_name}.bias"])
    if fused_kernels_for(z, torch.float32) is not None:
        return NormJVP.apply(z, by_weight, by_input, short, dshort, *moved, bn, relu)  # type: ignore[no-any-return, no-untyped-call]
    return _norm_jvp(z, by_weight, by_input, short, dshort, moved, bn, relu)


def _norm_jvp(
    z: Tensor,
    by_weight: Tensor,
    by_input: Tensor | None,
    short: Tensor | None,
    dshort: Tensor | None,
    moved: tuple[Tensor, Tensor],
    bn: nn.BatchNorm2d,
    relu: bool,
) -> Pair:
    """The computation of `NormJVP` in PyTorch; `moved` are the directions of the norm's weight and bias."""
    with torch.no_grad():
        mean, var, weight, bias = (t.view(-1, 1, 1) for t in running_stats(bn))
        rstd = (var + bn.eps).rsqrt()
        hat = (z - mean) * rstd
        y = torch.addcmul(bias, hat, weight)
        y = y if short is None else y + short
    dz = by_weight if by_input is None else by_weight + by_input
    dy = torch.addcmul(torch.addcmul(moved[1].view(-1, 1, 1), hat, moved[0].view(-1, 1, 1)), dz, weight * rstd)
    dy = dy if dshort is None else dy + dshort
    if not relu:
        return y, dy
    return y.relu(), torch.where(y > 0, dy, 0.0)


class NormJVP(torch.autograd.Function):
    """A norm's value and derivative in one kernel, with a backward pass (of the derivative only) in one or two.

    `z` is the output of the convolution; its derivative is `a` (by the weight) plus `b` (by the input).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        z: Tensor,
        a: Tensor,
        b: Tensor | None,
        short: Tensor | None,
        dshort: Tensor | None,
        dweight: Tensor,
        dbias: Tensor,
        bn: nn.BatchNorm2d,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """The value and the derivative, float32 in channels-last layout."""
        mean, var, weight, bias = running_stats(bn)
        y, dy, rstd = torch.empty_like(z), torch.empty_like(z), torch.empty_like(mean)
        grid, sizes, blocks = elementwise_launch(z, 1)
        given = [None if t is None else t.contiguous(memory_format=torch.channels_last) for t in (a, b, short, dshort)]
        a_, b_, short_, dshort_ = (z if t is None else t for t in given)
        fused_kernels_for(z, torch.float32).norm_jvp_kernel[grid](
            z, a_, b_, short_, dshort_, y, dy, mean, var, weight, bias, dweight, dbias, rstd, *sizes, bn.eps,
            HAS_B=b is not None, HAS_RESIDUAL=short is not None, HAS_DRESIDUAL=dshort is not None, RELU=relu, **blocks,
        )  # fmt: skip
        ctx.save_for_backward(z, y, mean, rstd, weight)
        ctx.relu, ctx.has, ctx.counters = relu, (b is not None, dshort is not None), program_counters(bn)[1]
        ctx.mark_non_differentiable(y)
        ctx.set_materialize_grads(False)  # there is no gradient of y
        return y, dy

    @staticmethod
    def backward(ctx: Any, _: None, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of `a`, `b`, `dshort`, `dweight` and `dbias`."""
        z, y, mean, rstd, weight = ctx.saved_tensors
        kernels = fused_kernels_for(z, torch.float32)
        g = g.contiguous(memory_format=torch.channels_last)
        da = torch.empty_like(z)
        dshort = torch.empty_like(z) if ctx.has[1] else None
        out, affine = (da, da if dshort is None else dshort), z.new_empty((2, z.shape[1]))
        flags = {"HAS_RESIDUAL": dshort is not None, "RELU": ctx.relu}
        few = single_pass_launch(z, 1)
        if few is not None:
            grid, (channels, rows, _groups), blocks = few
            kernels.single_pass_norm_jvp_backward_kernel[grid](
                g, y, z, *out, mean, rstd, weight, affine[0], affine[1], channels, rows, **flags, **blocks
            )
        else:
            reduce_flags = {"TWO_GRADS": False, "RELU": ctx.relu, "RECOMPUTE": False, "STORE": False}
            reduce_gradients((g, g, y, z, g), (mean, rstd, weight, weight), affine, ctx.counters, 1, reduce_flags)
            over, each, shape = elementwise_launch(z, 1)
            kernels.norm_jvp_backward_kernel[over](g, y, *out, rstd, weight, *each, **flags, **shape)
        return None, da, da if ctx.has[0] else None, None, dshort, affine[0], affine[1], None, None
