"""`itl bench`: how fast it is here, beside the usual way."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import click

from itl.errors import UserError


@click.command()
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--method", metavar="NAME,…", help="Measure these methods' steps beside er's instead, or all.")
@click.option("--quick", is_flag=True, help="Fewer sizes and steps.")
@click.option("--out", metavar="FILE", help="Write the record there too.")
@click.option("--plot", metavar="FILE", help="Draw it (PNG, PDF or SVG by the name's ending).")
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object and nothing else.")
def bench(device: str, method: str | None, quick: bool, out: str | None, plot: str | None, as_json: bool) -> None:
    """Measure speed as ratios within one run: our engine, the usual loop, memory sizes, lanes; or every method."""
    from itl.bench import measure
    from itl.bench.method_steps import chosen, measure_methods
    from itl.engine.device import choose_engine

    if method is not None and plot is not None:
        raise UserError("--plot draws the benchmark as a whole; leave out --method")
    kind = choose_engine(device).device.type

    def say(line: str) -> None:
        click.echo(f"{line} …", err=True)

    if method is None:
        record = measure(kind, quick=quick, say=say)
    else:
        record = measure_methods(kind, chosen(method), quick=quick, say=say)
    if out is not None:
        _write(out, json.dumps(record, indent=1) + "\n")
    if plot is not None:
        from itl.bench.plot import draw

        draw(record, plot)
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    _show(record) if method is None else _show_methods(record)
    for path in (out, plot):
        if path is not None:
            click.echo(f"written: {path}")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def _show(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    hardware = record["hardware"]
    table = Table(title=f"{record['network']} on {hardware.get('gpu', hardware['device'])}", title_justify="left")
    for column in ("step", "ours, ms", "usual, ms", "ratio", "memory, MiB"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for name, times in record["ours"].items():
        usual = record["usual"][name]["ms"]
        cells = (f"{times['ms']:.2f}", f"{usual:.1f}", f"{record['ratio'][name]:.1f}x", f"{times['bytes'] >> 20}")
        table.add_row(name, *cells)
    console.print(table)
    share = record["generalist_share"]
    console.print(
        f"tangent + projection, 60 epochs each: {share['generalist_seconds']:.1f} s a task, "
        f"{100 * share['share']:.1f} % of the specialist's 50 epochs"
    )
    growth = Table(title="an epoch over the memory", title_justify="left")
    for column in ("|B|", "tangent, s", "projection, s", "both, µs an image"):
        growth.add_column(column, justify="right")
    for row in record["growth"]:
        growth.add_row(
            str(row["buffer"]), f"{row['tangent']:.3f}", f"{row['projection']:.3f}", f"{row['per_image_us']:.0f}"
        )
    console.print(growth)
    lanes = ", ".join(f"{row['lanes']}: {row['ms_per_run_step']:.2f} ms" for row in record["lanes"])
    console.print(f"er side by side, a run-step with n lanes: {lanes}")
    if "whole" in record:
        spent = [mean(run["seconds"] for run in record["whole"][side]) for side in ("ours", "usual")]
        console.print(
            f"a whole seq-digits run: {spent[0]:.0f} s, the usual way {spent[1]:.0f} s: {record['whole']['ratio']:.1f}x"
        )


def _show_methods(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    hardware = record["hardware"]
    table = Table(title=f"{record['network']} on {hardware.get('gpu', hardware['device'])}", title_justify="left")
    for column in ("method", "ms a step", "to er's", "forwards + backwards", "explain", "factor"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in record["methods"]:
        passes = f"{row['forwards']:g} + {row['backwards']:g}"
        ratios = (f"{row[name]:.2f}" for name in ("ratio", "explained", "factor"))
        first, second, third = ratios
        table.add_row(row["method"], f"{row['ms']:.2f}", f"{first}x", passes, f"{second}x", third)
    console.print(table)
