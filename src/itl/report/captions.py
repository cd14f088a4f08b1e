"""The text of a report: title, key numbers, summary, settings. All numbers equal those of `itl table`."""

from __future__ import annotations

import statistics

from itl.report.run_selection import ReportData, ReportGroup, ReportRun
from itl.report.selectors import preference
from itl.results.render import difference, mark
from itl.results.seed_groups import SeedGroup, run_settings
from itl.settings import value_text

KeyNumber = tuple[str, str, str]  # name, value, explanation


def title(report: ReportData) -> str:
    """The report's title: method, stream and buffer."""
    metadata = [report_run.metadata for report_run in report.runs]
    streams, methods, buffers = (
        list(dict.fromkeys(fields.get(name) for fields in metadata)) for name in ("stream", "method", "buffer")
    )
    method = str(methods[0]) if len(methods) == 1 else f"{len(methods)} methods"
    stream = str(streams[0]) if len(streams) == 1 else f"{len(streams)} streams"
    memory = f", {buffers[0]} images in memory" if len(buffers) == 1 else ""
    return f"{method} on {stream}{memory}"


def subtitle(report: ReportData) -> str:
    """The numbers of runs and of configurations (runs that differ only in their seed), the split and the hardware."""
    groups = [report_group.seed_group for report_group in report.groups]
    runs = len(report.runs)
    words = ["1 run" if runs == 1 else f"{runs} runs"]
    if runs == 1:
        words[0] += f", seed {report.runs[0].metadata['seed']}"
    if len(groups) > 1:
        words.append(f"{len(groups)} configurations")
    if report.unfinished:
        words.append(f"{len(report.unfinished)} interrupted")
    splits = {report_run.metadata.get("split", "test") for report_run in report.runs}
    words += [f"{split} split" for split in sorted(splits) if split != "test"]
    words += list(dict.fromkeys(group.hardware for group in groups))
    return " · ".join(words)


def cards(group: ReportGroup) -> list[KeyNumber]:
    """The four key numbers: Class-IL, Task-IL, forgetting, seconds."""
    seed_group, row = group.seed_group, group.row
    seeds = f"over {len(seed_group.seeds)} seeds" if len(seed_group.seeds) > 1 else ""
    out = []
    for name, heading, explanation in (
        ("class_il", "Class-IL", "correct among all classes"),
        ("task_il", "Task-IL", "correct given the task"),
    ):
        published = row.published_score(name)
        note = explanation if published.mean is None else f"published {published.text()} ({difference(row, name)})"
        out.append((heading, f"{seed_group.mean(name).text()} %", note))
    forgetting = seed_group.mean("forgetting")
    out.append(
        (
            "Forgetting",
            forgetting.text(),
            "points lost on earlier tasks" if forgetting.mean is not None else "one task only",
        )
    )
    spent = seed_group.seconds()["total"]
    out.append(
        (
            "Seconds",
            f"{spent:.0f}" if spent >= 100 else f"{spent:.1f}",
            f"per run, mean {seeds}" if seeds else seed_group.hardware,
        )
    )
    return out


def summary(group: ReportGroup) -> list[str]:
    """A summary in sentences; every number is from the record."""
    seed_group = group.seed_group
    tasks = len(seed_group.results[0]["class_il_matrix"])
    classes = len(seed_group.results[0].get("class_names") or [])
    among = f" among {classes} classes" if classes else ""
    out = [
        f"After {'the only task' if tasks == 1 else f'the last of {tasks} tasks'} the network classifies "
        f"{seed_group.mean('class_il').text()} % of the test images correctly{among} (Class-IL), and "
        f"{seed_group.mean('task_il').text()} % if the task of each image is given (Task-IL)."
    ]
    scores = _stages(seed_group)
    if len(scores) > 1:
        parts = ", ".join(f"{_stage_name(name)} {value:.1f} %" for name, value in scores.items())
        out.append(f"Class-IL right after each task, averaged over the tasks: {parts}.")
    last = [statistics.fmean(r["class_il_matrix"][-1][k] for r in seed_group.results) for k in range(tasks)]
    if tasks > 1:
        worst, best = min(range(tasks), key=lambda k: last[k]), max(range(tasks), key=lambda k: last[k])
        out.append(
            f"At the end it is best on task {best + 1} ({last[best]:.1f} %) and worst on task {worst + 1} "
            f"({last[worst]:.1f} %); on earlier tasks it lost {seed_group.mean('forgetting').text()} points against "
            f"its best (forgetting)."
        )
    share = seed_group.generalist_share()
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
    for group in sorted(report.groups, key=preference):
        seed_group, row = group.seed_group, group.row
        spent = seed_group.seconds()["total"]
        columns = {"run": group.name}
        single = " (1 seed)" if len(seed_group.seeds) == 1 else ""
        for name, heading in (("class_il", "Class-IL"), ("task_il", "Task-IL")):
            columns[heading] = seed_group.mean(name).text() + single
            if any(other.row.published is not None for other in report.groups):
                published = row.published_score(name)
                columns[f"{heading} published"] = published.text() + (
                    "" if published.mean is None else f" ({difference(row, name)})"
                )
        if any(other.row.published is not None for other in report.groups):
            columns["within 1 σ"] = mark(row)
        columns["average"] = seed_group.mean("average_incremental").text()
        columns["forgetting"] = seed_group.mean("forgetting").text()
        columns["seconds"] = f"{spent:.0f}" if spent >= 100 else f"{spent:.1f}"
        columns["seeds"] = (
            ", ".join(map(str, seed_group.seeds)) if len(seed_group.seeds) < 8 else str(len(seed_group.seeds))
        )
        out.append(columns)
    return out


def settings(report: ReportData) -> list[tuple[str, list[str]]]:
    """Every setting by name, with its value in each group of runs."""
    by_group = [run_settings(group.seed_group.runs[0]) for group in report.groups] or [
        run_settings(report_run.run) for report_run in report.runs[:1]
    ]
    names = list(dict.fromkeys(name for values in by_group for name in values))
    return [(name, [value_text(values.get(name)) for values in by_group]) for name in names]


def commands(report: ReportData) -> list[str]:
    """The commands that repeat the runs."""
    return [group.seed_group.command for group in report.groups] + [
        str(report_run.run.config.get("command", "")) for report_run in report.unfinished
    ]


def _stages(seed_group: SeedGroup) -> dict[str, float]:
    """Class-IL at the end of each stage, averaged over tasks and runs."""
    scores_by_stage: dict[str, list[float]] = {}
    for result in seed_group.results:
        for task in result.get("stages") or []:
            for stage, scores in task.items():
                scores_by_stage.setdefault(stage, []).append(scores["class_il"])
    return {stage: statistics.fmean(values) for stage, values in scores_by_stage.items()}


def _stage_name(stage: str) -> str:
    return {"specialist": "the specialist", "tangent": "the tangent generalist", "expert": "the expert"}.get(
        stage, f"after {stage} fine-tuning"
    )
