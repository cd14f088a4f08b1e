"""Any torch classifier as a network: its owner says which layer classifies and which layers are its last ones."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from itl.errors import UserError, unknown
from itl.nets.base import Net
from itl.nets.init import initialize

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ModuleAdapter(Net):
    """A module `[n, channels, height, width]` to logits `[n, classes]` that was not built here.

    `classifier` is the dotted name of its last linear layer, whose output the module returns; `last` names the layers
    that the tangent model may move, from the first to the classifier (default: the classifier alone). The module is
    copied: its owner's stays as it is. What the engine knows how to make fast about its own networks it leaves alone
    here; a frozen trunk is not cut off, since a forward pass of any shape cannot be.
    """

    supports_fused_paths = False

    def __init__(self, module: nn.Module, classifier: str, last: Sequence[str] = ()) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        self.classifier_path, self.classifier_name = classifier, f"module.{classifier}"
        self.layers = tuple(last) or (classifier,)
        if self.layers[-1] != classifier:
            self.layers = (*self.layers, classifier)
        for name in self.layers:
            self._find(name)
        if not isinstance(self.classifier, nn.Linear):
            kind = type(self.classifier).__name__
            raise UserError(f"the classifier '{classifier}' is a {kind}; it must be the network's last torch.nn.Linear")
        self.frozen = {f"module.{name}" for name, p in self.module.named_parameters() if not p.requires_grad}
        self.initial_state = {name: t.detach().cpu().clone() for name, t in self.module.state_dict().items()}
        self.has_batch_norm = any(isinstance(layer, NORMS) for layer in self.module.modules())

    @property
    def classifier(self) -> nn.Linear:  # type: ignore[override]
        """The linear layer that classifies."""
        return self._find(self.classifier_path)  # type: ignore[return-value]

    def set_classifier(self, layer: nn.Linear) -> None:
        """Put another classifier in its place."""
        parent, _, name = self.classifier_path.rpartition(".")
        setattr(self._find(parent), name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]`. One image has no deviation: it is normalised by the running statistics."""
        if self.training and self.has_batch_norm and len(x) == 1:
            with _resting(self.module):
                return self.module(x)  # type: ignore[no-any-return]
        return self.module(x)  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees: `[n, features]`, taken where it goes in."""
        seen: list[Tensor] = []
        hook = self.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self(x)
        finally:
            hook.remove()
        return seen[-1]

    def split(self, last: int | None) -> tuple[nn.Sequential, nn.Sequential]:
        """An empty trunk and the whole module as the head, of which only some layers move (`in_last_layers`)."""
        if last is not None and not 1 <= last <= len(self.layers):
            raise UserError(
                f"this network's last layers are {', '.join(self.layers)}: {len(self.layers)}, not {last}; "
                "set tangent.layers, or name more of them when you give the network"
            )
        return nn.Sequential(), nn.Sequential(OrderedDict(module=self.module))

    def in_last_layers(self, name: str, last: int | None) -> bool:
        """Whether the head's parameter `name` is one of the last `last` layers' (None: of any)."""
        chosen = ("",) if last is None else tuple(f"{layer}." for layer in self.layers[len(self.layers) - last :])
        return name not in self.frozen and any(name.startswith(f"module.{layer}") for layer in chosen)

    def validate_input(self, shape: tuple[int, int, int]) -> None:
        """Try two black images: what does not work is said now, not in the middle of a learn."""
        weights = {name: p for name, p in self.named_parameters() if p.requires_grad}
        try:
            with _resting(self.module), torch.enable_grad():
                logits = self.module(torch.zeros((2, *shape), device=self.classifier.weight.device))
                width = (2, self.classifier.out_features)
                if not isinstance(logits, Tensor) or tuple(logits.shape) != width:
                    raise ValueError(
                        f"it returns {getattr(logits, 'shape', type(logits).__name__)}, not logits {width}"
                    )
                grads = torch.autograd.grad(logits.sum(), list(weights.values()), allow_unused=True)
        except Exception as error:  # somebody else's code may raise anything
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"the network does not take images of {list(shape)} as a classifier: {said}") from error
        unused = [name for name, grad in zip(weights, grads, strict=True) if grad is None]
        if unused:
            raise UserError(f"the network does not use its weight {unused[0]}; freeze it (requires_grad) or remove it")

    def reinitialize(self, generator: torch.Generator) -> None:
        """Back to the weights it came with, its classifier newly drawn."""
        trunk = {name: t for name, t in self.initial_state.items() if not name.startswith(f"{self.classifier_path}.")}
        self.module.load_state_dict(trunk, strict=False)
        initialize(self.classifier, generator)

    def describe(self) -> dict[str, object]:
        """What a saved state says of it; the module itself is its owner's to bring again."""
        kind = type(self.module)
        return {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "classifier": self.classifier_path,
            "last": list(self.layers),
        }

    def _find(self, name: str) -> nn.Module:
        try:
            return self.module.get_submodule(name)
        except AttributeError:
            raise unknown("layer", name, [n for n, _ in self.module.named_modules() if n]) from None


def with_new_classifier(net: ModuleAdapter, classes: int, generator: torch.Generator | None) -> ModuleAdapter:
    """A copy of a network with its own weights and a new classifier of `classes` outputs."""
    out = copy.deepcopy(net)
    old = out.classifier
    new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    if generator is not None:
        initialize(new, generator)
    out.set_classifier(new)
    return out


@contextmanager
def math_attention() -> Iterator[None]:
    """Within, attention is computed in steps that have forward-mode derivatives; the fused kernels have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _resting(module: nn.Module) -> Iterator[None]:
    """Within, the module is in evaluation mode; every layer's own mode comes back."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode
