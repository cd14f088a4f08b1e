"""The text of a report: title, key numbers, summary, settings. All numbers equal those of `itl table`."""

from __future__ import annotations

import json
import statistics
from typing import Any

from itl.report.run_selection import ReportData, ReportGroup, ReportRun
from itl.results.render import difference
from itl.results.seed_groups import SeedGroup, run_settings

KeyNumber = tuple[str, str, str]  # name, value, explanation


def title(report: ReportData) -> str:
    """The report's title: method, stream and buffer."""
    metadata = [report_run.metadata for report_run in report.runs]
    streams, methods, buffers = (
        list(dict.fromkeys(one.get(n) for one in metadata)) for n in ("stream", "method", "buffer")
    )
    method = str(methods[0]) if len(methods) == 1 else f"{len(methods)} methods"
    stream = str(streams[0]) if len(streams) == 1 else f"{len(streams)} streams"
    memory = f", {buffers[0]} images in memory" if len(buffers) == 1 else ""
    return f"{method} on {stream}{memory}"


def subtitle(report: ReportData) -> str:
    """The number of runs, their split and hardware."""
    done = [group.seed_group for group in report.groups]
    runs = len(report.runs)
    words = ["1 run" if runs == 1 else f"{runs} runs"]
    if runs == 1:
        words[0] += f", seed {report.runs[0].metadata['seed']}"
    if len(done) > 1:
        words.append(f"{len(done)} cells")
    if report.unfinished:
        words.append(f"{len(report.unfinished)} interrupted")
    splits = {report_run.metadata.get("split", "test") for report_run in report.runs}
    words += [f"{split} split" for split in sorted(splits) if split != "test"]
    words += list(dict.fromkeys(cell.hardware for cell in done))
    return " · ".join(words)


def cards(group: ReportGroup) -> list[KeyNumber]:
    """The four key numbers: Class-IL, Task-IL, forgetting, seconds."""
    cell, row = group.seed_group, group.row
    seeds = f"over {len(cell.seeds)} seeds" if len(cell.seeds) > 1 else ""
    out = []
    for name, heading, report in (
        ("class_il", "Class-IL", "correct among all classes"),
        ("task_il", "Task-IL", "correct given the task"),
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
            f"per run, mean {seeds}" if seeds else cell.hardware,
        )
    )
    return out


def summary(group: ReportGroup) -> list[str]:
    """A summary in sentences; every number is from the record."""
    cell = group.seed_group
    tasks = len(cell.results[0]["class_il_matrix"])
    classes = len(cell.results[0].get("class_names") or [])
    among = f" among {classes} classes" if classes else ""
    out = [
        f"After {'the only task' if tasks == 1 else f'the last of {tasks} tasks'} the network classifies "
        f"{cell.mean('class_il').text()} % of the test images correctly{among} (Class-IL), and "
        f"{cell.mean('task_il').text()} % if the task of each image is given (Task-IL)."
    ]
    scores = _stages(cell)
    if len(scores) > 1:
        parts = ", ".join(f"{_stage_name(name)} {value:.1f} %" for name, value in scores.items())
        out.append(f"Class-IL right after each task, averaged over the tasks: {parts}.")
    last = [statistics.fmean(r["class_il_matrix"][-1][k] for r in cell.results) for k in range(tasks)]
    if tasks > 1:
        worst, best = min(range(tasks), key=lambda k: last[k]), max(range(tasks), key=lambda k: last[k])
        out.append(
            f"At the end it is best on task {best + 1} ({last[best]:.1f} %) and worst on task {worst + 1} "
            f"({last[worst]:.1f} %); on earlier tasks it lost {cell.mean('forgetting').text()} points against "
            f"its best (forgetting)."
        )
    share = cell.generalist_share()
    if share:
        out.append(f"Tangent learning and projection took {100 * share:.1f} % of the specialist's time.")
    return out


def unfinished(report_run: ReportRun) -> str:
    """How far an interrupted run came."""
    lines = report_run.run.lines
    if not lines:
        return f"{report_run.name}: interrupted before the first measurement."
    last = lines[-1]
    done = sum(line.get("kind") == "expert" for line in lines)
    where = f"task {last['task']}" + (f", {last['stage']}, epoch {last['epoch']}" if last.get("stage") else "")
    return (
        f"{report_run.name}: interrupted at {where}, {done} task{'' if done == 1 else 's'} done. Its figures end there."
    )


def table(report: ReportData) -> list[dict[str, str]]:
    """One row per group of runs, with the numbers of `itl table`."""
    out = []
    for group in report.groups:
        cell, row = group.seed_group, group.row
        spent = cell.seconds()["total"]
        one = {"run": group.name}
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
    """Every setting by name, with its value in each group of runs."""
    every = [run_settings(group.seed_group.runs[0]) for group in report.groups] or [
        run_settings(s.run) for s in report.runs[:1]
    ]
    names = list(dict.fromkeys(name for one in every for name in one))
    return [(name, [_value_text(one.get(name)) for one in every]) for name in names]


def commands(report: ReportData) -> list[str]:
    """The commands that repeat the runs."""
    return [group.seed_group.command for group in report.groups] + [
        str(report_run.run.config.get("command", "")) for report_run in report.unfinished
    ]


def _stages(cell: SeedGroup) -> dict[str, float]:
    """Class-IL at the end of each stage, averaged over tasks and runs."""
    every: dict[str, list[float]] = {}
    for result in cell.results:
        for task in result.get("stages") or []:
            for stage, scores in task.items():
                every.setdefault(stage, []).append(scores["class_il"])
    return {stage: statistics.fmean(values) for stage, values in every.items()}


def _stage_name(stage: str) -> str:
    return {"specialist": "the specialist", "tangent": "the tangent generalist", "expert": "the expert"}.get(
        stage, f"after {stage} fine-tuning"
    )


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
