"""Time of every method's step relative to `er`, and the part explained by its forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from itl import presets, specialists
from itl.bench.engine_timing import StageTimer
from itl.bench.workload import Workload
from itl.errors import unknown
from itl.learner import Learner
from itl.streams import Stream

BUFFER = 200
BACKWARD_COST = 2  # a backward pass costs as much as two forward passes
# The same batches for all methods, low learning rates (training on noise must not diverge), no generalist.
COMMON_SETTINGS: dict[str, Any] = {
    "specialist.batch": 32,
    "specialist.replay": 32,
    "specialist.lr": 1e-3,
    "generalist": "none",
    "augment.task": None,
    "augment.memory": None,
}
# Options that shorten parts that are not timed, or that make every epoch do the timed work (metasp).
SHORT_OPTIONS = {"first_epochs": None, "probe_epochs": 1, "bias_epochs": 1, "plain": 0.0}


def names() -> list[str]:
    """Measured methods: all without a generalist, except the ablation's `b`."""
    alone = [name for name in presets.METHODS if presets.settings_for(name, None, BUFFER).generalist == "none"]
    return [name for name in alone if name != "b"]


def parse_names(text: str) -> list[str]:
    """Method names from `all` or a comma-separated list; `er` is always included.

    Raises:
        UserError: A name is unknown.
    """
    if text == "all":
        return names()
    out = ["er"]
    for name in text.split(","):
        if name not in names():
            raise unknown("method to measure", name, [*names(), "all"])
        out += [] if name in out else [name]
    return out


def measure_methods(
    device: str,
    which: Sequence[str],
    *,
    quick: bool = False,
    side: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the step time of several methods, on images of `side` pixels as `measure` does.

    Returns:
        A record whose `methods` hold, for each method, milliseconds per step on the second task (`ms`), the `ratio` to
        `er`, the ratio `explained` by forward and backward passes, and `factor` = ratio / explained (1: no overhead).
    """
    workload = Workload.for_device(device, quick, side)
    stream = workload.stream()
    rows: list[dict[str, Any]] = []
    for name in which:
        on_progress(name)
        rows.append(row(workload, stream, name))
    er = next(entry for entry in rows if entry["method"] == "er")
    for entry in rows:
        entry["ratio"] = entry["ms"] / er["ms"]
        entry["explained"] = cost(entry) / cost(er)
        entry["factor"] = entry["ratio"] / entry["explained"]
    return workload.describe() | {"methods": rows}


def row(workload: Workload, stream: Stream, name: str) -> dict[str, Any]:
    """A method's milliseconds per step and its number of forward and backward passes."""
    settings = presets.settings_for(name, None, BUFFER)
    specialist = specialists.build(settings.specialist)
    own = {f"specialist.options.{k}": v for k, v in SHORT_OPTIONS.items() if k in specialist.options.model_dump()}
    if specialist.data == "memory":  # an epoch is a few steps
        own["specialist.epochs"] = workload.epochs * max(1, workload.images // BUFFER)
    given = {**workload.net, "specialist.epochs": workload.epochs, **workload.settings, **COMMON_SETTINGS, **own}
    timer, outputs = StageTimer(), stream.classes + 2  # two unseen classes, for methods that prepare future outputs
    learner = Learner(name, BUFFER, 0, outputs, settings=given, device=workload.device, callback=timer)
    for task in stream:
        learner.learn(task)
    passes = {
        "forwards": specialist.forward_batches,
        "backwards": specialist.backward_batches,
        "captured": specialists.is_capturable(settings),
    }
    return {"method": name, "ms": timer.ms("specialist"), **passes}


def cost(passes: dict[str, Any]) -> float:
    """Arithmetic of a step, in forward passes of one batch."""
    return float(passes["forwards"] + BACKWARD_COST * passes["backwards"])
