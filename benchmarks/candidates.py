"""The settings that are tried for Seq-CIFAR-10 on the validation split, and what the paper leaves open."""

from __future__ import annotations

from typing import Any

from benchmarks.choices import Choice, SettingValues
from itl.presets.compositions import DERPP_WEIGHTS

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


def fine_tuned(
    lr: float, epochs: int, *, half_pipe: bool = False, project: bool = False, **others: Any
) -> SettingValues:
    """Settings of full fine-tuning on the memory instead of tangent learning, optionally with half-pipe and projection.

    `others` are further settings of the section `tangent`, which also holds those of fine-tuning.
    """
    stages = {"generalist": "full", "half_pipe": half_pipe, "project": project}
    training = {"tangent.lr": lr, "tangent.momentum": 0.0, "tangent.epochs": epochs}
    return {**stages, **training, **{f"tangent.{name}": value for name, value in others.items()}}


# Generalists of the runs that keep specialists, for small and large buffers; also the first candidate of each list.
SMALL_BUFFER, LARGE_BUFFER = generalist((0.05, 0.0, 60), (0.1, 120)), generalist((0.05, 0.0, 10), (0.1, 20))
SMALL_BUFFER_L, LARGE_BUFFER_L = generalist((0.01, 0.9, 60), (0.05, 120)), generalist((0.01, 0.9, 10), (0.05, 20))
LR_01 = {"lr.1": {"specialist.lr": 0.1}}
# DER++ with the benchmark's α and β for 500, 200 and 5,120 images. (The benchmark's learning rate, 0.03, was worse on
# the validation split at 200 images: docs/reproduction.md.)
SPECIALISTS_L = {
    **LR_01,
    **{f"weights-{size}": {**DERPP_WEIGHTS["seq-cifar10", size], **LR_01["lr.1"]} for size in (200, 5120)},
}
GENERALISTS_L = (
    SMALL_BUFFER_L,
    generalist((0.01, 0.9, 60), (0.05, 60)),
    generalist((0.01, 0.9, 60), (0.03, 60)),
    generalist((0.03, 0.0, 60), (0.05, 60)),
    generalist((0.01, 0.9, 60), (0.1, 60)),
    generalist((0.01, 0.9, 30), (0.05, 60)),
    generalist((0.01, 0.0, 60), (0.05, 60)),
)
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
    Choice(
        ("itl", "itl-na"),
        500,
        {"apart": {}},
        [
            SMALL_BUFFER,
            generalist((0.05, 0.0, 60), (0.1, 60)),
            generalist((0.05, 0.0, 30), (0.1, 60)),
            generalist((0.05, 0.0, 60), (0.05, 120)),
            generalist((0.01, 0.9, 60), (0.1, 60)),
            generalist((0.01, 0.9, 60), (0.05, 60)),
            generalist((0.01, 0.9, 30), (0.1, 60)),
            generalist((0.1, 0.0, 30), (0.1, 60)),
        ],
        SMALL_BUFFER,
    ),
    Choice(("itl-l",), 500, LR_01, GENERALISTS_L, SMALL_BUFFER_L),
    # With the settings chosen for itl-l it missed its target, because of its specialists (docs/reproduction.md).
    Choice(("itl-l-na",), 500, SPECIALISTS_L, GENERALISTS_L[:4], SMALL_BUFFER_L),
    Choice(
        ("itl", "itl-na"),
        5120,
        {"apart": {}},
        [
            LARGE_BUFFER,
            generalist((0.05, 0.0, 20), (0.1, 20)),
            generalist((0.05, 0.0, 10), (0.1, 40)),
            generalist((0.05, 0.0, 10), (0.05, 20)),
            generalist((0.01, 0.9, 10), (0.1, 20)),
            generalist((0.01, 0.9, 20), (0.05, 40)),
            generalist((0.1, 0.0, 5), (0.1, 20)),
            generalist((0.01, 0.9, 5), (0.1, 10)),
        ],
        LARGE_BUFFER,
    ),
    Choice(
        ("itl-l", "itl-l-na"),
        5120,
        LR_01,
        [
            LARGE_BUFFER_L,
            generalist((0.01, 0.9, 10), (0.1, 20)),
            generalist((0.01, 0.9, 20), (0.05, 40)),
            generalist((0.01, 0.0, 20), (0.05, 20)),
            generalist((0.03, 0.0, 10), (0.05, 20)),
            generalist((0.01, 0.9, 5), (0.03, 20)),
        ],
        LARGE_BUFFER_L,
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
