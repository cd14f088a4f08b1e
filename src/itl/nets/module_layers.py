"""Find the classifier and the layers of a module: the blocks of a vision transformer, or the stages of a ResNet."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from itl.errors import UserError

CONTAINERS = (nn.Sequential, nn.ModuleList)
NORM_NAMES = ("Norm", "FrozenBatchNorm")  # in names of classes: libraries have normalization layers of their own


def find_classifier(module: nn.Module) -> str:
    """Dotted name of the last `torch.nn.Linear` in the order of definition, or of the one that a timm model names.

    Raises:
        UserError: If there is none.
    """
    get_classifier: Any = getattr(module, "get_classifier", None)
    named = get_classifier() if callable(get_classifier) else None
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    names: list[str] = [name for name, layer in layers.items() if layer is named] or list(layers)
    if not names or not names[-1]:
        raise UserError(
            f"a {type(module).__name__} has no torch.nn.Linear within it as its last layer, which itl needs as the "
            "classifier; add one"
        )
    return names[-1]


def find_layers(module: nn.Module, classifier: str) -> list[tuple[str, ...]]:
    """The layers of a module in the order of definition, the classifier last.

    A layer is a block if the module consists of blocks, such as those of a vision transformer or a ResNet. Modules
    without parameters are left out. A normalization layer counts as part of the layer before it.

    Args:
        module: The module.
        classifier: Dotted name of its classifier.

    Returns:
        For each layer the dotted names of its modules.
    """
    layers: list[tuple[str, ...]] = []
    for name in _units(module, "", classifier):
        unit = module.get_submodule(name)
        if name == classifier:
            return [*layers, (name,)]
        if not _has_parameters(unit):
            continue
        if layers and _is_norm(unit):
            layers[-1] = (*layers[-1], name)
        else:
            layers.append((name,))
    return [*layers, (classifier,)]


def _units(module: nn.Module, name: str, classifier: str) -> list[str]:
    """Names of the modules that are not divided further."""
    holds_classifier = not name or classifier.startswith(f"{name}.")
    if not (holds_classifier or _is_divided(module)):
        return [name]
    prefix = f"{name}." if name else ""
    return [unit for part, child in module.named_children() for unit in _units(child, prefix + part, classifier)]


def _is_divided(module: nn.Module) -> bool:
    """Whether a module is a sequence of blocks, or contains one."""
    if _is_sequence(module):
        return any(_is_block(child) or _is_divided(child) for child in module.children())
    return any(_repeats_blocks(part) for part in module.modules() if part is not module)


def _repeats_blocks(module: nn.Module) -> bool:
    """Whether a module is a sequence that has two blocks of the same class."""
    if not _is_sequence(module):
        return False
    counts = Counter(type(child) for child in module.children() if _is_block(child))
    return max(counts.values(), default=0) > 1


def _is_sequence(module: nn.Module) -> bool:
    own_forward = isinstance(module, nn.Sequential) and type(module).forward is not nn.Sequential.forward
    return isinstance(module, CONTAINERS) and not own_forward


def _is_block(module: nn.Module) -> bool:
    """Whether a module consists of modules and is not itself a sequence."""
    return not isinstance(module, CONTAINERS) and _has_parameters(module) and any(True for _ in module.children())


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_norm(module: nn.Module) -> bool:
    return all(
        any(part in type(layer).__name__ for part in NORM_NAMES)
        for layer in module.modules()
        if any(True for _ in layer.parameters(recurse=False))
    )
