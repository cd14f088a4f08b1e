"""The tangent model g(w; x) = p(θ; x) + ∇p(θ; x) w. It is linear in w, so cross-entropy is convex in w."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from itl.nets import Net, folded_trunk, jvp_rules, thread_safe_jvp

Vector = dict[str, Tensor]


class TangentModel:
    """A network linearized at its current weights θ with respect to the parameters of its last layers.

    The layers before them, the trunk, compute features; the linearized layers are the head. The network is set to
    evaluation mode, so batch norm uses its running statistics. All methods are pure functions of θ, w and the input;
    the weights are never changed.

    Args:
        net: The network.
        layers: Number of layers to linearize, from the last one; None for all.

    Attributes:
        params: The head's parameters, by name.
        has_jvp_rules: Whether the Jacobian-vector product uses the rules of `itl.nets.jvp_rules`; else it uses
            `torch.func.jvp`.
        side_stream: CUDA stream for independent parts of a training step, or None.
    """

    def __init__(self, net: Net, layers: int | None = 2) -> None:
        net.eval()
        self.net = net
        self.trunk, self.head = net.split(layers)
        self.has_jvp_rules = net.supports_fused_paths and jvp_rules.supports(self.head)
        self.params: Vector = {
            name: p.detach() for name, p in self.head.named_parameters() if net.in_last_layers(name, layers)
        }
        self.buffers: Vector = dict(self.head.named_buffers())
        self.side_stream: torch.cuda.Stream | None = None
        self.folded: folded_trunk.FoldedTrunk | None = None

    def zero(self) -> Vector:
        """`w = 0`: one tensor for each of the head's parameters."""
        return {name: torch.zeros_like(p) for name, p in self.params.items()}

    def fold_trunk(self, dtype: torch.dtype) -> None:
        """Compute features with a copy of the trunk in `dtype`, which is faster for many images."""
        if self.net.supports_fused_paths and len(self.trunk) and folded_trunk.supports(self.trunk):
            self.folded = folded_trunk.FoldedTrunk(self.trunk, dtype)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Inputs of the head: the trunk's output for images `[n, c, h, w]`."""
        return self.trunk(x) if self.folded is None else self.folded(x).float()  # type: ignore[no-any-return]

    def head_logits(self, params: Vector, features: Tensor) -> Tensor:
        """Logits `[n, classes]` of the head as a pure function of its parameters."""
        return functional_call(self.head, {**params, **self.buffers}, (features,))  # type: ignore[no-any-return]

    def conv_outputs(self, features: Tensor) -> Vector:
        """Outputs of the head's convolutions, by layer name. They do not depend on w, so `logits` can reuse them."""
        return jvp_rules.conv_outputs(self.head, features)

    def logits(self, w: Vector, features: Tensor, conv_outputs: Vector | None = None) -> Tensor:
        """g(w; x) `[n, classes]`, by a single forward-mode Jacobian-vector product.

        Args:
            w: One tensor for each of the head's parameters.
            features: Output of `features`.
            conv_outputs: Output of `conv_outputs` for these features, if it was computed before. An empty dict receives
                the outputs.
        """
        value, derivative = self._value_and_jvp(w, features, conv_outputs)
        return value + derivative

    def jvp(self, w: Vector, features: Tensor, conv_outputs: Vector | None = None) -> Tensor:
        """∇p(θ; x) w `[n, classes]`, with the arguments of `logits`."""
        return self._value_and_jvp(w, features, conv_outputs)[1]

    def _value_and_jvp(self, w: Vector, features: Tensor, conv_outputs: Vector | None = None) -> tuple[Tensor, Tensor]:
        if self.has_jvp_rules:
            side_stream = self.side_stream if torch.is_grad_enabled() else None
            return jvp_rules.jvp(self.head, features, w, conv_outputs, side_stream)
        return thread_safe_jvp(lambda p: self.head_logits(p, features), (self.params,), (w,))

    def __call__(self, w: Vector, x: Tensor) -> Tensor:
        """g(w; x) `[n, classes]` for images `[n, c, h, w]`."""
        return self.logits(w, self.features(x))


class Linearization:
    """The derivative ∇p(θ; x) for fixed images: products with it and with its transpose.

    Args:
        model: The tangent model.
        features: Its features of the images, `[n, ...]`.

    Attributes:
        keeps_activations: Whether the products after the first one reuse its activations, which takes memory.
    """

    def __init__(self, model: TangentModel, features: Tensor) -> None:
        self.model, self.features, self.keeps_activations = model, features, False
        self._conv_outputs: Vector = {}
        self._output: tuple[Vector, Tensor] | None = None  # parameters, and logits with their graph

    def __len__(self) -> int:
        """Number of images."""
        return len(self.features)

    def jvp(self, w: Vector) -> Tensor:
        """∇p(θ; x) w `[n, classes]`."""
        return self.model.jvp(w, self.features, self._conv_outputs if self.keeps_activations else None)

    def vjp(self, cotangent: Tensor) -> Vector:
        """The transpose of `jvp`: ∇p(θ; x)ᵀ c for c `[n, classes]`, one tensor for each of the head's parameters."""
        leaves, logits = self._output or self._forward()
        if self.keeps_activations:
            self._output = leaves, logits
        gradients = torch.autograd.grad(
            logits, list(leaves.values()), cotangent, retain_graph=self.keeps_activations, materialize_grads=True
        )
        return dict(zip(leaves, gradients, strict=True))

    def activation_bytes(self) -> int:
        """Approximate size of the activations of both products, from those of the first image."""
        saved: dict[int, int] = {}
        weights = {p.untyped_storage().data_ptr() for p in (*self.model.params.values(), *self.model.buffers.values())}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor.detach()

        first = Linearization(self.model, self.features[:1].clone())
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            first._forward()
        graph = sum(size for storage, size in saved.items() if storage not in weights)
        outputs = self.model.conv_outputs(first.features) if self.model.has_jvp_rules else {}
        return len(self) * (graph + sum(output.nbytes for output in outputs.values()))

    def _forward(self) -> tuple[Vector, Tensor]:
        leaves = {name: p.detach().requires_grad_() for name, p in self.model.params.items()}
        with torch.enable_grad():
            return leaves, self.model.head_logits(leaves, self.features)
