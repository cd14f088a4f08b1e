"""Recording of layer calls: the factors of per-sample gradients, from one batched pass.

A pass yields the input of every layer and the gradient at its output. These determine the gradient of the layer's
weight for each sample, and its inner product with a direction, without materializing it.
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

from itl.gradients.virtual_update import detached_weights, logits_at

PROBE_BATCH = 7  # images in the pass that finds recordable weights: an unlikely size for any other axis of a layer
_recordable: WeakKeyDictionary[nn.Module, dict[torch.Size, frozenset[str]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a linear layer, `[n, inputs]` to `[n, outputs]`; base class of other layers' calls.

    In the methods, `g` is the gradient of the loss at the layer's output.
    """

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    version: int  # of the input: an input that is overwritten later in the pass is unusable

    @property
    def matrix(self) -> Tensor | None:
        """The weight, if it is more than a vector."""
        return self.weight

    def vector_gradients(self, g: Tensor) -> dict[Tensor, Tensor]:
        """Per-sample gradients `[n, size]` of the layer's vectors (bias, scale)."""
        return {} if self.bias is None else {self.bias: _flatten_positions(g).sum(2)}

    def matrix_factors(self, g: Tensor) -> tuple[Tensor, Tensor] | None:
        """The factors of the per-sample gradients of the matrix, as `factored_gram` takes them."""
        return _flatten_positions(g), self.x[:, None]

    def along(self, g: Tensor, directions: list[Tensor]) -> Tensor:
        """Per-sample derivatives along d directions of the matrix: `[n, d]`.

        The output changes by the layer's output with the direction in place of the matrix. All directions are computed
        as one layer, concatenated rather than stacked, which keeps the memory format.
        """
        out = self.apply(torch.cat(directions))
        products = out.view(len(g), len(directions), *g.shape[1:]) * g[:, None]
        return products.sum(tuple(range(2, products.dim())))

    def apply(self, matrix: Tensor) -> Tensor:
        """The layer's output for its input with another matrix, of any number of outputs, without bias."""
        return F.linear(self.x, matrix)


@dataclass(frozen=True, eq=False)
class Conv2dCall(LayerCall):
    """A call of a 2-D convolution with one group."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def matrix_factors(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients at the outputs, and input patches; the order within a patch does not affect inner products."""
        assert self.weight is not None
        kernel, (pad_height, pad_width) = self.weight.shape[2:], self.padding
        x = F.pad(self.x, (pad_width, pad_width, pad_height, pad_height)) if pad_height or pad_width else self.x
        for axis, size, stride, dilation in zip((2, 3), kernel, self.stride, self.dilation, strict=True):
            x = x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
        return _flatten_positions(g), x.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)

    def apply(self, matrix: Tensor) -> Tensor:
        """`[n, outputs, h, w]`."""
        return F.conv2d(self.x, matrix, None, self.stride, self.padding, self.dilation)


@dataclass(frozen=True, eq=False)
class BatchNormCall(LayerCall):
    """A call of batch norm with running statistics."""

    mean: Tensor
    var: Tensor
    eps: float

    @property
    def matrix(self) -> None:
        """Batch norm has no matrix."""

    def vector_gradients(self, g: Tensor) -> dict[Tensor, Tensor]:
        """The scale's gradients come from the normalized input, not from the output: the scale may be 0."""
        normalized = F.batch_norm(self.x, self.mean, self.var, eps=self.eps)
        product = _flatten_positions(g) * _flatten_positions(normalized)
        scale = {} if self.weight is None else {self.weight: product.sum(2)}
        return scale | super().vector_gradients(g)

    def matrix_factors(self, g: Tensor) -> None:
        """Batch norm has no matrix."""


class LayerRecorder(TorchFunctionMode):
    """Records calls of known layers within its context: all of them, or those whose weights are all in `wanted`."""

    def __init__(self, wanted: set[Tensor] | None = None) -> None:
        super().__init__()
        self.wanted = wanted
        self.calls: list[LayerCall] = []
        self.output_edges: list[GradientEdge] = []  # of the calls' outputs in the autograd graph
        self.uses_batch_statistics = False  # whether a norm layer ran in training mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function and record it.

        The caller may overwrite an output in place, which leaves its edge intact, unless the output is a leaf: then the
        caller gets a copy.
        """
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        call = LAYERS[func](self, *args, **kwargs) if func in LAYERS else None
        if call is None:
            return out
        own = {t for t in (call.weight, call.bias) if t is not None}
        if not own or (self.wanted is not None and not own <= self.wanted):
            return out
        self.calls.append(call)
        leaf = not out.requires_grad
        self.output_edges.append(get_gradient_edge(out.requires_grad_()))
        return out.clone() if leaf else out

    # The parameters below are named as in torch.nn.functional, because callers may pass them by keyword.

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> LayerCall | None:
        """torch.nn.functional.linear."""
        return LayerCall(input, weight, bias, input._version) if input.dim() == 2 else None

    def conv2d(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> LayerCall | None:  # fmt: skip
        """torch.nn.functional.conv2d."""
        if groups != 1 or isinstance(padding, str) or input.dim() != 4:
            return None
        return Conv2dCall(input, weight, bias, input._version, _pair(stride), _pair(padding), _pair(dilation))

    def batch_norm(
        self, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> LayerCall | None:  # fmt: skip
        """torch.nn.functional.batch_norm."""
        self.uses_batch_statistics |= training
        if training or running_mean is None or running_var is None:
            return None
        return BatchNormCall(input, weight, bias, input._version, running_mean, running_var, eps)


LAYERS: dict[Any, Callable[..., LayerCall | None]] = {
    F.linear: LayerRecorder.linear,
    F.conv2d: LayerRecorder.conv2d,
    F.batch_norm: LayerRecorder.batch_norm,
}


def recordable_weights(net: nn.Module, x: Tensor) -> frozenset[str]:
    """Names of the weights that are used exactly once, by a known layer. Computed once per image shape.

    A captured step reads the cached result, which its warm-up computed.
    """
    cached = _recordable.setdefault(net, {})
    if x.shape[1:] not in cached:
        cached[x.shape[1:]] = _find_recordable(net, x[:1].expand(PROBE_BATCH, *x.shape[1:]))
    return cached[x.shape[1:]]


def _find_recordable(net: nn.Module, x: Tensor) -> frozenset[str]:
    """Recordable weights in a pass of `x`; the autograd graph counts every use of a weight, also outside layers."""
    leaves = detached_weights(net)
    names = {p: name for name, p in leaves.items()}
    with torch.enable_grad(), LayerRecorder() as recorder:
        logits = logits_at(net, leaves, x)
    if recorder.uses_batch_statistics:
        return frozenset()
    uses = _count_uses(logits)
    found: set[str] = set()
    for call in recorder.calls:
        own = [t for t in (call.weight, call.bias) if t is not None]
        unchanged = len(call.x) == len(x) and call.x._version == call.version
        if unchanged and all(t in names and uses[t] == 1 for t in own):
            found |= {names[t] for t in own}
    return frozenset(found)


def _count_uses(out: Tensor) -> Counter[Tensor]:
    """How many operations of the autograd graph of `out` use each leaf."""
    counts: Counter[Tensor] = Counter()
    seen: set[Any] = set()
    stack: list[Any] = [out.grad_fn]
    while stack:
        node = stack.pop()
        for child, _ in node.next_functions if node is not None else ():
            if hasattr(child, "variable"):  # a leaf
                counts[child.variable] += 1
            elif child not in seen:
                seen.add(child)
                stack.append(child)
    return counts


def _flatten_positions(t: Tensor) -> Tensor:
    """`[n, c, ...]` as `[n, c, l]`."""
    return t.flatten(2) if t.dim() > 2 else t[:, :, None]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]
