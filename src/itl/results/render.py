"""Result tables as Markdown, LaTeX, JSON, and as text tables for a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from itl.results.seed_groups import MeanStd, SeedGroup
from itl.results.table import MEASURES, Table, TableRow, TableSection

MEASURE_NAMES = {"class_il": "Class-IL", "task_il": "Task-IL"}
DASH = "–"
NOT_RUN = "not run"
DIFFERENCE = "diff."
WITHIN = ("within", "1 σ")  # heading of the mark
MARK_NOTE = (
    "diff. is our mean minus the published mean, ± half its 95 % confidence interval over our seeds (Student's t; the "
    'published mean is taken as exact). The mark "within 1 σ" is yes if our mean is no more than one published '
    "standard deviation below the published mean, or above it, in both Class-IL and Task-IL. Results of a single seed "
    "have no interval."
)


@dataclass(frozen=True)
class TextTable:
    """Rows of text. A heading is (group, name); adjacent columns of one group share its heading."""

    headings: list[tuple[str, str]]
    rows: list[list[str]]


def accuracies(section: TableSection, short: bool = False) -> TextTable:
    """Published and our accuracies with their difference; `short` omits hardware and command, for a terminal."""
    compared = section.kind == "published"
    headings = [("", "method"), ("", "|B|")]
    for measure in MEASURES:
        headings += [
            (MEASURE_NAMES[measure], name) for name in (("published", "ours", DIFFERENCE) if compared else ("ours",))
        ]
    headings += [WITHIN, ("", "seeds")] if compared else [("", "forgetting"), ("", "seeds")]
    headings += [] if short else [("", "hardware"), ("", "command")]
    return TextTable(headings, [_accuracies(row, compared, short) for row in section.rows])


def _accuracies(row: TableRow, compared: bool, short: bool) -> list[str]:
    def mean(value: MeanStd) -> str:
        return value.text().replace(" ± ", "±") if short else value.text()

    out = [name_of(row), "" if row.buffer is None else str(row.buffer)]
    for measure in MEASURES:
        ours = NOT_RUN if row.ours is None else mean(row.our_score(measure))
        out += [mean(row.published_score(measure)), ours, difference(row, measure, short)] if compared else [ours]
    if compared:
        out.append(mark(row))
    elif row.ours is not None:
        out.append(mean(row.ours.mean("forgetting")))
    out.append(DASH if row.ours is None else str(len(row.ours.seeds)))
    if not short:
        out += [DASH, DASH] if row.ours is None else [row.ours.hardware, row.ours.command]
    return out


def seconds(section: TableSection, short: bool = False) -> TextTable:
    """Mean seconds of a run by section, and the generalist's seconds as a share of the specialist's."""
    rows_with_runs = [row for row in section.rows if row.ours is not None]
    names = list(dict.fromkeys(name for row in rows_with_runs if row.ours for name in row.ours.seconds()))
    names = [name for name in names if name != "total"] + ["total"]
    rows = []
    for row in rows_with_runs:
        assert row.ours is not None
        spent, share = row.ours.seconds(), row.ours.generalist_share()
        digits = 1 if spent["total"] < 100 else 0
        out = [name_of(row), "" if row.buffer is None else str(row.buffer)]
        out += [f"{spent.get(name, 0.0):.{digits}f}" for name in names]
        out += [DASH if share is None else f"{100 * share:.1f} %", str(len(row.ours.seeds))]
        rows.append(out if short else [*out, row.ours.hardware])
    headings = [
        ("", "method"),
        ("", "|B|"),
        *(("seconds", name) for name in names),
        ("tg + pd", "of spec."),
        ("", "seeds"),
    ]
    return TextTable(headings if short else [*headings, ("", "hardware")], rows)


def name_of(row: TableRow) -> str:
    """The method with its note and label."""
    note = f" ({row.published.note})" if row.published is not None and row.published.note.startswith("buffer") else ""
    return f"{row.method}{note}" + (f" [{row.label}]" if row.label else "")


def difference(row: TableRow, measure: str, short: bool = False) -> str:
    """`+1.26 ± 0.80, +2.0 σ`: our mean minus the published mean in points, with half the 95 % interval over our seeds.

    The last number is the difference in published standard deviations; `short` omits it.
    """
    points, deviations = row.difference(measure)
    if points is None:
        return DASH
    interval = row.our_score(measure).interval
    text = f"{points:+.2f}" + ("" if interval is None else f" ± {interval:.2f}")
    if short:
        return text.replace(" ± ", "±")
    return text + ("" if deviations is None else f", {deviations:+.1f} σ")


def mark(row: TableRow) -> str:
    """Whether our result is within one published standard deviation, or above: yes, no, or a dash if undefined."""
    matches = row.matches_published
    if matches is None or row.ours is None:
        return DASH
    return ("yes" if matches else "no") + (" (1 seed)" if len(row.ours.seeds) == 1 else "")


def commands(section: TableSection) -> list[tuple[str, str]]:
    """(hardware, command) of each group of our runs, without repetitions."""
    groups = [row.ours for row in section.rows if row.ours is not None]
    return list(dict.fromkeys((group.hardware, group.command) for group in groups))


# ------------------------------------------------------------------ file formats


def markdown(table: Table, with_seconds: bool = False) -> str:
    """The table in Markdown."""
    parts = []
    for section in table.sections:
        parts.append(f"### {section.title}\n")
        if section.reference:
            parts.append(f"Published: {section.reference}.\n")
        parts.append(_markdown(accuracies(section)))
        if with_seconds and any(row.ours for row in section.rows):
            parts.append(_markdown(seconds(section)))
    if any(section.kind == "published" for section in table.sections):
        parts.append(f"{MARK_NOTE}\n")
    parts += [f"- {note}" for note in table.notes]
    return "\n".join(parts).rstrip() + "\n"


def _markdown(grid: TextTable) -> str:
    def line(words: Sequence[str]) -> str:
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |\n"

    heads = [f"{group} {name}".strip() for group, name in grid.headings]
    rows = [[f"`{word}`" if word.startswith("itl run") else word for word in row] for row in grid.rows]
    return line(heads) + "|" + "---|" * len(heads) + "\n" + "".join(map(line, rows))


def latex(table: Table, with_seconds: bool = False) -> str:
    """The table in LaTeX for `booktabs`, with the commands that repeat it as comments."""
    parts = ["% needs \\usepackage{booktabs}"]
    for section in table.sections:
        parts.append(f"% {section.title}" + (f"; {section.reference}" if section.reference else ""))
        grids = [accuracies(section, short=True)]
        if with_seconds and any(row.ours for row in section.rows):
            grids.append(seconds(section, short=True))
        parts += [_latex(grid) for grid in grids]
        parts += [f"% {where}: {command}" for where, command in commands(section)]
    if any(section.kind == "published" for section in table.sections):
        parts.append(f"% {MARK_NOTE}")
    parts += [f"% {note}" for note in table.notes]
    return "\n".join(parts) + "\n"


def _latex(grid: TextTable) -> str:
    heads = [_escape(f"{group} {name}".strip()) for group, name in grid.headings]
    lines = [" & ".join(heads) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_escape, row)) + r" \\" for row in grid.rows]
    spec = "l" + "r" * (len(heads) - 1)
    return "\n".join([rf"\begin{{tabular}}{{{spec}}}", r"\toprule", *lines, r"\bottomrule", r"\end{tabular}"])


def _escape(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    for plain, tex in {"±": r"$\pm$", "σ": r"$\sigma$", "|B|": r"$|B|$", "–": "--", "−": "$-$"}.items():
        text = text.replace(plain, tex)
    return re.sub(r"(?<![\w$])([+-]\d+(?:\.\d+)?)", r"$\1$", text)


def as_json(table: Table) -> str:
    """The table as one JSON object with unrounded numbers."""
    sections = [
        {
            "title": section.title,
            "stream": section.stream,
            "kind": section.kind,
            "reference": section.reference or None,
            "rows": [_json(row) for row in section.rows],
        }
        for section in table.sections
    ]
    return json.dumps({"sections": sections, "notes": table.notes}, indent=1, ensure_ascii=False) + "\n"


def _json(row: TableRow) -> dict[str, Any]:
    def pair(value: MeanStd) -> dict[str, float | None]:
        return {"mean": value.mean, "std": value.std}

    out: dict[str, Any] = {"method": row.method, "buffer": row.buffer, "label": row.label or None}
    out["published"] = None
    if row.published is not None:
        out["published"] = {measure: pair(row.published_score(measure)) for measure in MEASURES}
        out["published"] |= {"source": row.published.source, "note": row.published.note or None}
    out["ours"] = None if row.ours is None else _group_json(row.ours)
    out["difference"] = {}
    for measure in MEASURES:
        points, deviations = row.difference(measure)
        interval = None if points is None else row.our_score(measure).interval
        out["difference"][measure] = {"points": points, "interval": interval, "published_stds": deviations}
    out["matches_published"] = row.matches_published
    return out


def _group_json(group: SeedGroup) -> dict[str, Any]:
    numbers = (*MEASURES, "forgetting", "average_incremental")
    return {
        **{name: {"mean": group.mean(name).mean, "std": group.mean(name).std} for name in numbers},
        "variant": group.metadata.get("variant"),
        "split": group.metadata["split"],
        "seeds": group.seeds,
        "settings": group.runs[0].config.get("settings") or {},
        "seconds": group.seconds(),
        "generalist_share": group.generalist_share(),
        "hardware": group.hardware,
        "command": group.command,
        "folders": [str(run.path) for run in group.runs],
    }
