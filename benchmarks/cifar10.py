"""The paper's Seq-CIFAR-10: every run of its two tables and its ablation, the most valuable first. Needs a GPU.

python benchmarks/cifar10.py --list                               list what is not recorded yet, as commands
python benchmarks/cifar10.py --data data [--runs-per-gpu 4]       run it, several runs at once
python benchmarks/cifar10.py --only itl,itl-na --buffers 500      some methods, some buffer sizes
python benchmarks/cifar10.py --only b --split validation          on the validation images
python benchmarks/cifar10.py --minutes 25                         stop in time; repeat the command to continue

The same command continues an interrupted session (`benchmarks/plan.py`). If a cell's settings are still to be chosen
(`benchmarks/candidates.py`), they are chosen first, on the validation split. `itl table --stream seq-cifar10` compares
the records with the paper. `python benchmarks/pack.py results/seq-cifar10/test` packs new run folders into the
committed records.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.candidates import CHOICES, OPEN_QUESTIONS  # noqa: E402
from benchmarks.plan import Plan  # noqa: E402
from itl.experiments.config import Config  # noqa: E402

STREAM = "seq-cifar10"
SEEDS = (0, 1, 2)
ITL = ("itl", "itl-na", "itl-l", "itl-l-na")
ABLATION = ("b", "b+ff", "b+lf", "b+hp+lf", "b+hp+ff+pd")
BASELINES = ("er", "derpp", "der", "joint", "sgd", "agem")
LATE_BASELINES = ("gss", "er-t", "gmed", "metasp", "co2l", "gcr")
WITHOUT_MEMORY = ("sgd", "joint")  # one run serves every buffer size


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first."""

    def cells(methods: Sequence[str], buffer: int, seeds: Sequence[int] = SEEDS, **own: Any) -> list[Config]:
        needed = [method for method in methods if buffer == 200 or method not in WITHOUT_MEMORY]
        return [Config(STREAM, method, buffer, seed, split=split, **own) for method in needed for seed in seeds]

    def questions(seeds: Sequence[int]) -> list[Config]:
        return [
            c for name, own in OPEN_QUESTIONS.items() for c in cells(["itl"], 200, seeds, settings=own, variant=name)
        ]

    beyond = [choice for choice in CHOICES if choice.variant]
    return [
        *cells(ITL, 200),
        *cells(ABLATION, 200),
        *cells(("itl", "itl-l-na", "itl-l", "itl-na"), 500),
        *questions(SEEDS[:1]),
        *cells(("itl-l", "itl", "itl-l-na", "itl-na"), 5120),
        *(config for choice in beyond for config in cells(choice.methods, choice.buffer, variant=choice.variant)),
        *(config for size in (200, 500, 5120) for config in cells(BASELINES, size, SEEDS[:1])),
        *questions(SEEDS[1:]),
        *cells(("itl", "itl-l"), 200, (3, 4)),
        *cells(("er", "der", "derpp"), 200, SEEDS[1:]),
        *cells(LATE_BASELINES, 200, SEEDS[:1]),
    ]


PLAN = Plan.of(STREAM, configs, CHOICES)

if __name__ == "__main__":
    PLAN.main()
