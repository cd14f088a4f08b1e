"""Result tables of one or several runs, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.cli.display.formatting import format_percent, plural
from itl.cli.display.tables import plain_table
from itl.results.record import RECORD_FILES
from itl.results.seed_groups import MeanStd

SUMMARY_KEYS = {"class_il": "Class-IL", "task_il": "Task-IL", "forgetting": "forgetting"}
RUN_FILES = (*RECORD_FILES, "model", "specialists", "tensorboard")
Stages = dict[str, dict[str, float]]  # by stage: class_il and task_il in percent
SeedGroup = tuple[list[dict[str, Any]], list[Path]]  # results and folders of runs that differ only in their seed


def run_title(result: dict[str, Any], with_seed: bool = True) -> Text:
    """Method, stream, buffer and seed of a run."""
    variant = f" ({result['variant']})" if result.get("variant") else ""
    split = "" if result.get("split", "test") == "test" else f", {result['split']} split"
    line = f"{variant} on {result['stream']}, buffer {result['buffer']}{split}"
    line += f", seed {result['seed']}" if with_seed else ""
    return Text.assemble((str(result["method"]), "bold"), line)


def stage_table(rows: Sequence[tuple[str, Stages]], heading: str = "after task") -> Table:
    """Class-IL and Task-IL of specialist, generalist and expert, one row per task or attempt."""
    names = list(dict.fromkeys(name for _, stages in rows for name in stages if name != "expert")) or ["specialist"]
    table = plain_table(f"\n{heading}", left=1)
    for name in (*names, "expert"):
        table.add_column(f"{name}\nClass-IL", justify="right", style="bold" if name == "expert" else None)
        table.add_column("\nTask-IL", justify="right", style="dim")
    for label, stages in rows:
        cells = [format_percent(stages.get(n, {}).get(k)) for n in (*names, "expert") for k in ("class_il", "task_il")]
        table.add_row(label, *cells)
    return table


def result_summary(result: dict[str, Any], folder: Path) -> RenderableType:
    """The end of a run: accuracies of every stage, final scores, times, and the files written."""
    rows = [(str(task), stages) for task, stages in enumerate(result["stages"], 1)]
    final = Text.assemble(
        "Class-IL ",
        (f"{format_percent(result['class_il'])} %", "bold green"),
        f"   Task-IL {format_percent(result['task_il'])} %   forgetting {format_percent(result['forgetting'])}",
    )
    spent = dict(result["seconds"])
    total, evaluation = spent.pop("total"), spent.pop("evaluation", 0.0)
    digits = 1 if total < 100 else 0
    rounded = {name: f"{value:.{digits}f}" for name, value in {**spent, "evaluation": evaluation}.items()}
    parts = ", ".join(f"{name} {value}" for name, value in rounded.items() if float(value))
    times = Text(f"{total:.0f} s: {parts}")
    files = [name + ("/" if (folder / name).is_dir() else "") for name in RUN_FILES if (folder / name).exists()]
    written = paths_written([folder], wrap(" ".join(files), 74))
    return Group(run_title(result), "", stage_table(rows), "", final, times, written, next_step(f"itl report {folder}"))


def paths_written(paths: Sequence[Path], details: Sequence[str] = ()) -> Text:
    """`wrote PATH`, with further lines below it."""
    return Text("wrote " + "\n      ".join([*map(str, paths), *details]), no_wrap=True, overflow="ignore")


def next_step(command: str) -> Text:
    """A line that suggests the next command."""
    return Text.assemble("next: ", (command, "bold"), no_wrap=True, overflow="ignore")


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds; null for a score that a result does not have."""
    summary: dict[str, Any] = {"runs": len(results)}
    for key in SUMMARY_KEYS:
        over_seeds = MeanStd.of([result[key] for result in results])
        summary[key] = {"mean": over_seeds.mean, "std": over_seeds.std}
    return summary


def group_by_seed(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> list[SeedGroup]:
    """Runs grouped so that those in one group differ only in their seed."""
    groups: dict[tuple[Any, ...], SeedGroup] = {}
    for result, folder in zip(results, folders, strict=True):
        group = groups.setdefault((result["buffer"], result["variant"]), ([], []))
        group[0].append(result)
        group[1].append(folder)
    return list(groups.values())


def summaries(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> dict[str, Any]:
    """The summary over seeds for JSON: one `summary`, or one entry of `cells` per buffer and variant."""
    cells = [
        {"buffer": group[0]["buffer"], "variant": group[0]["variant"], **summarize(group)}
        for group, _ in group_by_seed(results, folders)
    ]
    return {"summary": summarize(results)} if len(cells) == 1 else {"cells": cells}


def seeds_summary(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> RenderableType:
    """One row per seed, then mean ± sample standard deviation."""
    table = plain_table(show_footer=True)
    summary = summarize(results)
    table.add_column("seed", plural(len(results), "seed"))
    for key, heading in SUMMARY_KEYS.items():
        mean, std = (format_percent(summary[key][statistic]) for statistic in ("mean", "std"))
        table.add_column(heading, f"{mean} ± {std}", justify="right")
    for result in results:
        table.add_row(str(result["seed"]), *(format_percent(result[key]) for key in SUMMARY_KEYS))
    return Group(run_title(results[0], with_seed=False), "", table, "", paths_written(folders))
