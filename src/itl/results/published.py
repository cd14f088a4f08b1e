"""Published numbers as data: results of the paper and of others on the benchmark's streams."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PAPER = "Liu, Golatkar, Soatto, Achille: Integral Continual Learning Along the Tangent Vector Field of Tasks, CVPR 2024"

# Sources of the rows of published.csv: title and reference.
SOURCES: dict[str, tuple[str, str]] = {
    "table 1": ("the paper's Table 1", f"{PAPER}; Table 1"),
    "table 2": ("the paper's Table 2", f"{PAPER}; Table 2, methods that store logits"),
    "ablation": ("the paper's ablation", f"{PAPER}; Figure 2, the ablation of ITL on one buffer"),
    "cls-er": (
        "CLS-ER's own figures",
        "Arani, Sarfraz, Zonooz: Learning Fast, Learning Slow, ICLR 2022; the README of its code",
    ),
}


@dataclass(frozen=True)
class PublishedResult:
    """One published result: mean and standard deviation in percent; None where the source has none.

    `buffer` is None for a method without a memory of fixed size (joint training).
    """

    source: str
    stream: str
    buffer: int | None
    method: str
    class_il: float | None
    class_il_std: float | None
    task_il: float | None
    task_il_std: float | None
    note: str

    def matches(self, stream: str, method: str, buffer: int) -> bool:
        """Whether a run of this stream, method and buffer is compared with this result."""
        return (self.stream, self.method) == (stream, method) and self.buffer in (None, buffer)


@cache
def published() -> tuple[PublishedResult, ...]:
    """All published results, in the order of their tables."""
    text = files("itl.results").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_parse(row) for row in csv.DictReader(text.splitlines()))


def _parse(row: dict[str, str]) -> PublishedResult:
    numbers = {
        name: float(row[name]) if row[name] else None for name in ("class_il", "class_il_std", "task_il", "task_il_std")
    }
    buffer = int(row["buffer"]) if row["buffer"] else None
    return PublishedResult(row["source"], row["stream"], buffer, row["method"], **numbers, note=row["note"])
