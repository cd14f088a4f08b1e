"""`itl run`: train a method on a stream and record its accuracy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from itl.cli import options
from itl.cli.display.formatting import run_label
from itl.cli.output import echo, print_json, warn
from itl.cli.parsing import (
    build_config,
    expand_variants,
    one_or_many,
    parse_ints,
    parse_seeds,
    parse_settings,
    read_config_file,
    with_backbone,
)
from itl.cli.run_folders import choose_run_folder, resume_remark

if TYPE_CHECKING:
    from itl.callbacks.base import Callback
    from itl.experiments.config import Config
    from itl.streams import Stream

CONFIG_FIELDS = ("stream", "method", "buffer", "tasks", "order", "order_seed", "split", "variant", "curves")


@click.command()
@options.stream_options
@options.seed_option
@click.option("--seeds", metavar="N,N,…", help="One run for each of these seeds, with mean and standard deviation.")
@click.option("--buffers", metavar="N,N,…", help="One run for each of these memory sizes.")
@click.option(
    "--vary", multiple=True, metavar="KEY=V,V,…", help="One run for each of these values of a setting. Repeatable."
)
@options.runs_per_gpu_option
@click.option(
    "--epochs", type=int, metavar="N", help="Epochs of training on each task; short for --set specialist.epochs=N."
)
@options.backbone_option
@options.settings_option
@click.option(
    "--config", "file", metavar="FILE", help="Read the options from a JSON file, such as a run's config.json."
)
@options.data_option
@click.option(
    "--out",
    metavar="DIR",
    help="Folder to write the run to; for several runs, the folder that will contain theirs. [default: in runs/]",
)
@options.device_option
@click.option("--split", metavar="NAME", help="Evaluate on the test or the validation images. [default: test]")
@options.class_order_options
@click.option("--variant", metavar="NAME", help="Name for these settings, recorded with the result.")
@click.option("--keep-specialists", is_flag=True, help="Save the specialist of every task, for `itl refine`.")
@click.option(
    "--curves",
    type=int,
    metavar="N",
    help="Evaluations during each stage, for accuracy curves. [default: up to 16, at a cost of about 1 % of the time]",
)
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard event files.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@options.download_option
@options.json_option()
@options.quiet_option("the folder of the run")
def run(**given: Any) -> None:
    """Train a method on a stream and record its accuracy.

    Without options: train ITL on seq-digits, the digits that come with scikit-learn.
    """
    options.exclusive(json=given["as_json"], quiet=given["quiet"])
    configs = build_configs(given)
    from itl.results.record import release_reserved_folders

    try:
        folders = [choose_run_folder(config, given["out"], len(configs) > 1, given["resume"]) for config in configs]
        if given["resume"] and (remark := resume_remark(configs, folders, given["out"])):
            warn(remark)
        results = _Session(given).run_all(configs, folders)
    finally:
        release_reserved_folders()
    _print_results(results, folders, given)


def build_configs(given: dict[str, Any]) -> list[Config]:
    """The configuration of every run: one per seed, buffer and `--vary` combination."""
    file = read_config_file(given["file"])
    settings = with_backbone(given["backbone"], parse_settings(given["pairs"], given["epochs"]))
    fields = {name: given[name] for name in CONFIG_FIELDS}
    fields["order"] = parse_ints(given["order"], "--order")
    fields["keep_specialists"] = given["keep_specialists"] or None
    first = build_config(file, fields, settings)
    seeds = parse_seeds(given["seed"], given["seeds"], first.seed)
    buffers = one_or_many(given["buffer"], given["buffers"], "buffer") or (first.buffer,)
    configs = []
    for buffer in buffers:
        for variant, changed in expand_variants(given["vary"], first.variant):
            cell = {**fields, "buffer": buffer, "variant": variant}
            configs += [build_config(file, {**cell, "seed": seed}, {**settings, **changed}) for seed in seeds]
    return configs


class _Session:
    """Runs on one stream, which is loaded once, with live progress if there is a terminal."""

    def __init__(self, given: dict[str, Any]) -> None:
        from itl.cli.display.live import live_console
        from itl.engine.device import choose_engine

        self.device = choose_engine(given["device"]).device  # fails before minutes of loading data
        self.given = given
        self.console = live_console(given)
        self.stream: Stream | None = None

    def run_all(self, configs: list[Config], folders: list[Path]) -> list[dict[str, Any]]:
        from itl.experiments.search.local_backend import DEFAULT_RUNS_PER_GPU

        concurrent = min(self.given["runs_per_gpu"] or DEFAULT_RUNS_PER_GPU, len(configs))
        if self.device.type == "cuda" and concurrent > 1:
            return self._run_concurrently(configs, folders, concurrent)
        results = []
        for number, (config, folder) in enumerate(zip(configs, folders, strict=True), 1):
            position = f" (run {number} of {len(configs)})" if len(configs) > 1 else ""
            results.append(self._run_one(config, folder, position))
            if self.console is not None and len(configs) > 1:
                self.console.print(f"{run_label(config)}: Class-IL {results[-1]['class_il']:.1f}", highlight=False)
        return results

    def _run_one(self, config: Config, folder: Path, position: str) -> dict[str, Any]:
        import itl.experiments.run
        from itl.cli.display.progress import RunDisplay

        display = None if self.console is None else RunDisplay(self.console, config, position)
        try:
            with self._tensorboard([folder]) as (loggers,), display or nullcontext():
                stream = self._load_stream(config, None if display is None else display.show_loading)
                if display is not None:
                    display.set_stream(stream)
                return itl.experiments.run.run(
                    config,
                    stream,
                    folder,
                    device=self.given["device"],
                    callbacks=[
                        *loggers,
                        *([display] if display else self._stage_log(run_label(config) * bool(position))),
                    ],
                    resume=self.given["resume"],
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted. To continue {folder}, repeat the command with --resume.") from None

    def _run_concurrently(self, configs: list[Config], folders: list[Path], concurrent: int) -> list[dict[str, Any]]:
        import itl.experiments.run
        from itl.cli.display.concurrent_runs import RunsDisplay

        display = None if self.console is None else RunsDisplay(self.console, configs, concurrent)
        try:
            with self._tensorboard(folders) as loggers, display or nullcontext():
                stream = self._load_stream(configs[0], None)
                progress = [[run] for run in display.runs] if display else [self._stage_log(c.name) for c in configs]
                return itl.experiments.run.run_all(
                    configs,
                    stream,
                    folders,
                    runs_per_gpu=concurrent,
                    device=self.given["device"],
                    callbacks=[[*own, *shown] for own, shown in zip(loggers, progress, strict=True)],
                    resume=self.given["resume"],
                )
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted. To continue the runs, repeat the command with --resume.") from None

    def _stage_log(self, label: str) -> Sequence[Callback]:
        """The callback that prints a line per stage, unless only the result is to be printed."""
        from itl.cli.display.stage_log import StageLog

        return () if self.given["as_json"] or self.given["quiet"] else (StageLog(label),)

    @contextmanager
    def _tensorboard(self, folders: list[Path]) -> Iterator[list[list[Callback]]]:
        """For each run, the callbacks that write TensorBoard event files, if there are any."""
        if not self.given["tensorboard"]:
            yield [[] for _ in folders]
            return
        from itl.callbacks.tensorboard import TensorBoardCallback

        with ExitStack() as stack:
            yield [[stack.enter_context(TensorBoardCallback(folder))] for folder in folders]

    def _load_stream(self, config: Config, progress: Callable[[int, int | None], None] | None) -> Stream:
        if self.stream is None:
            self.stream = config.load_stream(self.given["data"], self.given["download"], progress)
        return self.stream


def _print_results(results: list[dict[str, Any]], folders: list[Path], given: dict[str, Any]) -> None:
    """Print the results as tables, as JSON, or only their folders."""
    from itl.cli.display import run_tables
    from itl.cli.display.tables import open_console

    if given["quiet"]:
        echo("\n".join(str(folder) for folder in folders))
    elif given["as_json"]:
        several = {
            "results": results,
            "folders": [str(folder) for folder in folders],
            **run_tables.summaries(results, folders),
        }
        print_json(several if len(results) > 1 else results[0])
    else:
        console = open_console()
        console.print()  # below the lines of the stages or the seeds
        if len(results) == 1:
            console.print(run_tables.result_summary(results[0], folders[0]))
            return
        for group in run_tables.group_by_seed(results, folders):
            console.print(run_tables.seeds_summary(*group))
        console.print(run_tables.next_step(f"itl table {os.path.commonpath(folders)} --hide-missing"))
