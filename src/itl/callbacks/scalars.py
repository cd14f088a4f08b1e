"""What loggers write: the scalars of a line of metrics.jsonl, and the parameters of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from itl.experiments import Config

METRIC_TITLES = {"class_il": "Class-IL", "task_il": "Task-IL"}


def parameters(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that are set, with its settings by dotted name."""
    values = dict(config) if isinstance(config, Mapping) else asdict(config)
    settings = values.pop("settings", {})
    return {name: value for name, value in {**values, **settings}.items() if value is not None}


def scalars(line: dict[str, Any], number: int) -> list[tuple[str, float, int]]:
    """Scalars of a line of metrics.jsonl.

    Args:
        line: The line.
        number: Index of the line, from 0.

    Returns:
        (tag, value, step) triples.
    """
    task, stage, kind = line["task"], line["stage"], line["kind"]
    if kind in ("end", "expert"):
        return [(f"{title} after each task/{stage}", line[key], task) for key, title in METRIC_TITLES.items()]
    triples = []
    for key, title in METRIC_TITLES.items():
        triples.append((f"{title}/tasks seen", line[key], number))
        accuracies = line[f"{key}_tasks"][:task]
        triples += [(f"{title}/task {k + 1:02d}", value, number) for k, value in enumerate(accuracies)]
    if line.get("loss") is not None:
        triples.append((f"loss/{stage}", line["loss"], number))
    return triples
