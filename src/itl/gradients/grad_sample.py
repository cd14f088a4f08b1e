"""Taps: what single samples' gradients are made of, noted in one batched pass.

A pass gives the input of every layer and the gradient at its output; from these come its weight's gradient for each
sample, and that gradient's inner product with a direction, without ever being made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from itl.gradients.virtual_update import present, said

TRIED = 7  # images of the pass that looks for taps: a length that a layer's own axes are not likely to have
_known: WeakKeyDictionary[nn.Module, dict[torch.Size, frozenset[str]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Tap:
    """A layer's call, here a linear one's: `[n, inputs]` to `[n, outputs]`. `g` is the loss's gradient there."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    version: int  # of the input: what is overwritten later in the pass says nothing any more

    @property
    def matrix(self) -> Tensor | None:
        """Its weight, where that is more than a vector."""
        return self.weight

    def vectors(self, g: Tensor) -> dict[Tensor, Tensor]:
        """Its vectors, each with the gradients by it, `[n, size]`."""
        return {} if self.bias is None else {self.bias: _places(g).sum(2)}

    def factors(self, g: Tensor) -> tuple[Tensor, Tensor] | None:
        """Those by its matrix, as `products` takes them."""
        return _places(g), self.x[:, None]

    def along(self, g: Tensor, matrices: list[Tensor]) -> Tensor:
        """The derivatives along d directions of its matrix: `[n, d]`.

        Its output changes with the matrix as the layer would answer with the direction in the matrix's place. All
        directions are one layer's outputs, side by side (joined, not stacked: they keep the layout in memory).
        """
        out = self.answer(torch.cat(matrices))
        products = out.view(len(g), len(matrices), *g.shape[1:]) * g[:, None]
        return products.sum(tuple(range(2, products.dim())))

    def answer(self, matrix: Tensor) -> Tensor:
        """What it makes of its input by another matrix, of any number of outputs, without bias."""
        return F.linear(self.x, matrix)


@dataclass(frozen=True, eq=False)
class Convolution(Tap):
    """A convolution's, with one group."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def factors(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The order within a column is its own: inner products do not ask for it."""
        assert self.weight is not None
        kernel, (down, across) = self.weight.shape[2:], self.padding
        x = F.pad(self.x, (across, across, down, down)) if down or across else self.x
        for axis, size, stride, apart in zip((2, 3), kernel, self.stride, self.dilation, strict=True):
            x = x.unfold(axis, apart * (size - 1) + 1, stride)[..., ::apart]
        return _places(g), x.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)

    def answer(self, matrix: Tensor) -> Tensor:
        """`[n, outputs, h, w]`."""
        return F.conv2d(self.x, matrix, None, self.stride, self.padding, self.dilation)


@dataclass(frozen=True, eq=False)
class Norm(Tap):
    """Batch norm's, by running statistics."""

    mean: Tensor
    var: Tensor
    eps: float

    @property
    def matrix(self) -> None:
        """It has none."""

    def vectors(self, g: Tensor) -> dict[Tensor, Tensor]:
        """Its weight's from the input less mean and deviation: the weight itself, which may be 0, has no part in it."""
        even = F.batch_norm(self.x, self.mean, self.var, eps=self.eps)
        scale = {} if self.weight is None else {self.weight: (_places(g) * _places(even)).sum(2)}
        return scale | super().vectors(g)

    def factors(self, g: Tensor) -> None:
        """Of no matrix."""


class Taps(TorchFunctionMode):
    """Within, the calls of layers are noted, wherever they stand: those by `wanted` weights alone, or (None) all."""

    def __init__(self, wanted: set[Tensor] | None = None) -> None:
        super().__init__()
        self.wanted = wanted
        self.calls: list[Tap] = []
        self.ends: list[GradientEdge] = []  # the places in the graph where the calls' outputs were made
        self.touching = False  # whether a norm takes its statistics from the batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call itself. An output may be overwritten later (its end stays where it was), but not one that begins a
        graph: then the caller gets a copy.
        """
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tap = LAYERS[func](self, *args, **kwargs) if func in LAYERS else None
        if tap is None:
            return out
        own = {t for t in (tap.weight, tap.bias) if t is not None}
        if not own or (self.wanted is not None and not own <= self.wanted):
            return out
        self.calls.append(tap)
        leaf = not out.requires_grad
        self.ends.append(get_gradient_edge(out.requires_grad_()))
        return out.clone() if leaf else out

    # What follows has torch's own names of arguments: a caller may use them.

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tap | None:
        """torch.nn.functional.linear."""
        return Tap(input, weight, bias, input._version) if input.dim() == 2 else None

    def conv2d(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tap | None:  # fmt: skip
        """torch.nn.functional.conv2d."""
        if groups != 1 or isinstance(padding, str) or input.dim() != 4:
            return None
        return Convolution(input, weight, bias, input._version, _pair(stride), _pair(padding), _pair(dilation))

    def batch_norm(
        self, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tap | None:  # fmt: skip
        """torch.nn.functional.batch_norm."""
        self.touching |= training
        if training or running_mean is None or running_var is None:
            return None
        return Norm(input, weight, bias, input._version, running_mean, running_var, eps)


LAYERS: dict[Any, Callable[..., Tap | None]] = {
    F.linear: Taps.linear,
    F.conv2d: Taps.conv2d,
    F.batch_norm: Taps.batch_norm,
}


def tapped_weights(net: nn.Module, x: Tensor) -> frozenset[str]:
    """The weights whose gradients taps give: each used once, by a layer that is known. Looked for once an image shape.

    A captured step finds the answer ready: its warm-up has asked.
    """
    known = _known.setdefault(net, {})
    if x.shape[1:] not in known:
        known[x.shape[1:]] = _look(net, x[:1].expand(TRIED, *x.shape[1:]))
    return known[x.shape[1:]]


def _look(net: nn.Module, x: Tensor) -> frozenset[str]:
    """What a pass of `x` shows; its graph counts every use of a weight, also one that is no layer's."""
    leaves = present(net)
    names = {p: name for name, p in leaves.items()}
    with torch.enable_grad(), Taps() as taps:
        logits = said(net, leaves, x)
    if taps.touching:
        return frozenset()
    uses = _uses(logits)
    found: set[str] = set()
    for tap in taps.calls:
        own = [t for t in (tap.weight, tap.bias) if t is not None]
        if len(tap.x) == len(x) and tap.x._version == tap.version and all(t in names and uses[t] == 1 for t in own):
            found |= {names[t] for t in own}
    return frozenset(found)


def _uses(out: Tensor) -> Counter[Tensor]:
    """How many operations of the graph behind `out` take each leaf."""
    counts: Counter[Tensor] = Counter()
    seen: set[Any] = set()
    todo: list[Any] = [out.grad_fn]
    while todo:
        node = todo.pop()
        for child, _ in node.next_functions if node is not None else ():
            if hasattr(child, "variable"):  # a leaf's
                counts[child.variable] += 1
            elif child not in seen:
                seen.add(child)
                todo.append(child)
    return counts


def _places(t: Tensor) -> Tensor:
    """`[n, c, ...]` as `[n, c, l]`."""
    return t.flatten(2) if t.dim() > 2 else t[:, :, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]
