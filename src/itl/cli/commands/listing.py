"""`itl methods` and `itl streams`: what there is, a line each."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from itl.presets import Method
    from itl.settings import Settings


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def methods(name: str | None, as_json: bool) -> None:
    """List the methods, or one method's settings on each stream."""
    from itl.presets import all_methods, get

    if name is not None:
        method = get(name)
        facts = {**describe(method), "settings": by_stream(method)}
        click.echo(json.dumps(facts, indent=1)) if as_json else _show_method(facts)
        return
    rows = [describe(method) for method in all_methods()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        cells = [(r["name"], parts(r), held(r), r["about"]) for r in rows]
        note = (
            "parts: specialist × generalist (hp half-pipe, pd projection)\nitl methods NAME: its settings and reference"
        )
        _show(("method", "parts", "memory", "about"), cells, note)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
def streams(as_json: bool) -> None:
    """List the streams, and which files of theirs go where."""
    from itl.streams import describe as describe_streams

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = describe_streams()
    for warning in said:  # a foreign package that cannot be loaded must not hide the others
        click.echo(f"itl: {warning.message}", err=True)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    cells = [
        (r["name"], f"{r['classes']} in {r['tasks']}", "x".join(map(str, r["shape"])), f"{r['train']:,}", r["files"])
        for r in rows
    ]
    _show(("stream", "classes", "image", "train", "files, under --data"), cells)


def describe(method: Method) -> dict[str, Any]:
    """A method in words: its parts, what its memory keeps, whether its step is captured on a GPU, where it is from."""
    from itl import settings, specialists
    from itl.memory import get_policy

    s = settings.build(method.defaults)
    specialist = specialists.build(s.specialist)
    logits = s.memory.logits or specialist.stores_logits
    policy = get_policy(s.memory.policy)
    weights = s.memory.weights is not False and policy.assigns_weights
    return {
        "name": method.name,
        "about": method.summary,
        "specialist": s.specialist.name,
        "generalist": s.generalist,
        "half_pipe": s.jumps,
        "projection": s.projects,
        "memory": s.memory.policy,
        "stores": []
        if s.memory.policy == "none"
        else ["image", "label", *(["logits"] if logits else []), *(["weight"] if weights else [])],
        "captured": specialists.captured(s),
        "reference": method.reference,
        "note": method.note,
    }


def by_stream(method: Method) -> dict[str, dict[str, dict[str, Any]]]:
    """All settings on each stream, by the buffer sizes that have their own (else `any`)."""
    from itl.settings import build, flatten
    from itl.specialists import resolve
    from itl.streams import names

    out: dict[str, dict[str, dict[str, Any]]] = {}
    for stream in names():
        sizes = sorted({size for where, size in method.stream_defaults if where == stream and size is not None})
        built: dict[str, Settings] = {str(size): build(method.defaults_for(stream, size)) for size in sizes}
        built = built or {"any": build(method.defaults_for(stream, 0))}
        out[stream] = {size: flatten(resolve(s).model_dump()) for size, s in built.items()}
    return out


def steps(facts: dict[str, Any]) -> list[str]:
    """The steps at a task's end: half-pipe, tangent, projection."""
    named = {"half-pipe": facts["half_pipe"], facts["generalist"]: True, "projection": facts["projection"]}
    return [] if facts["generalist"] == "none" else [step for step, taken in named.items() if taken]


def parts(facts: dict[str, Any]) -> str:
    """Specialist and generalist in the ablation's short words: `er × hp+tangent+pd`."""
    short = {"half-pipe": "hp", "projection": "pd"}
    generalist = "+".join(short.get(step, step) for step in steps(facts))
    return f"{facts['specialist']} × {generalist}" if generalist else str(facts["specialist"])


def held(facts: dict[str, Any]) -> str:
    """The memory's policy, and what it stores beside images and labels."""
    if facts["memory"] == "none":
        return "–"
    return f"{facts['memory']}+logits" if "logits" in facts["stores"] else str(facts["memory"])


def elsewhere(facts: dict[str, Any]) -> str:
    """The streams on which a method has another specialist than it has on images of one's own."""
    places: dict[str, list[str]] = {}
    for stream, sizes in facts["settings"].items():
        for name in dict.fromkeys(s["specialist.name"] for s in sizes.values()):
            if name != facts["specialist"]:
                places.setdefault(name, []).append(stream)
    return "".join(f"; {name} on {' and '.join(streams)}" for name, streams in places.items())


def _show_method(facts: dict[str, Any]) -> None:
    """A method's parts, then its settings: those common to all streams, then where they differ."""
    click.echo(f"{facts['name']}: {facts['about']}")
    stores = ", ".join(facts["stores"]) or "nothing"
    captured = "captured on a GPU" if facts["captured"] else "not captured"
    lines = {
        "specialist": f"{facts['specialist']} (its step is {captured}){elsewhere(facts)}",
        "generalist": ", ".join(steps(facts)) or "none",
        "memory": f"{facts['memory']}; stores {stores}",
        "reference": facts["reference"],
        "note": facts["note"],
    }
    for key, value in lines.items():
        if not value:
            continue
        click.echo(f"  {key:<11} {value}")
    cases = {(where, size): s for where, sizes in facts["settings"].items() for size, s in sizes.items()}
    first, *others = cases.values()  # a specialist that a method has on some streams alone has options of its own
    common = {k: v for k, v in first.items() if all(k in case and case[k] == v for case in others)}
    click.echo("\nsettings on every stream (--set KEY=VALUE)")
    width = max(24, *map(len, common))
    for key, value in common.items():
        click.echo(f"  {key:<{width}} {json.dumps(value).strip(chr(34))}")
    click.echo("\nand on")
    for (where, size), case in cases.items():
        own = " ".join(f"{k}={json.dumps(v).strip(chr(34))}" for k, v in case.items() if k not in common)
        click.echo(f"  {where}{'' if size == 'any' else f', buffer {size}'}: {own or 'the same'}")


def _show(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Rows as an aligned table that folds its last column to the terminal; elsewhere one whole line a row."""
    from rich.console import Console

    from itl.cli.display.run_tables import plain_table

    console = Console(highlight=False)
    if not console.is_terminal:
        widths = [max(len(row[i]) for row in rows) for i in range(len(headings))]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = plain_table()
    for heading in headings:
        table.add_column(heading, no_wrap=heading != headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if note:
        console.print(f"\n{note}")
