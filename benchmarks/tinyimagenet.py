"""The paper's Seq-TinyImageNet: its cells of ITL, then ITL-L, ER and joint training. Needs a GPU.

python benchmarks/tinyimagenet.py --list                             list what is not recorded yet, as commands
python benchmarks/tinyimagenet.py --data data --runs-per-gpu 2       choose settings, then do the runs, two at once
python benchmarks/tinyimagenet.py --data data --choose-only          choose the settings of each memory size
python benchmarks/tinyimagenet.py --data data --minutes 25           stop in time; repeat the command to continue

The settings are chosen on the validation split, from specialists that were trained for `SHORT_EPOCHS` epochs per
task instead of 50, after the last task. The same command continues an interrupted session (`benchmarks/plan.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.candidates import MEMORY_STATISTICS, generalist, solved  # noqa: E402
from benchmarks.choices import Choice, SettingValues  # noqa: E402
from benchmarks.plan import Plan  # noqa: E402
from itl.experiments.config import Config  # noqa: E402

STREAM = "seq-tinyimagenet"
SHORT_EPOCHS = 4
SIZES = (200, 500, 5120)
EPOCHS = {"specialist.epochs": 50}  # as in the paper; the benchmark trains for 100

JOINED: SettingValues = {}  # the method's defaults: one forward pass for both batches, momentum 0.9
SEPARATE: SettingValues = {"specialist.name": "er-separate", "specialist.lr": 0.1, "specialist.momentum": 0.0}
SAFE = {"projection.loss": "kl", "projection.teacher_rms": 3.0, "projection.monitor": True}


def sgd(tangent: tuple[float, float, int], projection: tuple[float, int]) -> SettingValues:
    """Tangent learning by SGD, then the projection that does not depend on the size of the logits."""
    return {**generalist(tangent, projection), **SAFE}


GENERALISTS: dict[int, list[SettingValues]] = {
    200: [
        sgd((0.05, 0.0, 60), (0.1, 60)),
        generalist((0.01, 0.9, 60), (0.03, 60)),
        solved(60, 16),
        solved(60, 16, {"tangent.l2": 1e-2}),
        solved(60, 16, MEMORY_STATISTICS),
        solved(60, 16, {"half_pipe_scale": 3.0}),
    ],
    500: [
        sgd((0.05, 0.0, 60), (0.1, 60)),
        generalist((0.01, 0.9, 60), (0.03, 60)),
        solved(60, 8),
        solved(60, 8, {"tangent.l2": 1e-2}),
        solved(60, 8, MEMORY_STATISTICS),
    ],
    # At most 3,200 + 3,200 steps after a task, a fifth of the specialist's steps.
    5120: [
        sgd((0.05, 0.0, 10), (0.1, 20)),
        generalist((0.01, 0.9, 10), (0.05, 20)),
        sgd((0.01, 0.9, 20), (0.1, 20)),
        solved(20, 1),
    ],
}
# Separate forward passes had the largest effect on Seq-CIFAR-10; both ways are tried with 200 images.
SPECIALISTS = {200: {"separate": SEPARATE, "joined": JOINED}}
CHOICES = tuple(
    Choice(
        ("itl", "itl-na"),
        size,
        SPECIALISTS.get(size, {"separate": SEPARATE}),
        candidates,
        {**candidates[0], "specialist.epochs": SHORT_EPOCHS},
        stream=STREAM,
        tasks=(10,),
    )
    for size, candidates in GENERALISTS.items()
)


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first: one seed of every cell of the paper before the others."""

    def cells(method: str, seeds: Sequence[int], **own: Any) -> list[Config]:
        return [Config(STREAM, method, size, seed, split=split, **own) for seed in seeds for size in SIZES]

    return [
        *cells("itl", (0,)),
        *cells("itl-na", (0,)),
        *cells("itl", (1, 2)),
        *cells("itl-na", (1,)),
        *cells("er", (0,), settings=EPOCHS),
        *cells("itl-l", (0,)),
        Config(STREAM, "joint", 200, 0, split=split, settings=EPOCHS),
    ]


PLAN = Plan.of(STREAM, configs, CHOICES)

if __name__ == "__main__":
    PLAN.main()
