"""A report's words: the headline's numbers, what happened in sentences, the settings. All numbers are `itl table`'s."""

from __future__ import annotations

import json
import statistics
from typing import Any

from itl.report.run_selection import ReportData, ReportGroup, ReportRun
from itl.results.render import difference
from itl.results.seed_groups import SeedGroup, run_settings

Fact = tuple[str, str, str]  # name, value, small print


def title(report: ReportData) -> str:
    """What the report is about."""
    metadata = [report_run.metadata for report_run in report.runs]
    streams, methods, buffers = (
        list(dict.fromkeys(one.get(n) for one in metadata)) for n in ("stream", "method", "buffer")
    )
    method = str(methods[0]) if len(methods) == 1 else f"{len(methods)} methods"
    stream = str(streams[0]) if len(streams) == 1 else f"{len(streams)} streams"
    memory = f", {buffers[0]} images in memory" if len(buffers) == 1 else ""
    return f"{method} on {stream}{memory}"


def subtitle(report: ReportData) -> str:
    """How many runs, of which seeds, on what."""
    done = [group.seed_group for group in report.groups]
    runs = len(report.runs)
    words = ["1 run" if runs == 1 else f"{runs} runs"]
    if runs == 1:
        words[0] += f", seed {report.runs[0].metadata['seed']}"
    if len(done) > 1:
        words.append(f"{len(done)} cells")
    if report.unfinished:
        words.append(f"{len(report.unfinished)} cut short")
    splits = {report_run.metadata.get("split", "test") for report_run in report.runs}
    words += [f"{split} split" for split in sorted(splits) if split != "test"]
    words += list(dict.fromkeys(cell.hardware for cell in done))
    return " · ".join(words)


def cards(group: ReportGroup) -> list[Fact]:
    """The four numbers that count."""
    cell, row = group.seed_group, group.row
    seeds = f"over {len(cell.seeds)} seeds" if len(cell.seeds) > 1 else ""
    out = []
    for name, heading, report in (
        ("class_il", "Class-IL", "right among all classes"),
        ("task_il", "Task-IL", "right when told the task"),
    ):
        theirs = row.published_score(name)
        small = report if theirs.mean is None else f"published {theirs.text()} ({difference(row, name)})"
        out.append((heading, f"{cell.mean(name).text()} %", small))
    forgot = cell.mean("forgetting")
    out.append(
        ("Forgetting", forgot.text(), "points lost on earlier tasks" if forgot.mean is not None else "one task only")
    )
    spent = cell.seconds()["total"]
    out.append(
        (
            "Seconds",
            f"{spent:.0f}" if spent >= 100 else f"{spent:.1f}",
            f"a run, mean {seeds}" if seeds else cell.hardware,
        )
    )
    return out


def story(group: ReportGroup) -> list[str]:
    """What happened, in sentences; every number is one of the record."""
    cell = group.seed_group
    tasks = len(cell.results[0]["class_il_matrix"])
    classes = len(cell.results[0].get("class_names") or [])
    among = f" among {classes} classes" if classes else ""
    out = [
        f"After {'the only task' if tasks == 1 else f'the last of {tasks} tasks'} the network names "
        f"{cell.mean('class_il').text()} % of the test images right{among} (Class-IL), and "
        f"{cell.mean('task_il').text()} % when it is told which task an image is from (Task-IL)."
    ]
    reached = _stages(cell)
    if len(reached) > 1:
        parts = ", ".join(f"{_called(name)} {value:.1f} %" for name, value in reached.items())
        out.append(f"Just after each task, averaged over the tasks, Class-IL was: {parts}.")
    last = [statistics.fmean(r["class_il_matrix"][-1][k] for r in cell.results) for k in range(tasks)]
    if tasks > 1:
        worst, best = min(range(tasks), key=lambda k: last[k]), max(range(tasks), key=lambda k: last[k])
        out.append(
            f"In the end it does best on task {best + 1} ({last[best]:.1f} %) and worst on task {worst + 1} "
            f"({last[worst]:.1f} %); on earlier tasks it lost {cell.mean('forgetting').text()} points since its best "
            f"(forgetting)."
        )
    share = cell.generalist_share()
    if share:
        out.append(f"Tangent learning and projection took {100 * share:.1f} % of the specialist's time.")
    return out


def unfinished(report_run: ReportRun) -> str:
    """How far a run came that was cut short."""
    lines = report_run.run.lines
    if not lines:
        return f"{report_run.name}: cut short before anything was measured."
    last = lines[-1]
    done = sum(line.get("kind") == "expert" for line in lines)
    where = f"task {last['task']}" + (f", {last['stage']}, epoch {last['epoch']}" if last.get("stage") else "")
    return (
        f"{report_run.name}: cut short at {where}, {done} task{'' if done == 1 else 's'} done. Its figures end there."
    )


def table(report: ReportData) -> list[dict[str, str]]:
    """A row for each cell: what `itl table` says of it."""
    out = []
    for group in report.groups:
        cell, row = group.seed_group, group.row
        spent = cell.seconds()["total"]
        one = {"cell": group.name}
        for name, heading in (("class_il", "Class-IL"), ("task_il", "Task-IL")):
            one[heading] = cell.mean(name).text()
            if any(g.row.published is not None for g in report.groups):
                theirs = row.published_score(name)
                one[f"{heading} published"] = theirs.text() + (
                    "" if theirs.mean is None else f" ({difference(row, name)})"
                )
        one["forgetting"] = cell.mean("forgetting").text()
        one["seconds"] = f"{spent:.0f}" if spent >= 100 else f"{spent:.1f}"
        one["seeds"] = ", ".join(map(str, cell.seeds)) if len(cell.seeds) < 8 else str(len(cell.seeds))
        out.append(one)
    return out


def settings(report: ReportData) -> list[tuple[str, list[str]]]:
    """Every setting by name, with its value in each cell."""
    every = [run_settings(group.seed_group.runs[0]) for group in report.groups] or [
        run_settings(s.run) for s in report.runs[:1]
    ]
    names = list(dict.fromkeys(name for one in every for name in one))
    return [(name, [_value(one.get(name)) for one in every]) for name in names]


def commands(report: ReportData) -> list[str]:
    """What repeats the runs."""
    return [group.seed_group.command for group in report.groups] + [
        str(report_run.run.config.get("command", "")) for report_run in report.unfinished
    ]


def _stages(cell: SeedGroup) -> dict[str, float]:
    """Class-IL that each stage reached, averaged over tasks and runs."""
    every: dict[str, list[float]] = {}
    for result in cell.results:
        for task in result.get("stages") or []:
            for stage, scores in task.items():
                every.setdefault(stage, []).append(scores["class_il"])
    return {stage: statistics.fmean(values) for stage, values in every.items()}


def _called(stage: str) -> str:
    return {"specialist": "the specialist", "tangent": "the tangent generalist", "expert": "the expert"}.get(
        stage, f"after {stage} fine-tuning"
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
