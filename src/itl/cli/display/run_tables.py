"""What a run, or several, reached: tables of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from itl.results.seed_groups import MeanStd

SUMMARISED = ("class_il", "task_il", "forgetting")
FILES = ("config.json", "metrics.jsonl", "result.json", "predictions.npz", "pictures.npz")
WRITTEN = (*FILES, "model", "specialists", "tensorboard")
Stages = dict[str, dict[str, float]]  # by stage: class_il and task_il, percent


def percent(value: float | None) -> str:
    """An accuracy, or a dash where there is none."""
    return "–" if value is None else f"{value:.1f}"


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def title(result: dict[str, Any], seed: bool = True) -> Text:
    """Which run this is."""
    variant = f" ({result['variant']})" if result.get("variant") else ""
    split = "" if result.get("split", "test") == "test" else f", {result['split']} split"
    line = f"{variant} on {result['stream']}, buffer {result['buffer']}{split}"
    line += f", seed {result['seed']}" if seed else ""
    return Text.assemble((str(result["method"]), "bold"), line)


def plain_table(**options: Any) -> Table:
    """The one look of all tables: a line under the heading, nothing else."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", **options)


def stage_table(rows: Sequence[tuple[str, Stages]], heading: str = "after task") -> Table:
    """A row a task (or a try): Class-IL and Task-IL that specialist, generalist and expert reached."""
    names = list(dict.fromkeys(name for _, stages in rows for name in stages if name != "expert")) or ["specialist"]
    table = plain_table()
    table.add_column(f"\n{heading}", no_wrap=True)
    for name in (*names, "expert"):
        table.add_column(f"{name}\nClass-IL", justify="right", style="bold" if name == "expert" else None)
        table.add_column("\nTask-IL", justify="right", style="dim")
    for label, stages in rows:
        cells = [percent(stages.get(n, {}).get(k)) for n in (*names, "expert") for k in ("class_il", "task_il")]
        table.add_row(label, *cells)
    return table


def result_view(result: dict[str, Any], folder: Path) -> RenderableType:
    """The end of a run: what every stage reached, the final numbers, the seconds, where it wrote what."""
    rows = [(str(task), stages) for task, stages in enumerate(result["stages"], 1)]
    final = Text.assemble(
        "Class-IL ",
        (f"{percent(result['class_il'])} %", "bold green"),
        f"   Task-IL {percent(result['task_il'])} %   forgetting {percent(result['forgetting'])}",
    )
    spent = dict(result["seconds"])
    total, evaluation = spent.pop("total"), spent.pop("evaluation", 0.0)
    digits = 1 if total < 100 else 0  # tenths of a second tell something of a short run only
    parts = ", ".join(f"{name} {value:.{digits}f}" for name, value in {**spent, "evaluation": evaluation}.items())
    return Group(title(result), "", stage_table(rows), "", final, Text(f"{total:.0f} s: {parts}"), written(folder))


def written(folder: Path) -> Text:
    """Where a run wrote what."""
    files = [name + ("/" if (folder / name).is_dir() else "") for name in WRITTEN if (folder / name).exists()]
    return Text.assemble(
        "wrote ",
        (str(folder), "bold"),
        "".join(f"\n      {line}" for line in wrap(" ".join(files), 74)),
        no_wrap=True,
        overflow="ignore",
    )


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation over seeds; null where a result has no such number."""
    out: dict[str, Any] = {"runs": len(results)}
    for name in SUMMARISED:
        over = MeanStd.of([result[name] for result in results])
        out[name] = {"mean": over.mean, "std": over.std}
    return out


Cell = tuple[list[dict[str, Any]], list[Path]]


def cells(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> list[Cell]:
    """Results that differ in their seed alone, together, each with its folder."""
    out: dict[tuple[Any, ...], Cell] = {}
    for result, folder in zip(results, folders, strict=True):
        cell = out.setdefault((result["buffer"], result["variant"]), ([], []))
        cell[0].append(result)
        cell[1].append(folder)
    return list(out.values())


def summaries(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> dict[str, Any]:
    """The summary over seeds; of several cells, one each."""
    each = [
        {"buffer": those[0]["buffer"], "variant": those[0]["variant"], **summary(those)}
        for those, _ in cells(results, folders)
    ]
    return {"summary": summary(results)} if len(each) == 1 else {"cells": each}


def summary_view(results: Sequence[dict[str, Any]], folders: Sequence[Path]) -> RenderableType:
    """A row a seed, then mean ± sample standard deviation."""
    table = plain_table(show_footer=True)
    whole = summary(results)
    table.add_column("seed", f"{len(results)} seeds")
    for name, heading in zip(SUMMARISED, ("Class-IL", "Task-IL", "forgetting"), strict=True):
        mean, std = whole[name]["mean"], whole[name]["std"]
        table.add_column(heading, f"{percent(mean)} ± {percent(std)}", justify="right")
    for result in results:
        table.add_row(str(result["seed"]), *(percent(result[name]) for name in SUMMARISED))
    places = Text("wrote " + "\n      ".join(map(str, folders)), no_wrap=True, overflow="ignore")
    return Group(title(results[0], seed=False), "", table, "", places)
