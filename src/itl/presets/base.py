"""What a method is, and what its rows have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]
Tuned = Mapping[tuple[str, int | None], Values]


@dataclass(frozen=True)
class Method:
    """A named set of defaults. `tuned` refines them for a stream, or for (stream, buffer size).

    `note` says where published settings belong to something else than what they are used for here.
    """

    name: str
    about: str
    reference: str
    settings: Values
    tuned: Tuned = field(default_factory=dict)
    note: str = ""

    def defaults(self, stream: str | None, buffer: int) -> dict[str, Any]:
        """The settings for a stream and buffer; a buffer between two published sizes takes the nearest one's."""
        out = dict(self.settings)
        if stream is None:
            return out
        out |= SUITED.get(stream, {})
        out |= self.tuned.get((stream, None), {})
        sizes = [size for where, size in self.tuned if where == stream and size is not None]
        if sizes:
            nearest = min(sizes, key=lambda size: abs(size - buffer))
            out |= self.tuned[stream, nearest]
        return out


ITL_PAPER = (
    "Liu, Golatkar, Soatto, Achille: Integral Continual Learning Along the Tangent Vector Field of Tasks, CVPR 2024"
)
DER_PAPER = (
    "Buzzega, Boschini, Porrello, Abati, Calderara: Dark Experience for General Continual Learning, NeurIPS 2020"
)
ER_PAPER = (
    "Riemer et al.: Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference, ICLR 2019"
)

# What suits a stream whatever the method; a method's own settings for a stream win over these.
SMALL = {"net.name": "resnet8", "net.width": 16}
SUITED: dict[str, Values] = {
    # Small enough for two CPU cores and a minute; chosen on the validation split (docs/digits.md).
    "seq-digits": {**SMALL, "specialist.epochs": 15, "tangent.epochs": 60, "projection.epochs": 60},
    # How a generalist learns there: the best of those tried so far on the validation split (docs/reproduction.md).
    "seq-cifar10": {
        "tangent.lr": 0.05,
        "tangent.momentum": 0.0,
        "tangent.epochs": 60,
        "projection.lr": 0.1,
        "projection.schedule": "warm",
    },
    "seq-mnist": SMALL,
    "seq-fmnist": SMALL,
}

PLAIN = {"augment.task": None, "augment.memory": None}
NOT_ON_TASK = {"augment.task": None}
NONE = {"generalist": "none"}
RESERVOIR = {"memory.policy": "reservoir"}
