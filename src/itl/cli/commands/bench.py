"""`itl bench`: measure the training speed on this machine."""

from __future__ import annotations

import json
from statistics import mean
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.output import print_json, write_text
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@options.device_option
@click.option("--method", metavar="NAME,…|all", help="Compare the training steps of these methods with er's instead.")
@click.option(
    "--size",
    metavar="PIXELS",
    type=click.IntRange(8, 256),
    help="Height and width of the images.  [default: 32 on a GPU, 16 on a CPU]",
)
@click.option("--quick", is_flag=True, help="Measure fewer sizes and steps.")
@click.option("--out", metavar="FILE", help="Also write the measurements to this file, as JSON.")
@click.option("--plot", metavar="FILE", help="Also plot them to this file (.png, .pdf or .svg).")
@options.json_option("the measurements")
def bench(
    device: str, method: str | None, size: int | None, quick: bool, out: str | None, plot: str | None, as_json: bool
) -> None:
    """Measure the training speed on this machine.

    Compares this library's training steps with a plain PyTorch loop, and shows how speed depends on the memory size
    and on the number of concurrent runs. The ratios hold within one invocation on one machine.
    """
    from itl.bench import measure
    from itl.bench.method_steps import measure_methods, parse_names
    from itl.engine.device import choose_engine

    if method is not None and plot is not None:
        raise UserError("--plot cannot be combined with --method. Leave out one of them.")
    kind = choose_engine(device).device.type

    def log(line: str) -> None:
        click.echo(f"{line} …", err=True)

    if method is None:
        record = measure(kind, quick=quick, side=size, on_progress=log)
    else:
        record = measure_methods(kind, parse_names(method), quick=quick, side=size, on_progress=log)
    if out is not None:
        write_text(out, json.dumps(record, indent=1) + "\n")
    if plot is not None:
        from itl.bench.plot import draw

        draw(record, plot)
    if as_json:
        print_json(record)
        return
    _print_record(record) if method is None else _print_methods(record)
    for path in (out, plot):
        if path is not None:
            click.echo(f"wrote {path}")


def _table(record: dict[str, Any], *headings: str) -> Table:
    from itl.cli.display.tables import plain_table

    hardware = record["hardware"]
    images = f"{record['side']}x{record['side']} images, " if "side" in record else ""
    title = f"{record['network']}, {images}on {hardware.get('gpu', hardware['device'])}"
    return plain_table(*headings, left=1, title=title, title_justify="left")


def _print_record(record: dict[str, Any]) -> None:
    from itl.cli.display.tables import open_console, plain_table

    console = open_console()
    table = _table(record, "step", "itl, ms", "PyTorch loop, ms", "speed-up", "memory, MiB")
    for name, times in record["engine"].items():
        baseline = record["baseline"][name]["ms"]
        cells = (f"{times['ms']:.2f}", f"{baseline:.1f}", f"{record['ratio'][name]:.1f}x", f"{times['bytes'] >> 20}")
        table.add_row(name, *cells)
    console.print(table)
    share = record["generalist_share"]
    console.print(
        f"\nThe generalist (tangent and projection, 60 epochs each) takes {share['generalist_seconds']:.1f} s per "
        f"task, {100 * share['share']:.1f} % of the time of the specialist's 50 epochs.\n"
    )
    title = "Time of one epoch over the memory"
    growth = plain_table(
        "buffer", "tangent, s", "projection, s", "both, µs per image", title=title, title_justify="left"
    )
    for row in record["growth"]:
        seconds = (f"{row['tangent']:.3f}", f"{row['projection']:.3f}")
        growth.add_row(str(row["buffer"]), *seconds, f"{row['per_image_us']:.0f}")
    console.print(growth)
    concurrent = ", ".join(f"{row['runs']}: {row['ms_per_run_step']:.2f} ms" for row in record["concurrent_runs"])
    console.print(f"\nTime per training step of er, by number of concurrent runs: {concurrent}")
    if "full_run" in record:
        sides = (record["full_run"][side] for side in ("engine", "baseline"))
        engine, baseline = (mean(run["seconds"] for run in runs) for runs in sides)
        ratio = record["full_run"]["ratio"]
        console.print(f"A full seq-digits run: {engine:.0f} s; with the PyTorch loop {baseline:.0f} s ({ratio:.1f}x)")


def _print_methods(record: dict[str, Any]) -> None:
    from itl.cli.display.tables import open_console

    headings = ("method", "ms per step", "relative to er", "forward + backward", "expected", "actual / expected")
    table = _table(record, *headings)
    for row in record["methods"]:
        passes = f"{row['forwards']:g} + {row['backwards']:g}"
        ratio, expected, factor = (f"{row[name]:.2f}" for name in ("ratio", "explained", "factor"))
        table.add_row(row["method"], f"{row['ms']:.2f}", f"{ratio}x", passes, f"{expected}x", factor)
    open_console().print(table)
