"""`itl run`: teach a method a stream and record how well it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options, run_folders
from itl.cli.display.labels import which
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from itl.callbacks.base import Callback
    from itl.experiments.config import Config
    from itl.streams import Stream

LANES = 4  # a GPU is full with so many (docs/performance.md)
FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed", "split", "variant", "curves")


@click.command()
@click.option("--stream", metavar="NAME", help="What to learn; see `itl streams`. [default: seq-digits]")
@click.option("--method", metavar="NAME", help="How; see `itl methods`. [default: itl]")
@click.option("--buffer", type=int, metavar="N", help="Images in memory. [default: 20 for seq-digits, else 200]")
@click.option("--seed", type=int, metavar="N", help="Of everything random. [default: 0]")
@click.option("--seeds", metavar="N,N,…", help="Several runs, with a summary.")
@click.option("--buffers", metavar="N,N,…", help="Each of these memory sizes.")
@click.option("--vary", multiple=True, metavar="KEY=V,V,…", help="Each of these values of a setting, as variants.")
@click.option("--lanes", type=click.IntRange(1), metavar="N", help="Runs side by side on a GPU. [default: 4 at most]")
@click.option("--epochs", type=int, metavar="N", help="Of the specialist: short for --set specialist.epochs=N.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Any setting; see `itl methods NAME`.")
@click.option("--config", "file", metavar="FILE", help="JSON with a run's options, such as a run's config.json.")
@click.option("--data", metavar="DIR", default="data", show_default=True, help="Where the datasets lie.")
@click.option("--out", metavar="DIR", help="The run's folder (several seeds: their parent). [default: in runs/]")
@click.option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--split", metavar="NAME", help="Evaluate on test or validation images. [default: test]")
@click.option("--tasks", type=int, metavar="N", help="How many tasks. [default: the stream's usual number]")
@click.option("--order", metavar="N,N,…", help="The classes in the order to teach them.")
@click.option("--order-seed", type=int, metavar="N", help="Draw the order of classes.")
@click.option("--variant", metavar="NAME", help="A name for this choice of settings, kept in the record.")
@click.option("--keep-specialists", is_flag=True, help="Keep every task's specialist, for `itl refine`.")
@click.option(
    "--curves",
    type=int,
    metavar="N",
    help="Points of the curve within a stage. [default: as many, to 16, as cost about 1 %]",
)
@click.option("--tensorboard", is_flag=True, help="Write event files for TensorBoard while it runs.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run.")
@click.option("--download", is_flag=True, help="Fetch a missing dataset from its official address.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object and nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but the run's folder.")
def run(**given: Any) -> None:
    """Teach a method a stream and record how well it does.

    With no option: itl on the digits that come with scikit-learn.
    """
    if given["as_json"] and given["quiet"]:
        raise UserError("give --json or --quiet, not both")
    configs = _configs(given)
    places = [run_folders.choose(config, given["out"], len(configs) > 1, given["resume"]) for config in configs]
    results = _Session(given, several=len(configs) > 1).run_all(configs, places)
    _print(results, places, given)


def _configs(given: dict[str, Any]) -> list[Config]:
    """One configuration for each seed, buffer and variation."""
    file = options.read_config(given["file"])
    own = options.settings(given["pairs"], given["epochs"])
    fields = {name: given[name] for name in FIELDS}
    fields["order"] = options.numbers(given["order"], "--order")
    fields["keep_specialists"] = given["keep_specialists"] or None
    first = options.config(file, fields, own)
    chosen = options.seeds(given["seed"], given["seeds"], first.seed)
    sizes = options.several(given["buffer"], given["buffers"], "buffer") or (first.buffer,)
    out = []
    for size in sizes:
        for name, changed in options.variations(given["vary"], first.variant):
            cell = {**fields, "buffer": size, "variant": name}
            out += [options.config(file, {**cell, "seed": seed}, {**own, **changed}) for seed in chosen]
    return out


class _Session:
    """Runs over one stream, read once, with a display where there is a terminal."""

    def __init__(self, given: dict[str, Any], several: bool) -> None:
        from itl.engine.device import choose_engine

        self.device = choose_engine(given["device"]).device  # no such device: said before minutes of reading
        self.given, self.several = given, several
        self.console = None if given["as_json"] or given["quiet"] else terminal()
        self.stream: Stream | None = None

    def run_all(self, configs: list[Config], places: list[Path]) -> list[dict[str, Any]]:
        lanes = min(self.given["lanes"] or LANES, len(configs))
        if self.device.type == "cuda" and lanes > 1:
            return self._side_by_side(configs, places, lanes)
        results = []
        for number, (config, place) in enumerate(zip(configs, places, strict=True), 1):
            results.append(self._run(config, place, f"  (run {number} of {len(configs)})" if self.several else ""))
            if self.console is not None and self.several:
                self.console.print(f"{which(config)}: Class-IL {results[-1]['class_il']:.1f}", highlight=False)
        return results

    def _run(self, config: Config, place: Path, number: str) -> dict[str, Any]:
        import itl.experiments.run
        from itl.cli.display.progress import Display

        display = None if self.console is None else Display(self.console, config, number)
        try:
            with self._events([place]) as (events,), display or nullcontext():
                stream = self._load(config, None if display is None else display.loads)
                if display is not None:
                    display.loaded(stream)
                return itl.experiments.run.run(
                    config,
                    stream,
                    place,
                    device=self.given["device"],
                    callbacks=[*events, *([] if display is None else [display])],
                    resume=self.given["resume"],
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; the same command with --resume goes on with {place}") from None

    def _side_by_side(self, configs: list[Config], places: list[Path], lanes: int) -> list[dict[str, Any]]:
        import itl.experiments.run
        from itl.cli.display.runs import Abreast

        display = None if self.console is None else Abreast(self.console, configs, lanes)
        try:
            with self._events(places) as events, display or nullcontext():
                stream = self._load(configs[0], None)
                return itl.experiments.run.run_all(
                    configs,
                    stream,
                    places,
                    lanes=lanes,
                    device=self.given["device"],
                    callbacks=[
                        [*own, *([] if display is None else [display.rows[number]])]
                        for number, own in enumerate(events)
                    ],
                    resume=self.given["resume"],
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command with --resume goes on with each run") from None

    @contextmanager
    def _events(self, places: list[Path]) -> Iterator[list[list[Callback]]]:
        """For each run the observers that write TensorBoard's files, where asked for."""
        if not self.given["tensorboard"]:
            yield [[] for _ in places]
            return
        from itl.callbacks.tensorboard import Events

        with ExitStack() as stack:
            yield [[stack.enter_context(Events(place))] for place in places]

    def _load(self, config: Config, progress: Any) -> Stream:
        if self.stream is None:
            self.stream = config.load_stream(self.given["data"], self.given["download"], progress)
        return self.stream


def terminal() -> Console | None:
    """A console for a live display, where there is a terminal to show it on."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _print(results: list[dict[str, Any]], places: list[Path], given: dict[str, Any]) -> None:
    """The end: a table, one JSON object, or only where the results are."""
    from rich.console import Console

    from itl.cli.display import run_tables

    if given["quiet"]:
        click.echo("\n".join(str(place) for place in places))
    elif given["as_json"]:
        many = {
            "results": results,
            "folders": [str(place) for place in places],
            **run_tables.summaries(results, places),
        }
        click.echo(json.dumps(many if len(results) > 1 else results[0], indent=1))
    else:
        console = Console(highlight=False)
        if len(results) == 1:
            console.print(run_tables.result_view(results[0], places[0]))
            return
        if console.is_terminal:
            console.print()  # below the lines of the single seeds
        for cell in run_tables.cells(results, places):
            console.print(run_tables.summary_view(*cell))
