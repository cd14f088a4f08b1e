"""The settings that are tried for Seq-CIFAR-10 on the validation split, and what the paper leaves open."""

from __future__ import annotations

from typing import Any

from benchmarks.choices import Choice, SettingValues
from itl.presets.compositions import LARGE_MEMORY, SOLVED

# The generalist of itl at 200 images before the L-BFGS solver: SGD, and a squared error in the projection.
SGD: dict[str, Any] = {
    "half_pipe_scale": 1.0,
    "tangent.solver": "sgd",
    "tangent.l2": 1e-5,
    "projection.loss": "mse",
    "projection.teacher_rms": None,
    "projection.monitor": False,
}
# Details that the paper leaves open, as variants of itl with SGD.
OPEN_QUESTIONS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "reservoir": {**SGD, "memory.policy": "reservoir"},
    "plain": {**SGD, "augment.task": None, "augment.memory": None},
    "all-layers": {**SGD, "tangent.layers": None},
    "over-task": {**SGD, "projection.over": "task", "projection.epochs": 3},
    "joined": {**SGD, "specialist.name": "er"},
}


def generalist(tangent: tuple[float, float, int], projection: tuple[float, int]) -> SettingValues:
    """Settings from (learning rate, momentum, epochs) of tangent learning and (learning rate, epochs) of projection."""
    names = ("tangent.lr", "tangent.momentum", "tangent.epochs", "projection.lr", "projection.epochs")
    return dict(zip(names, (*tangent, *projection), strict=True))


MEMORY_STATISTICS = {"tangent.statistics": "memory"}


def solved(epochs: int, views: int, others: SettingValues | None = None) -> SettingValues:
    """Tangent learning by L-BFGS over `views` views of each image, then a projection of `epochs` epochs."""
    return {**SOLVED, "tangent.views": views, "projection.lr": 0.1, "projection.epochs": epochs, **(others or {})}


def solved_variants(epochs: int, views: int, *others: SettingValues) -> list[SettingValues]:
    """`solved` with other penalties, another scale of the classifier and batch-norm statistics of the memory."""
    settings = [{}, {"tangent.l2": 1e-2}, {"tangent.l2": 1e-4}, {"half_pipe_scale": 3.0}, MEMORY_STATISTICS, *others]
    return [solved(epochs, views, values) for values in settings]


def fine_tuned(
    lr: float, epochs: int, *, half_pipe: bool = False, project: bool = False, **others: Any
) -> SettingValues:
    """Settings of full fine-tuning on the memory instead of tangent learning, optionally with half-pipe and projection.

    `others` are further settings of the section `tangent`, which also holds those of fine-tuning.
    """
    stages = {"generalist": "full", "half_pipe": half_pipe, "project": project}
    training = {"tangent.lr": lr, "tangent.momentum": 0.0, "tangent.epochs": epochs}
    return {**stages, **training, **{f"tangent.{name}": value for name, value in others.items()}}


# The generalists of the first search at 200 images, for itl and itl-l.
SMALL_BUFFER, SMALL_BUFFER_L = generalist((0.05, 0.0, 60), (0.1, 120)), generalist((0.01, 0.9, 60), (0.05, 120))
LR_01 = {"lr.1": {"specialist.lr": 0.1}}
FINE_TUNED = (
    fine_tuned(0.05, 60),
    fine_tuned(0.1, 60),
    fine_tuned(0.1, 60, schedule="cosine"),
    fine_tuned(0.1, 120, schedule="cosine"),
    fine_tuned(0.03, 60, schedule="cosine"),
    fine_tuned(0.1, 60, half_pipe=True, schedule="cosine"),
    {**fine_tuned(0.05, 60, half_pipe=True, project=True), "projection.lr": 0.05},
)
# From ER's specialists; the first is the ablation's b+hp+ff+pd.
FINE_TUNED_ER = (
    fine_tuned(0.05, 60, half_pipe=True, project=True),
    fine_tuned(0.05, 60, half_pipe=True, project=True, schedule="cosine"),
    fine_tuned(0.1, 60, half_pipe=True, project=True, schedule="cosine"),
    fine_tuned(0.1, 120, half_pipe=True, project=True, schedule="cosine"),
    fine_tuned(0.05, 60, schedule="cosine"),
    fine_tuned(0.1, 60, schedule="cosine"),
    fine_tuned(0.1, 120, schedule="cosine"),
)
CHOICES = (
    # The first search, with SGD only, is recorded under the names without `solved`.
    Choice(
        ("itl", "itl-na"),
        500,
        {"solved": {}},
        [
            {**SGD, **generalist((0.1, 0.0, 30), (0.1, 60))},
            *solved_variants(60, 8, {**MEMORY_STATISTICS, "projection.lr": 0.2}),
        ],
        solved(60, 8),
        search="solved",
    ),
    Choice(
        ("itl-l", "itl-l-na"),
        500,
        {"solved-lr.1": LR_01["lr.1"]},
        [
            {**SGD, **generalist((0.01, 0.9, 60), (0.03, 60))},
            *solved_variants(60, 8, {**MEMORY_STATISTICS, "tangent.alpha": 0.3}),
        ],
        solved(60, 8),
        search="solved",
    ),
    Choice(
        ("itl-l", "itl-l-na"),
        5120,
        {"solved-lr.1": LR_01["lr.1"]},
        [{**SGD, **LARGE_MEMORY}, *solved_variants(20, 1, {**MEMORY_STATISTICS, "tangent.alpha": 0.3})],
        solved(20, 1),
        search="solved",
    ),
    Choice(
        ("itl", "itl-na"),
        5120,
        {"solved": {}},
        [{**SGD, **LARGE_MEMORY}, *solved_variants(20, 1, {**MEMORY_STATISTICS, "tangent.views": 2})],
        solved(20, 1),
        search="solved",
    ),
    # itl has these settings already (benchmarks/results/tangent-study).
    Choice(
        ("itl-na",),
        200,
        {"solved": {}},
        [{**SGD, **SMALL_BUFFER}, *solved_variants(120, 16)],
        solved(120, 16),
        search="solved",
    ),
    Choice(
        ("itl-l", "itl-l-na"),
        200,
        {"solved-lr.1": LR_01["lr.1"]},
        [{**SGD, **SMALL_BUFFER_L}, *solved_variants(120, 16, {**MEMORY_STATISTICS, "tangent.alpha": 0.3})],
        solved(120, 16),
        search="solved",
    ),
    # Beyond the paper: full fine-tuning was better here than tangent learning (docs/reproduction.md).
    Choice(("itl-l",), 200, {"kept": LR_01["lr.1"]}, FINE_TUNED, SMALL_BUFFER_L, variant="fine-tuned"),
    Choice(
        ("itl",),
        200,
        {"kept": {}, "mean": {"specialist.options.average": 0.999}},
        FINE_TUNED_ER,
        SMALL_BUFFER,
        variant="fine-tuned",
    ),
)
