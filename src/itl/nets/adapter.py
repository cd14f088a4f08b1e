"""Use any torch classifier as a `Net`."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from itl.errors import UserError, unknown
from itl.nets.base import Net
from itl.nets.init import initialize
from itl.nets.module_layers import find_classifier, find_layers

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_FORWARD_MODE = Lock()


class ModuleAdapter(Net):
    """A user's module as a `Net`: fused paths are disabled, frozen layers stay frozen, dropout is seeded.

    The module maps images `[n, channels, height, width]` to logits `[n, classes]`. It is copied; the original does not
    change. A forward pass of unknown structure cannot be split, so the tangent model always runs the whole module.

    Args:
        module: The classifier. Parameters with `requires_grad=False` are never trained.
        classifier: Dotted name of its last `torch.nn.Linear`, whose output the module returns. None: the one that is
            defined last, and all layers of the module, such as the blocks of a vision transformer, count as `last`.
        last: Dotted names of the layers that the tangent model may change, in the order of the forward pass, up to the
            classifier; several names together are one layer. Default: the classifier alone.

    Raises:
        UserError: If a layer does not exist, or the classifier is not a `torch.nn.Linear`.
    """

    def __init__(
        self, module: nn.Module, classifier: str | None = None, last: Sequence[str | Sequence[str]] = ()
    ) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        self.found_classifier = classifier is None
        if classifier is None:
            classifier = find_classifier(self.module)
            last = last or find_layers(self.module, classifier)
        self.classifier_path, self.classifier_name = classifier, f"module.{classifier}"
        parts = [(layer,) if isinstance(layer, str) else tuple(layer) for layer in last] or [(classifier,)]
        self.layer_modules = tuple(parts if parts[-1] == (classifier,) else [*parts, (classifier,)])
        self.layers = tuple(names[0] for names in self.layer_modules)
        for names in self.layer_modules:
            for name in names:
                self._find(name)
        if not isinstance(self.classifier, nn.Linear):
            kind = type(self.classifier).__name__
            raise UserError(f"the classifier '{classifier}' is a {kind}; name the network's last torch.nn.Linear")
        self.frozen_parameters = {f"module.{name}" for name, p in self.module.named_parameters() if not p.requires_grad}
        self.keep_as_initial()
        self.has_batch_norm = any(isinstance(layer, NORMS) for layer in self.module.modules())

    @property
    def classifier(self) -> nn.Linear:  # type: ignore[override]
        """The last linear layer."""
        return self._find(self.classifier_path)  # type: ignore[return-value]

    def set_classifier(self, layer: nn.Linear) -> None:
        """Replace the classifier."""
        parent, _, name = self.classifier_path.rpartition(".")
        setattr(self._find(parent), name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]`. Batch norm uses its running statistics for a single image, which has no variance."""
        if self.training and self.has_batch_norm and len(x) == 1:
            with _eval_mode(self.module):
                return self.module(x)  # type: ignore[no-any-return]
        return self.module(x)  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """The classifier's input `[n, features]`, recorded by a hook."""
        seen: list[Tensor] = []
        hook = self.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self(x)
        finally:
            hook.remove()
        return seen[-1]

    def split(self, last: int | None) -> tuple[nn.Sequential, nn.Sequential]:
        """An empty trunk, and the module as the head; `in_last_layers` says which parameters the tangent model has."""
        if last is not None and not 1 <= last <= len(self.layers):
            raise UserError(
                f"this network names {len(self.layers)} last layers ({', '.join(self.layers)}), not {last}; "
                "set tangent.layers, or name more layers in ModuleAdapter(..., last=[...])"
            )
        return nn.Sequential(), nn.Sequential(OrderedDict(module=self.module))

    def in_last_layers(self, name: str, last: int | None) -> bool:
        """Whether the parameter `name` of the head is trainable and in the last `last` layers (None: in any layer)."""
        layers = self.layer_modules[0 if last is None else len(self.layers) - last :]
        chosen = ("module.",) if last is None else tuple(f"module.{part}." for layer in layers for part in layer)
        return name not in self.frozen_parameters and name.startswith(chosen)

    def validate_input(self, shape: tuple[int, int, int]) -> None:
        """Run two black images through the module, so that errors appear before training starts."""
        weights = {name: p for name, p in self.named_parameters() if p.requires_grad}
        outputs: list[Tensor] = []
        hook = self.classifier.register_forward_hook(lambda _, __, output: outputs.append(output))
        try:
            with _eval_mode(self.module), torch.enable_grad():
                logits = self.module(torch.zeros((2, *shape), device=self.classifier.weight.device))
                if self.found_classifier and not any(output is logits for output in outputs):
                    raise UserError(
                        f"the last linear layer, {self.classifier_path}, does not return the network's logits; "
                        "name the layer that does: itl.nets.ModuleAdapter(module, NAME)"
                    )
                width = (2, self.classifier.out_features)
                if not isinstance(logits, Tensor) or tuple(logits.shape) != width:
                    raise ValueError(
                        f"it returns {getattr(logits, 'shape', type(logits).__name__)}, not logits {width}"
                    )
                grads = torch.autograd.grad(logits.sum(), list(weights.values()), allow_unused=True)
        except UserError:
            raise
        except Exception as error:  # user code: any exception is possible
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"the network cannot classify images of shape {list(shape)}: {reason}") from error
        finally:
            hook.remove()
        unused = [name for name, grad in zip(weights, grads, strict=True) if grad is None]
        if unused:
            raise UserError(
                f"the network does not use its parameter {unused[0]}; remove it or set requires_grad to False"
            )

    def reinitialize(self, generator: torch.Generator) -> None:
        """Restore the weights that the module came with, and reset the classifier to a random initialization."""
        self.load_state_dict(self.initial_state or {}, strict=False)
        initialize(self.classifier, generator)

    def describe(self) -> dict[str, object]:
        """Class and layer names, saved with a learner. To load the learner, the user passes the module again."""
        kind = type(self.module)
        return {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "classifier": self.classifier_path,
            "last": [names[0] if len(names) == 1 else list(names) for names in self.layer_modules],
        }

    def _find(self, name: str) -> nn.Module:
        try:
            return self.module.get_submodule(name)
        except AttributeError:
            raise unknown("layer", name, [n for n, _ in self.module.named_modules() if n]) from None


def with_new_classifier(net: ModuleAdapter, classes: int, generator: torch.Generator | None) -> ModuleAdapter:
    """A copy of `net` with a new classifier of `classes` outputs, initialized by `generator` if given."""
    out = copy.deepcopy(net)
    old = out.classifier
    new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    if generator is not None:
        initialize(new, generator)
    out.set_classifier(new)
    return out


def as_adapter(net: nn.Module | None) -> ModuleAdapter | None:
    """A user's module in an adapter, whose classifier and layers are detected; None for None.

    Raises:
        UserError: If it is not a module.
    """
    if net is None or isinstance(net, ModuleAdapter):
        return net
    if not isinstance(net, nn.Module):
        raise UserError(f"net must be a torch.nn.Module, not {type(net).__name__}")
    return ModuleAdapter(net)


@contextmanager
def math_attention() -> Iterator[None]:
    """Use PyTorch's unfused attention within the block: the fused kernels have no forward-mode derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def thread_safe_jvp(
    function: Callable[..., Tensor], primals: tuple[object, ...], tangents: tuple[object, ...]
) -> tuple[Tensor, Tensor]:
    """`torch.func.jvp` for concurrent runs, without fused attention.

    PyTorch keeps one state of forward mode per process: if two threads overlap, one of them silently gets zeros as its
    derivative. So one thread at a time may be here. A later backward pass through the outputs needs no such care.

    Args:
        function: Returns one tensor.
        primals: Its arguments, tensors or dictionaries of tensors.
        tangents: The direction of the derivative, in the form of `primals`.

    Returns:
        The value and its derivative along `tangents`.
    """
    with _FORWARD_MODE, math_attention():
        return jvp(function, primals, tangents)  # type: ignore[return-value, no-untyped-call]


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode within the block, and restore each layer's mode afterwards."""
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes.items():
            layer.training = mode
