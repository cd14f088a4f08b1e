"""Every method's step beside er's: how much longer it takes, and how much of that its passes explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from itl import presets, specialists
from itl.bench.engine_timing import Stopwatch
from itl.bench.workload import Scale
from itl.errors import unknown
from itl.learner import Learner
from itl.results import environment
from itl.streams import Stream

BUFFER = 200
BACKWARD = 2  # a backward pass costs two forward ones
# The same batches for all, gentle steps (noise must not diverge), nothing but the specialist.
SAME: dict[str, Any] = {
    "specialist.batch": 32,
    "specialist.replay": 32,
    "specialist.lr": 1e-3,
    "generalist": "none",
    "augment.task": None,
    "augment.memory": None,
}
# Options that lengthen what is not timed, or that leave out of most epochs what is (metasp's plain ones).
SHORT = {"first_epochs": None, "probe_epochs": 1, "bias_epochs": 1, "plain": 0.0}


def names() -> list[str]:
    """The methods that are measured: all that are specialists alone, but for the ablation's."""
    alone = [name for name in presets.METHODS if presets.settings_for(name, None, BUFFER).generalist == "none"]
    return [name for name in alone if name != "b"]


def chosen(text: str) -> list[str]:
    """`all`, or names with commas between; er is always among them."""
    if text == "all":
        return names()
    out = ["er"]
    for name in text.split(","):
        if name not in names():
            raise unknown("method to measure", name, [*names(), "all"])
        out += [] if name in out else [name]
    return out


def measure_methods(
    device: str, which: Sequence[str], *, quick: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """A record with `methods`: for each its ms a step on the second task, `ratio` to er's, `explained` by what it
    computes, and `factor`, the one over the other: 1 is what its forwards and backwards cost, 3 the most it may be.
    """
    scale = Scale.of(device, quick)
    stream = scale.stream()
    out: dict[str, Any] = {"format": 1, "network": scale.net.get("net.name", "resnet18"), "images": scale.images}
    out |= environment(torch.device(device))
    rows: list[dict[str, Any]] = []
    for name in which:
        say(name)
        rows.append(row(scale, stream, name))
    er = next(one for one in rows if one["method"] == "er")
    for one in rows:
        one["ratio"] = one["ms"] / er["ms"]
        one["explained"] = cost(one) / cost(er)
        one["factor"] = one["ratio"] / one["explained"]
    return out | {"methods": rows}


def row(scale: Scale, stream: Stream, name: str) -> dict[str, Any]:
    """One method's milliseconds a step, and what it computes in one."""
    settings = presets.settings_for(name, None, BUFFER)
    specialist = specialists.build(settings.specialist)
    own = {f"specialist.options.{k}": v for k, v in SHORT.items() if k in specialist.options.model_dump()}
    if specialist.data == "memory":  # an epoch is a few steps
        own["specialist.epochs"] = scale.epochs * max(1, scale.images // BUFFER)
    given = {**scale.net, "specialist.epochs": scale.epochs, **scale.settings, **SAME, **own}
    watch, outputs = Stopwatch(), stream.classes + 2  # some classes are still to come, for methods that prepare them
    learner = Learner(name, BUFFER, 0, outputs, settings=given, device=scale.device, callback=watch)
    for task in stream:
        learner.learn(task)
    facts = {
        "forwards": specialist.forward_batches,
        "backwards": specialist.backward_batches,
        "captured": specialists.is_capturable(settings),
    }
    return {"method": name, "ms": watch.ms("specialist"), **facts}


def cost(facts: dict[str, Any]) -> float:
    """A step's arithmetic in forward passes of a batch."""
    return float(facts["forwards"] + BACKWARD * facts["backwards"])
