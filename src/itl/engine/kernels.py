# mypy: ignore-errors
"""One Triton kernel that updates all weights with bf16 twins: SGD on the masters, and the twins beside them."""

from __future__ import annotations

import triton
import triton.language as tl


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
