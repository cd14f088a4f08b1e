# mypy: ignore-errors
"""Triton kernels of a step: SGD on all weights with bf16 twins, and on the twins beside them; and its bookkeeping."""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)  # that is finite in float32


@triton.jit
def descend_kernel(gradients, places, owner, start, lr, bad, momentum, decay,
                   HAS_MOMENTUM: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program updates one block of one weight.

    `gradients` `[n]`: addresses of bf16 gradients. `places` `[n, 4]`: addresses of the float32 master, its momentum
    and its bf16 twin, and the number of elements. `owner`, `start`: which weight a program's block is of, and where
    in it. Nothing changes where `bad` is set. The arithmetic is `torch.optim.SGD`'s.
    """
    program = tl.program_id(0)
    which = tl.load(owner + program)
    at = tl.load(start + program) + tl.arange(0, BLOCK)
    inside = at < tl.where(tl.load(bad) == 0.0, tl.load(places + which * 4 + 3), 0)
    master = tl.multiple_of(tl.load(places + which * 4).to(tl.pointer_type(tl.float32)), 16)
    twin = tl.multiple_of(tl.load(places + which * 4 + 2).to(tl.pointer_type(tl.bfloat16)), 16)
    gradient = tl.multiple_of(tl.load(gradients + which).to(tl.pointer_type(tl.bfloat16)), 16)
    weight = tl.load(master + at, mask=inside, other=0.0)
    step = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) + decay * weight
    if HAS_MOMENTUM:
        velocity = tl.multiple_of(tl.load(places + which * 4 + 1).to(tl.pointer_type(tl.float32)), 16)
        step = momentum * tl.load(velocity + at, mask=inside, other=0.0) + step
        tl.store(velocity + at, step, mask=inside)
    weight -= tl.load(lr) * step
    tl.store(master + at, weight, mask=inside)
    tl.store(twin + at, weight.to(tl.bfloat16), mask=inside)


@triton.jit
def tally_kernel(loss, rate, lr, bad, total):
    """A step's `loss` and learning `rate` into the stepper's scalars: see `Stepper`. One program."""
    value = tl.load(loss).to(tl.float32)
    tl.store(lr, tl.load(rate))
    tl.store(total, tl.load(total) + value)
    tl.store(bad, tl.where(tl.abs(value) <= LARGEST, tl.load(bad), 1.0))
