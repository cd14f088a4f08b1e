"""`itl run`: teach a method a stream and record how well it does."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import folders, options
from itl.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from itl.config import Config
    from itl.streams import Stream

FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed", "split", "variant", "curves")


@click.command()
@click.option("--stream", metavar="NAME", help="What to learn; see `itl streams`. [default: seq-digits]")
@click.option("--method", metavar="NAME", help="How; see `itl methods`. [default: itl]")
@click.option("--buffer", type=int, metavar="N", help="Images in memory. [default: 20 for seq-digits, else 200]")
@click.option("--seed", type=int, metavar="N", help="Of everything random. [default: 0]")
@click.option("--seeds", metavar="N,N,…", help="Several runs one after another, with a summary.")
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
@click.option("--curves", type=int, metavar="N", help="Points of the curve within a stage; 0: none. [default: 16]")
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
    places = [folders.choose(config, given["out"], len(configs) > 1, given["resume"]) for config in configs]
    results = _Session(given, several=len(configs) > 1).run_all(configs, places)
    _print(results, places, given)


def _configs(given: dict[str, Any]) -> list[Config]:
    """One configuration a seed."""
    file = options.read_config(given["file"])
    own = options.settings(given["pairs"], given["epochs"])
    fields = {name: given[name] for name in FIELDS}
    fields["order"] = options.numbers(given["order"], "--order")
    fields["keep_specialists"] = given["keep_specialists"] or None
    first = options.config(file, fields, own)
    chosen = options.seeds(given["seed"], given["seeds"], first.seed)
    return [options.config(file, {**fields, "seed": seed}, own) for seed in chosen]


class _Session:
    """Runs over one stream, read once, each with its display where there is a terminal."""

    def __init__(self, given: dict[str, Any], several: bool) -> None:
        from itl.engine.device import choose_engine

        choose_engine(given["device"])  # no such device: said before minutes of reading
        self.given, self.several = given, several
        self.console = None if given["as_json"] or given["quiet"] else _terminal()
        self.stream: Stream | None = None

    def run_all(self, configs: list[Config], places: list[Path]) -> list[dict[str, Any]]:
        results = []
        for number, (config, place) in enumerate(zip(configs, places, strict=True), 1):
            results.append(self._run(config, place, f"  (run {number} of {len(configs)})" if self.several else ""))
            if self.console is not None and self.several:
                self.console.print(f"seed {config.seed}: Class-IL {results[-1]['class_il']:.1f}", highlight=False)
        return results

    def _run(self, config: Config, place: Path, which: str) -> dict[str, Any]:
        import itl.run
        from itl.cli.live import Display

        display = None if self.console is None else Display(self.console, config, which)
        try:
            with display or nullcontext():
                if self.stream is None:
                    progress = None if display is None else display.loads
                    self.stream = config.load_stream(self.given["data"], self.given["download"], progress)
                if display is not None:
                    display.loaded(self.stream)
                return itl.run.run(
                    config,
                    self.stream,
                    place,
                    device=self.given["device"],
                    observers=() if display is None else (display,),
                    resume=self.given["resume"],
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; the same command with --resume goes on with {place}") from None


def _terminal() -> Console | None:
    """A console for a live display, where there is a terminal to show it on."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def _print(results: list[dict[str, Any]], places: list[Path], given: dict[str, Any]) -> None:
    """The end: a table, one JSON object, or only where the results are."""
    from rich.console import Console

    from itl.cli import tables

    if given["quiet"]:
        click.echo("\n".join(str(place) for place in places))
    elif given["as_json"]:
        many = {"results": results, "summary": tables.summary(results), "folders": [str(place) for place in places]}
        click.echo(json.dumps(many if len(results) > 1 else results[0], indent=1))
    else:
        many_view = len(results) > 1
        view = tables.summary_view(results, places) if many_view else tables.result_view(results[0], places[0])
        console = Console(highlight=False)
        if many_view and console.is_terminal:
            console.print()  # below the lines of the single seeds
        console.print(view)
