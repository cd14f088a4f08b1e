"""Cut a module of unknown structure before one of its layers, without tracing or rewriting its code.

Trunk and head both run the module's own forward pass. In the trunk, the layers from the cut on do nothing. In the
head, the layers before the cut do nothing, and the layer at the cut reads the features instead of its input.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from itl.errors import UserError

TOLERANCE = 1e-4  # relative to the largest logit: between the module and the two parts of it


class _Skipped(nn.Module):
    """Takes the place of a layer: has its plain attributes, and returns zeros of its output's shape."""

    def __init__(self, layer: nn.Module, output_shape: Sequence[int]) -> None:
        super().__init__()
        self.__dict__.update({k: v for k, v in vars(layer).items() if not k.startswith("_") and k not in vars(self)})
        self.output_shape = tuple(output_shape)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Zeros `[n, ...]`, which layers may change in place. `len(x)` would fix the batch size of an export."""
        return x.new_zeros((x.shape[0], *self.output_shape), dtype=torch.float32)


class _Capture(_Skipped):
    """A skipped layer that keeps its input."""

    captured: Tensor | None = None

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Zeros, as for any skipped layer."""
        self.captured = x
        return super().forward(x)


class _Resume(nn.Module):
    """A layer that reads the features instead of its input."""

    features: Tensor | None = None

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *_: Any, **__: Any) -> Any:
        """The layer's output for the features."""
        return self.layer(self.features)


class ModuleTrunk(nn.Module):
    """Maps images to the input of the layer `cut`."""

    def __init__(self, module: nn.Module, cut: str) -> None:
        super().__init__()
        self.module, self.cut = module, cut

    def forward(self, images: Tensor) -> Tensor:
        """Features `[n, ...]` of images `[n, c, h, w]`."""
        entry = self.module.get_submodule(self.cut)
        assert isinstance(entry, _Capture)
        self.module(images)
        captured, entry.captured = entry.captured, None
        assert captured is not None
        return captured


class ModuleRest(nn.Module):
    """Maps the input of the layer `cut` to logits."""

    def __init__(self, module: nn.Module, cut: str, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.module, self.cut, self.shape = module, cut, shape

    def forward(self, features: Tensor) -> Tensor:
        """Logits `[n, classes]`."""
        entry = self.module.get_submodule(self.cut)
        assert isinstance(entry, _Resume)
        entry.features = features
        try:
            images = features.new_zeros((1, *self.shape)).expand(features.shape[0], *self.shape)
            return self.module(images)  # type: ignore[no-any-return]
        finally:
            entry.features = None


def cut_module(
    module: nn.Module, layers: Sequence[Sequence[str]], trained: int, shape: tuple[int, int, int]
) -> tuple[ModuleTrunk, ModuleRest]:
    """Cut a module before its last `trained` layers.

    Args:
        module: The module, which is copied. It may be on the meta device; the result is then not checked.
        layers: Dotted names of the modules of each layer, in the order of the forward pass.
        trained: Number of layers after the cut.
        shape: Shape `(c, h, w)` of the images.

    Returns:
        The trunk and the rest. Parameters of the rest that belong to none of its layers are frozen.

    Raises:
        UserError: If the module cannot be cut there, because later layers need more than that layer's input.
    """
    before = [name for layer in layers[:-trained] for name in layer]
    after = [name for layer in layers[-trained:] for name in layer]
    cut, device = after[0], next(module.parameters()).device
    images = torch.linspace(-1, 1, 2 * shape[0] * shape[1] * shape[2], device=device).view(2, *shape)
    module = copy.deepcopy(module).eval()
    with torch.no_grad():
        logits, shapes = _output_shapes(module, [*before, *after], cut, images)
        trunk, rest = copy.deepcopy(module), module
        for name in after:
            _replace(trunk, name, (_Capture if name == cut else _Skipped)(trunk.get_submodule(name), shapes[name]))
        for name in before:
            _replace(rest, name, _Skipped(rest.get_submodule(name), shapes[name]))
        _replace(rest, cut, _Resume(rest.get_submodule(cut)))
        parts = ModuleTrunk(trunk, cut), ModuleRest(rest, cut, shape)
        try:
            difference = (parts[1](parts[0](images)) - logits).abs().max()
        except Exception as error:  # user code: any exception is possible
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise _error(module, cut, reason) from error
        if device.type != "meta" and not bool(difference <= TOLERANCE * logits.abs().max()):
            raise _error(module, cut, "later layers need more than its input")
    used = tuple(f"{name}." for name in after)
    for name, parameter in rest.named_parameters():
        if not name.startswith(used):
            parameter.requires_grad_(False)
    return parts


def _output_shapes(
    module: nn.Module, names: Sequence[str], cut: str, images: Tensor
) -> tuple[Tensor, dict[str, tuple[int, ...]]]:
    """Logits, and the shape of each layer's output without the batch; layers must map one tensor to one tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []

    def record(name: str, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        given = [*inputs, *(value for value in named.values() if value is not None)]
        batch = isinstance(output, Tensor) and len(output) == len(images)
        if not batch or name in shapes or (name == cut and len(given) != 1):
            problems.append(f"{name} does not map one tensor to one tensor, once")
        else:
            shapes[name] = tuple(output.shape[1:])

    hooks = [
        module.get_submodule(name).register_forward_hook(
            lambda _, inputs, named, output, name=name: record(name, inputs, named, output), with_kwargs=True
        )
        for name in names
    ]
    try:
        logits = module(images)
    finally:
        for hook in hooks:
            hook.remove()
    problems += [f"{name} is not used" for name in names if name not in shapes]
    if problems:
        raise _error(module, cut, problems[0])
    return logits, shapes


def _error(module: nn.Module, cut: str, reason: str) -> UserError:
    return UserError(
        f"a {type(module).__name__} cannot be cut before {cut}: {reason}; set net.trained=1 to train the classifier "
        "only, or net.trained=null to train all of it"
    )


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, layer)
