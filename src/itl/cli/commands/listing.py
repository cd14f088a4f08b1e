"""`itl methods`, `itl streams` and `itl backbones`: list what is available."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import print_json, warn
from itl.settings import value_text

if TYPE_CHECKING:
    from itl.presets import Method
    from itl.settings import Settings

MIN_KEY_WIDTH = 24  # columns
METHODS_NOTE = """\
parts: specialist × generalist (hp: half-pipe, pd: projection)
`itl methods NAME` shows the settings of a method."""


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@options.json_option("the list")
def methods(name: str | None, as_json: bool) -> None:
    """List the methods, or show the settings of one method."""
    from itl.presets import all_methods, get

    if name is not None:
        method = get(name)
        facts = {**describe(method), "settings": settings_by_stream(method)}
        print_json(facts) if as_json else _print_method(facts)
        return
    rows = [describe(method) for method in all_methods()]
    if as_json:
        print_json(rows)
        return
    cells = [(row["name"], _format_parts(row), _format_memory(row), row["about"]) for row in rows]
    _print_rows(("method", "parts", "memory", "description"), cells, METHODS_NOTE)


@click.command()
@options.json_option("the list")
def streams(as_json: bool) -> None:
    """List the streams and the dataset files they need."""
    from itl.streams import describe as describe_streams

    rows = _collect(describe_streams)
    if as_json:
        print_json(rows)
        return
    cells = [
        (
            row["name"],
            f"{row['classes']} in {row['tasks']} tasks",
            "x".join(map(str, row["shape"])),
            f"{row['train']:,}",
            row["files"],
        )
        for row in rows
    ]
    _print_rows(("stream", "classes", "image", "training images", "files in the --data folder"), cells)


@click.command()
@options.json_option("the list")
def backbones(as_json: bool) -> None:
    """List the networks that a method can train."""
    from itl import nets

    rows = _collect(nets.describe)
    if as_json:
        print_json(rows)
        return
    note = "Choose one with --backbone NAME. All networks of timm and torchvision: timm:NAME, torchvision:NAME."
    cells = [(row["name"], "yes" if row["pretrained"] else "no", row["summary"]) for row in rows]
    _print_rows(("backbone", "pre-trained weights", "description"), cells, note)


def _collect(describe_all: Callable[[], Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The entries of a registry. A plug-in that cannot be loaded becomes a line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = list(describe_all())
    for warning in caught:
        warn(warning.message)
    return rows


def describe(method: Method) -> dict[str, Any]:
    """Facts about a method, as `itl methods --json` prints them."""
    from itl import method_catalog, settings, specialists
    from itl.memory import policy_sets

    s = settings.build(method.defaults)
    logits = s.memory.logits or method_catalog.class_attribute(s.specialist.name, "stores_logits")
    weights = s.memory.weights is not False and policy_sets(s.memory.policy, "assigns_weights")
    stored = ["image", "label", *(["logits"] if logits else []), *(["weight"] if weights else [])]
    return {
        "name": method.name,
        "about": method.summary,
        "specialist": s.specialist.name,
        "generalist": s.generalist,
        "half_pipe": s.redraws_classifier,
        "projection": s.projects,
        "memory": s.memory.policy,
        "stores": [] if s.memory.policy == "none" else stored,
        "captured": specialists.is_capturable(s),
        "reference": method.reference,
        "note": method.note,
    }


def settings_by_stream(method: Method) -> dict[str, dict[str, dict[str, Any]]]:
    """All settings by stream, then by the buffer sizes that have settings of their own (`any` if there are none)."""
    from itl.settings import build, flatten
    from itl.specialists import with_option_defaults
    from itl.streams import names

    out: dict[str, dict[str, dict[str, Any]]] = {}
    for stream in names():
        sizes = sorted({size for name, size in method.stream_defaults if name == stream and size is not None})
        built: dict[str, Settings] = {str(size): build(method.defaults_for(stream, size)) for size in sizes}
        built = built or {"any": build(method.defaults_for(stream, 0))}
        out[stream] = {size: flatten(with_option_defaults(settings).model_dump()) for size, settings in built.items()}
    return out


def _generalist_steps(facts: dict[str, Any]) -> list[str]:
    """The steps after the specialist, such as half-pipe, tangent, projection."""
    steps = {"half-pipe": facts["half_pipe"], facts["generalist"]: True, "projection": facts["projection"]}
    return [] if facts["generalist"] == "none" else [step for step, used in steps.items() if used]


def _format_parts(facts: dict[str, Any]) -> str:
    """Specialist and generalist in the abbreviations of the paper's ablation: `er × hp+tangent+pd`."""
    abbreviations = {"half-pipe": "hp", "projection": "pd"}
    generalist = "+".join(abbreviations.get(step, step) for step in _generalist_steps(facts))
    return f"{facts['specialist']} × {generalist}" if generalist else str(facts["specialist"])


def _format_memory(facts: dict[str, Any]) -> str:
    """The memory policy, and whether it stores logits."""
    if facts["memory"] == "none":
        return "–"
    return f"{facts['memory']}+logits" if "logits" in facts["stores"] else str(facts["memory"])


def _other_specialists(facts: dict[str, Any]) -> str:
    """The streams on which the method uses another specialist than by default."""
    by_name: dict[str, list[str]] = {}
    for stream, sizes in facts["settings"].items():
        for name in dict.fromkeys(settings["specialist.name"] for settings in sizes.values()):
            if name != facts["specialist"]:
                by_name.setdefault(name, []).append(stream)
    return "".join(f"; {name} on {' and '.join(streams)}" for name, streams in by_name.items())


def _print_method(facts: dict[str, Any]) -> None:
    """Print the parts of a method, its common settings, and the settings that depend on the stream."""
    click.echo(f"{facts['name']}: {facts['about']}")
    lines = {
        "specialist": f"{facts['specialist']}{_other_specialists(facts)}",
        "generalist": ", ".join(_generalist_steps(facts)) or "none",
        "memory": f"{facts['memory']}; stores {', '.join(facts['stores']) or 'nothing'}",
        "CUDA graph": "yes" if facts["captured"] else "no",
        "reference": facts["reference"],
        "note": facts["note"],
    }
    for key, value in lines.items():
        if value:
            click.echo(f"  {key:<11} {value}")
    cases = [settings for sizes in facts["settings"].values() for settings in sizes.values()]
    first, *others = cases  # a specialist used on some streams only has options that the others lack
    common = {k: v for k, v in first.items() if all(k in case and case[k] == v for case in others)}
    click.echo("\nsettings common to all streams (change one with --set KEY=VALUE)")
    width = max(MIN_KEY_WIDTH, *map(len, common))
    for key, value in common.items():
        click.echo(f"  {key:<{width}} {value_text(value)}")
    for stream, sizes in facts["settings"].items():
        _print_stream_settings(stream, sizes, common)


def _print_stream_settings(stream: str, sizes: dict[str, dict[str, Any]], common: dict[str, Any]) -> None:
    """Print the settings that depend on the stream as a table, with one column per buffer size."""
    keys = [key for key in dict.fromkeys(key for case in sizes.values() for key in case) if key not in common]
    if not keys:
        click.echo(f"\nsettings on {stream}: no others")
        return
    rows = [[key, *(value_text(case[key]) if key in case else "–" for case in sizes.values())] for key in keys]
    headings = [f"settings on {stream}", *("" if size == "any" else f"buffer {size}" for size in sizes)]
    widths = [max(len(row[k]) for row in [headings, *rows]) for k in range(len(headings))]
    click.echo()
    for row in [headings, *(["  " + row[0], *row[1:]] for row in rows)]:
        click.echo("  ".join([row[0].ljust(widths[0] + 2), *map(str.ljust, row[1:], widths[1:])]).rstrip())


def _print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Print a table that folds its last column to the terminal; for other outputs, one aligned line per row."""
    from itl.cli.display.tables import open_console, plain_table

    console = open_console()
    if not console.is_terminal:
        widths = [max(len(row[k]) for row in rows) for k in range(len(headings))]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = plain_table(*headings[:-1], left=len(headings))
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if note:
        console.print(f"\n{note}")
