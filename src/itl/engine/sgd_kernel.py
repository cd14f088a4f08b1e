# mypy: ignore-errors
"""Triton kernels of a training step: fused SGD on masters and bf16 copies, and the step's bookkeeping."""

from __future__ import annotations

import triton
import triton.language as tl

FLOAT32_MAX = tl.constexpr(3.4028234663852886e38)


@triton.jit
def sgd_kernel(gradients, pointers, owner, start, lr, skip, momentum, decay,
               HAS_MOMENTUM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Update one block of one weight per program, with the arithmetic of `torch.optim.SGD`.

    `gradients` `[n]`: addresses of bf16 gradients. `pointers` `[n, 4]`: addresses of the float32 master, its momentum
    and its bf16 copy, and the number of elements. `owner`, `start`: the weight a program's block belongs to, and the
    block's offset in it. Nothing changes where `skip` is set.
    """
    program = tl.program_id(0)
    which = tl.load(owner + program)
    at = tl.load(start + program) + tl.arange(0, BLOCK)
    inside = at < tl.where(tl.load(skip) == 0.0, tl.load(pointers + which * 4 + 3), 0)
    master = tl.multiple_of(tl.load(pointers + which * 4).to(tl.pointer_type(tl.float32)), 16)
    copy = tl.multiple_of(tl.load(pointers + which * 4 + 2).to(tl.pointer_type(tl.bfloat16)), 16)
    gradient = tl.multiple_of(tl.load(gradients + which).to(tl.pointer_type(tl.bfloat16)), 16)
    weight = tl.load(master + at, mask=inside, other=0.0)
    step = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) + decay * weight
    if HAS_MOMENTUM:
        velocity = tl.multiple_of(tl.load(pointers + which * 4 + 1).to(tl.pointer_type(tl.float32)), 16)
        step = momentum * tl.load(velocity + at, mask=inside, other=0.0) + step
        tl.store(velocity + at, step, mask=inside)
    weight -= tl.load(lr) * step
    tl.store(master + at, weight, mask=inside)
    tl.store(copy + at, weight.to(tl.bfloat16), mask=inside)


@triton.jit
def bookkeeping_kernel(loss, rate, lr, non_finite, total):
    """Add a step's `loss` to `total`, flag a non-finite one and set the learning rate (see `Stepper`). One program."""
    value = tl.load(loss).to(tl.float32)
    tl.store(lr, tl.load(rate))
    tl.store(total, tl.load(total) + value)
    tl.store(non_finite, tl.where(tl.abs(value) <= FLOAT32_MAX, tl.load(non_finite), 1.0))
