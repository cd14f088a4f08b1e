"""`itl info`: show what a model folder contains."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.display.formatting import format_bytes, plural
from itl.cli.output import echo, print_json

if TYPE_CHECKING:
    from itl.apps.model import Model


@click.command()
@click.argument("model", metavar="MODEL")
@options.json_option("it")
def info(model: str, as_json: bool) -> None:
    """Show what a model contains.

    Lists its classes, its memory, its network and its history.
    """
    from itl.apps.model import Model

    facts = describe(Model.open(model, device="cpu", memory=False))
    print_json(facts) if as_json else _print_facts(facts)


def describe(model: Model) -> dict[str, Any]:
    """Facts about a model, as `itl info --json` prints them."""
    import numpy as np

    from itl.checkpoint import store

    learner, memory = model.learner, model.learner.memory
    weights = f"{sum(p.numel() for p in learner.net.parameters()):,} weights"
    in_memory = dict.fromkeys(model.classes, 0)
    for label, count in zip(*np.unique(memory.labels, return_counts=True), strict=True):
        in_memory[model.output_names[label]] += int(count)
    return {
        "path": str(model.path),
        "method": learner.method,
        "network": f"{learner.settings.net.name}, {weights}{' after the frozen trunk' if learner.extractor else ''}",
        "image": model.image,
        "classes": [{"class": name, "in_memory": count} for name, count in in_memory.items()],
        "tasks": len(learner.tasks),
        "memory": {
            "images": len(memory),
            "room": memory.size,
            "policy": learner.settings.memory.policy,
            "pixel_bytes": len(memory) * math.prod(learner.image_shape),
            "room_bytes": memory.size * math.prod(learner.image_shape),
            "file_bytes": disk_usage(model.path / str(model.generation) / "memory"),
        },
        "calibration": {**model.calibration.model_dump(), "rule": model.calibration.rule},
        "folder_bytes": disk_usage(model.path),
        "undo": max(0, len(store.generations(model.path)) - 1),
        "unfinished": model.pending,
        "history": model.history,
    }


def disk_usage(folder: Path) -> int:
    """Bytes of all files in a folder; hard links to the same file are counted once."""
    sizes = {}
    for root, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # a concurrent `itl learn` has replaced it
                status = os.lstat(os.path.join(root, file))
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def main_facts(facts: dict[str, Any]) -> dict[str, str]:
    """The main properties of a model as text."""
    image, memory = facts["image"], facts["memory"]
    shape = f"{image['channels']} x {image['size']} x {image['size']} pixels"
    memory_bytes = format_bytes(memory["file_bytes"] or memory["pixel_bytes"])  # a plain learner saves no image files
    content = f"{memory['images']} of {memory['room']} images"
    return {
        "model": facts["path"],
        "method": facts["method"],
        "network": facts["network"],
        "images": shape + (", augmented by mirroring" if image["flip"] else ""),
        "tasks": str(facts["tasks"]),
        "memory": f"{content}, {memory_bytes} ({memory['policy']}){_limit(memory)}" if memory["room"] else "none",
        "unknown": _describe_unknown(facts["calibration"]),
        "folder": f"{format_bytes(facts['folder_bytes'])}; itl undo can go back {plural(facts['undo'], 'step')}",
    }


def _limit(memory: dict[str, Any]) -> str:
    """The size of the memory when it is full."""
    return f"; at most {format_bytes(memory['room_bytes'])} of pixels" if memory["images"] < memory["room"] else ""


def _describe_unknown(calibration: dict[str, Any]) -> str:
    """When `itl predict` shows an image as unknown."""
    if calibration["threshold"] is None:
        return "never: too few images were held out for testing"
    low = f"confidence below {100 * calibration['threshold']:.1f} %" if calibration["score"] == "probability" else ""
    return f"{low or 'images unlike those learned'}, from {calibration['images']} held-out images"


def _print_facts(facts: dict[str, Any]) -> None:
    for key, value in main_facts(facts).items():
        echo(f"{key:<8} {value}")
    if facts["unfinished"] is not None:
        name = facts["unfinished"].get("what", "images")
        echo(f"\nlearning {name} was interrupted: repeat itl learn to continue, or itl undo to discard it")
    has_memory = facts["memory"]["room"] > 0
    echo(f"\n{plural(len(facts['classes']), 'class')}{' (images in memory)' if has_memory else ''}")
    for row in facts["classes"]:
        echo(f"  {row['class']} ({row['in_memory']})" if has_memory else f"  {row['class']}")
    echo("\nhistory")
    for entry in facts["history"]:
        echo(f"  {entry['date']}  {describe_change(entry)}")


def describe_change(entry: dict[str, Any]) -> str:
    """An entry of a model's history in one line."""
    from itl.apps.model.history import is_lesson

    kind = entry["what"]
    if kind in ("rename", "merge"):
        return f"{kind} {entry['old']} {'to' if kind == 'rename' else 'into'} {entry['new']}"
    if kind == "resize":
        return f"resize the memory from {entry['before']} to {entry['size']} images"
    if kind == "repair":
        return f"repair: {plural(entry['images'], 'damaged image')} dropped"
    if kind == "forget":
        return f"forget {plural(entry['images'], 'image')} and {plural(entry['classes'], 'class')}"
    if is_lesson(entry):
        return _describe_lesson(entry)
    rest = {key: value for key, value in entry.items() if key not in ("what", "date", "itl", "fingerprint")}
    words = [
        _format_value(value) if key == "folders" else f"{key} {_format_value(value)}" for key, value in rest.items()
    ]
    return ", ".join([f"{kind} {words[0]}", *words[1:]]) if words else str(kind)


def _describe_lesson(entry: dict[str, Any]) -> str:
    """An entry written by `itl learn`."""
    counts, accuracy = entry.get("classes", {}), entry.get("accuracy", {}).get("task")
    suffix = "" if accuracy is None else f", accuracy {accuracy:.1f} %"
    return f"learn {entry['name']}: {plural(sum(counts.values()), 'image')} of {plural(len(counts), 'class')}{suffix}"


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return " ".join(f"{key} ({_format_value(part)})" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
