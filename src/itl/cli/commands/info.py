"""`itl info`: what a model folder holds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from itl.apps.model import Model


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def info(model: str, as_json: bool) -> None:
    """Show a model's classes, its memory in images and bytes, its network and its history."""
    from itl.apps.model import Model

    facts = describe(Model.open(model, device="cpu"))
    click.echo(json.dumps(facts, indent=1)) if as_json else _show(facts)


def describe(model: Model) -> dict[str, Any]:
    """A model in figures."""
    import numpy as np

    from itl.checkpoint import store

    learner, memory = model.learner, model.learner.memory
    held = dict.fromkeys(model.classes, 0)
    for label, count in zip(*np.unique(memory.labels, return_counts=True), strict=True):
        held[model.names[label]] += int(count)
    return {
        "path": str(model.path),
        "method": learner.method,
        "network": f"{learner.settings.net.name}, {sum(p.numel() for p in learner.net.parameters()):,} weights",
        "image": model.image,
        "classes": [{"class": name, "in_memory": count} for name, count in held.items()],
        "tasks": len(learner.tasks),
        "memory": {
            "images": len(memory),
            "room": memory.size,
            "policy": learner.settings.memory.policy,
            "pixel_bytes": int(memory.pixels[: len(memory)].numel()),
            "file_bytes": _bytes(model.path / str(model.generation) / "memory"),
        },
        "folder_bytes": _bytes(model.path),
        "undo": max(0, len(store.generations(model.path)) - 1),
        "unfinished": model.pending,
        "history": model.history,
    }


def _bytes(folder: Path) -> int:
    """Bytes on the disk; a file that several generations share is counted once."""
    seen = {}
    for root, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # a learn that is going on has replaced it
                store = os.lstat(os.path.join(root, file))
                seen[store.st_ino] = store.st_size
    return sum(seen.values())


def _show(facts: dict[str, Any]) -> None:
    image, memory = facts["image"], facts["memory"]
    size = f"{image['channels']} x {image['size']} x {image['size']}"
    held = _size(memory["file_bytes"] or memory["pixel_bytes"])  # a learner's own folder has no picture files
    older = f"{facts['undo']} older state{'s' * (facts['undo'] != 1)} to go back to"
    lines = {
        "model": facts["path"],
        "method": facts["method"],
        "network": facts["network"],
        "images": f"{size} pixels" + (", mirrored ones alike" if image["flip"] else ""),
        "tasks": str(facts["tasks"]),
        "memory": f"{memory['images']} of {memory['room']} images, {held} ({memory['policy']})",
        "folder": f"{_size(facts['folder_bytes'])}; {older}",
    }
    for key, value in lines.items():
        click.echo(f"{key:<8} {value}")
    if facts["unfinished"] is not None:
        what = facts["unfinished"].get("what", "images")
        click.echo(f"\nin the middle of learning {what}: the same itl learn goes on, itl undo gives it up")
    click.echo(f"\n{len(facts['classes'])} classes (images in memory)")
    for row in facts["classes"]:
        click.echo(f"  {row['class']} ({row['in_memory']})")
    click.echo("\nhistory")
    for entry in facts["history"]:
        click.echo(f"  {entry['date']}  {told(entry)}")


def told(entry: dict[str, Any]) -> str:
    """An entry of the history in a line."""
    what = entry["what"]
    rest = {key: value for key, value in entry.items() if key not in ("what", "date", "itl", "fingerprint")}
    if what in ("rename", "merge"):
        return f"{what} {entry['old']} {'to' if what == 'rename' else 'into'} {entry['new']}"
    if what == "resize":
        return f"resize the memory from {entry['before']} to {entry['size']} images"
    if what == "forget":
        images, classes = entry["images"], entry["classes"]
        return f"forget {images} image{'s' * (images != 1)} and {classes} class{'es' * (classes != 1)}"
    if what == "learn" and "name" in entry:
        return _lesson(entry)
    words = [_value(value) if key == "folders" else f"{key} {_value(value)}" for key, value in rest.items()]
    return ", ".join([f"{what} {words[0]}", *words[1:]]) if words else str(what)


def _lesson(entry: dict[str, Any]) -> str:
    """What `itl learn` notes of a folder."""
    images, accuracy = sum(entry["classes"].values()), entry["accuracy"]["task"]
    classes = f"{len(entry['classes'])} class{'es' * (len(entry['classes']) != 1)}"
    known = "" if accuracy is None else f", accuracy {accuracy:.1f}"
    return f"learn {entry['name']}: {images} images of {classes}{known}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dict):
        return " ".join(f"{key} ({_value(part)})" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
