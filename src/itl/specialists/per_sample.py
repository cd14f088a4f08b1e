"""Inner products of the gradients of single samples, summed layer by layer: no gradient is ever held whole.

One batched pass gives the input of every layer and the gradient at its output, and these give its weight's gradient for
each sample. A weight that is used in another way, or more than once, is differentiated sample by sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode

TRIED = 7  # images of the pass that looks for taps: a length that a layer's own axes are not likely to have
_known: WeakKeyDictionary[nn.Module, dict[torch.Size, frozenset[str]]] = WeakKeyDictionary()


def gram(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Inner products `[n, n]` of the samples' gradients of the cross-entropy by all weights; `net` is in evaluation
    mode, in which samples do not touch one another. Nothing here waits for the device.
    """
    weights, tapped = dict(net.named_parameters()), tapped_weights(net, x)
    total, vectors = x.new_zeros(len(x), len(x)), []
    for tap, g in _taken(net, {weights[name] for name in tapped}, x, y) if tapped else ():
        vectors += tap.vectors(g)
        factors = tap.factors(g)
        if factors is not None:
            total += products(*(t.to(total.dtype) for t in factors))
    if len(tapped) < len(weights):
        vectors += _one_by_one(net, {name for name in weights if name not in tapped}, x, y)
    each = torch.cat([x.new_zeros(len(x), 0), *vectors], 1).to(total.dtype)
    return total + each @ each.T


def products(g: Tensor, a: Tensor) -> Tensor:
    """Inner products `[n, n]` of the matrices Σ_l g_l a_lᵀ, from `g` `[n, o, l]` and `a` `[n, l, k]`, the cheaper way.

    Either the matrices are made, `[n, o, k]`, or (where they are large and places few) the inner products of all
    places of all samples, `[n l, n l]`, with one another.
    """
    (n, o, places), k = g.shape, a.shape[2]
    if n * places**2 * (o + k) <= (n + places) * o * k:
        rows, columns = g.transpose(1, 2).flatten(0, 1), a.flatten(0, 1)
        return ((rows @ rows.T) * (columns @ columns.T)).view(n, places, n, places).sum((1, 3))
    parts = 1 if g.device.type == "cpu" else o  # of a sum so long: a GPU shares out batches, not a single sum
    each = torch.bmm(g, a).view(n, parts, -1).transpose(0, 1)
    return torch.bmm(each, each.transpose(1, 2)).sum(0)


@dataclass(frozen=True, eq=False)
class Tap:
    """A layer's call, here a linear one's: `[n, inputs]` to `[n, outputs]`. `g` is the loss's gradient at `out`."""

    out: Tensor
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    version: int  # of the input: what is overwritten later in the pass says nothing any more

    def vectors(self, g: Tensor) -> list[Tensor]:
        """The gradients by its vectors, `[n, size]` each."""
        return [] if self.bias is None else [_places(g).sum(2)]

    def factors(self, g: Tensor) -> tuple[Tensor, Tensor] | None:
        """Those by its matrix, as `products` takes them."""
        return _places(g), self.x[:, None]


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


@dataclass(frozen=True, eq=False)
class Norm(Tap):
    """Batch norm's, by running statistics."""

    mean: Tensor
    var: Tensor
    eps: float

    def vectors(self, g: Tensor) -> list[Tensor]:
        """Its weight's from the input less mean and deviation: the weight itself, which may be 0, has no part in it."""
        even = F.batch_norm(self.x, self.mean, self.var, eps=self.eps)
        scale = [] if self.weight is None else [(_places(g) * _places(even)).sum(2)]
        return scale + super().vectors(g)

    def factors(self, g: Tensor) -> None:
        """It has no matrix."""


class Taps(TorchFunctionMode):
    """Within, the calls of layers are noted, wherever they stand: those by `wanted` weights alone, or (None) all."""

    def __init__(self, wanted: set[Tensor] | None = None) -> None:
        super().__init__()
        self.wanted = wanted
        self.calls: list[Tap] = []
        self.touching = False  # whether a norm takes its statistics from the batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call itself; the output that is tapped is nobody else's, who might overwrite it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tap = LAYERS[func](self, out, *args, **kwargs) if func in LAYERS else None
        if tap is None:
            return out
        own = {t for t in (tap.weight, tap.bias) if t is not None}
        if not own or (self.wanted is not None and not own <= self.wanted):
            return out
        if not out.requires_grad:
            out.requires_grad_()
        self.calls.append(tap)
        return out.clone()

    def linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tap | None:
        """torch.nn.functional.linear."""
        return Tap(out, x, weight, bias, x._version) if x.dim() == 2 else None

    def conv2d(
        self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Tap | None:  # fmt: skip
        """torch.nn.functional.conv2d."""
        if groups != 1 or isinstance(padding, str) or x.dim() != 4:
            return None
        return Convolution(out, x, weight, bias, x._version, _pair(stride), _pair(padding), _pair(dilation))

    def batch_norm(
        self, out: Tensor, x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tap | None:  # fmt: skip
        """torch.nn.functional.batch_norm."""
        self.touching |= training
        if training or mean is None or var is None:
            return None
        return Norm(out, x, weight, bias, x._version, mean, var, eps)


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
    leaves = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
    names = {p: name for name, p in leaves.items()}
    with torch.enable_grad(), Taps() as taps:
        logits = functional_call(net, leaves, (x,))
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


def _taken(net: nn.Module, wanted: set[Tensor], x: Tensor, y: Tensor) -> Iterator[tuple[Tap, Tensor]]:
    """The taps of one pass, each with the gradient at its output."""
    with torch.enable_grad():
        with Taps(wanted) as taps:
            logits = net(x)
        loss = F.cross_entropy(logits, y, reduction="sum")  # of a sum of samples each has its own gradient
        grads = torch.autograd.grad(loss, [tap.out for tap in taps.calls])
    return zip(taps.calls, grads, strict=True)


def _one_by_one(net: nn.Module, names: set[str], x: Tensor, y: Tensor) -> list[Tensor]:
    """Each sample's gradients by the weights of these names: `[n, size]` each."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(chosen: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, {**weights, **chosen}, (x[None],)), y[None])

    chosen = {name: weights[name] for name in weights if name in names}
    return [g.flatten(1) for g in vmap(grad(loss), in_dims=(None, 0, 0))(chosen, x, y).values()]


def _places(t: Tensor) -> Tensor:
    """`[n, c, ...]` as `[n, c, l]`."""
    return t.flatten(2) if t.dim() > 2 else t[:, :, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]
