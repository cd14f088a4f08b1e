"""The inputs of a training step with replay, and their conversion to and from the engine's flat tensors.

The engine handles a step's inputs as a flat mapping of names to tensors, so that it can group, pack and capture steps
of any kind. This module is the only one that knows these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from itl.augment import Draws
from itl.engine.stage import StepInputs
from itl.specialists.base import LabeledImages

Inputs = TypeVar("Inputs")
SEPARATOR = "/"


@dataclass(frozen=True)
class TaskInputs:
    """The task's samples.

    Attributes:
        views: Augmented images, uint8 `[n, c, h, w]` for each of the specialist's views.
        y: Labels `[n]`.
        slots: The slots they are written to `[n]`, as far as planned; the memory's size means nowhere.
        offers: Inputs of the memory policy for each sample, `[n]` each.
        raw: Images before augmentation, if the memory policy writes within the step.
    """

    views: tuple[Tensor, ...]
    y: Tensor
    slots: Tensor
    offers: dict[str, Tensor] = field(default_factory=dict)
    raw: Tensor | None = None


@dataclass(frozen=True)
class ReplayInputs:
    """One draw of samples from memory.

    If the memory policy writes within the step, the contents of the slots are known only in the step; the inputs then
    hold the draws of the augmentation, and `views`, `y` and `widths` are filled in by `OnlineSelectionStep`.

    Attributes:
        slots: Where the samples are stored `[n]`.
        views: Augmented images, uint8 `[n, c, h, w]` for each of the specialist's views.
        y: Labels `[n]`.
        widths: How many columns of the stored logits were known when they were stored `[n]`; None if all were.
        weights: Sample weights `[n]`, if the memory policy assigns them.
        draws: Random choices of the augmentation, for each view.
    """

    slots: Tensor
    views: tuple[Tensor, ...] = ()
    y: Tensor | None = None
    widths: Tensor | None = None
    weights: Tensor | None = None
    draws: tuple[Draws, ...] = ()


@dataclass(frozen=True)
class ReplayStepInputs:
    """All inputs of a step, or of a run of steps.

    Attributes:
        task: The task's samples.
        replay: Samples from memory, for each draw; empty while the memory is empty.
        extra: Inputs that the specialist drew, by name.
        lookups: Raw images and labels for the specialist's `lookup_inputs`, by name.
    """

    task: TaskInputs
    replay: tuple[ReplayInputs, ...] = ()
    extra: dict[str, Tensor] = field(default_factory=dict)
    lookups: dict[str, LabeledImages] = field(default_factory=dict)

    def select(
        self, task: Callable[[Tensor], Tensor], replay: Callable[[Tensor], Tensor] | None, step: slice
    ) -> ReplayStepInputs:
        """The inputs of some of the steps.

        Args:
            task: Selects from a tensor with one row per task sample.
            replay: Selects from a tensor with one row per replayed sample; None if these steps have none.
            step: Selects from a tensor with one row per step.
        """
        return ReplayStepInputs(
            task=_map(self.task, task),
            replay=() if replay is None else _map(self.replay, replay),
            extra=_map(self.extra, lambda t: t[step]),
            lookups=_map(self.lookups, lambda t: t[step]),
        )


def flatten(inputs: ReplayStepInputs) -> StepInputs:
    """The tensors of `inputs` by path, such as "replay/1/views/0"."""
    return {SEPARATOR.join(path): tensor for path, tensor in _leaves(inputs, ())}


def unflatten(flat: StepInputs) -> ReplayStepInputs:
    """The inverse of `flatten`; ignores names that `flatten` does not produce, such as the engine's learning rate."""
    tree: dict[str, Any] = {}
    for name, tensor in flat.items():
        *path, leaf = name.split(SEPARATOR)
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = tensor
    task, replay = tree["task"], tree.get("replay", {})
    return ReplayStepInputs(
        task=TaskInputs(**{**task, "views": _in_order(task["views"])}),
        replay=tuple(_replay_inputs(draw) for draw in _in_order(replay)),
        extra=tree.get("extra", {}),
        lookups={name: LabeledImages(**part) for name, part in tree.get("lookups", {}).items()},
    )


def _replay_inputs(tree: dict[str, Any]) -> ReplayInputs:
    draws = tuple(Draws(**draw) for draw in _in_order(tree.get("draws", {})))
    return ReplayInputs(**{**tree, "views": _in_order(tree.get("views", {})), "draws": draws})


def _in_order(tree: dict[str, Any]) -> tuple[Any, ...]:
    """The items of a flattened tuple, whose keys are their positions."""
    return tuple(tree[str(k)] for k in range(len(tree)))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Every tensor in nested dataclasses, dicts and tuples, with its path."""
    if isinstance(value, Tensor):
        yield path, value
        return
    if is_dataclass(value):
        items: Any = ((f.name, getattr(value, f.name)) for f in fields(value))
    elif isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value or ())  # None: an input that this step does not have
    for name, item in items:
        yield from _leaves(item, (*path, str(name)))


def _map(value: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply `function` to every tensor in nested dataclasses, dicts and tuples."""
    result: Any = value
    if isinstance(value, Tensor):
        result = function(value)
    elif isinstance(value, dict):
        result = {name: _map(item, function) for name, item in value.items()}
    elif isinstance(value, tuple):
        result = tuple(_map(item, function) for item in value)
    elif is_dataclass(value):
        items = {f.name: _map(getattr(value, f.name), function) for f in fields(value)}
        result = replace(value, **items)  # type: ignore[type-var]
    return result  # type: ignore[no-any-return]
