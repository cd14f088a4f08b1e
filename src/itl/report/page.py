"""The report as one HTML file that includes styles, charting library, data and images; nothing is downloaded."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files

from itl.atomic import write_text_atomic
from itl.errors import UserError
from itl.report import captions
from itl.report.chart import compact_json
from itl.report.run_selection import ReportData, report_data
from itl.report.selectors import preference
from itl.report.tabs import PageContents, contents
from itl.results import Run

MAX_SETTINGS_COLUMNS = 12  # groups whose settings fit side by side
LIBRARY = "plotly/plotly-cartesian.min.js.gz"  # its smallest bundle with heat maps; the page unpacks it
SCRIPTS = ("selection.js", "charts.js", "page.js")
# Columns whose means can be computed again for a selection of seeds.
COLUMN_MEASURES = {
    "Class-IL": "class_il",
    "Task-IL": "task_il",
    "average": "average_incremental",
    "forgetting": "forgetting",
    "seconds": "seconds",
}


def write_report(runs: Sequence[Run], path: str | os.PathLike[str], data: str | None = None) -> None:
    """Write the report of some runs.

    Args:
        runs: The runs, finished or not.
        path: The HTML file.
        data: The folder of the datasets, for images that a record does not include.

    Raises:
        UserError: The file cannot be written.
    """
    write_page(page(report_data(runs), data), path)


def write_page(html: str, path: str | os.PathLike[str]) -> None:
    """Write the file of a page."""
    try:
        write_text_atomic(path, html)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --out") from None


def page(report: ReportData, data: str | None = None) -> str:
    """The HTML of the page about some runs."""
    page_contents = contents(report, data)
    return render(captions.title(report), captions.subtitle(report), _overview(report, page_contents), page_contents)


def render(title: str, subtitle: str, overview: str, page_contents: PageContents) -> str:
    """The HTML of a page; `overview` is the HTML of its first tab."""
    package = files("itl.report")
    parts = {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "style": package.joinpath("page.css").read_text(encoding="utf-8"),
        "tabs": _tabs(page_contents),
        "overview": overview,
        "payload": _payload(page_contents),
        "library": base64.b64encode(package.joinpath(LIBRARY).read_bytes()).decode(),
        "script": "\n".join(package.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    html = package.joinpath("page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"<!--{name}-->", text)
    return html


def _payload(page_contents: PageContents) -> str:
    """The data of the page as JSON that is safe inside HTML."""
    tabs = [{"name": tab.name, "views": [asdict(view) for view in tab.views]} for tab in page_contents.tabs]
    payload = {
        "tabs": compact_json(tabs),
        "charts": _object(page_contents.charts),
        "lead": compact_json([asdict(view) for view in page_contents.lead]),
        "first": compact_json(page_contents.first),
        "pool": compact_json(page_contents.pool.lists),
        "selection": compact_json(page_contents.selection),
    }
    return _object(payload).replace("<", "\\u003c")


def _object(parts: Mapping[str, str]) -> str:
    """A JSON object of parts that are JSON already."""
    return "{" + ",".join(f"{compact_json(name)}:{text}" for name, text in parts.items()) + "}"


def _tabs(page_contents: PageContents) -> str:
    names = ["Overview", *(tab.name for tab in page_contents.tabs)]
    return "\n".join(
        f'<button role="tab" id="tab-{k}" aria-controls="panel-{k}" aria-selected="{"true" if k == 0 else "false"}"'
        f"{'' if k == 0 else ' tabindex=-1'}>{escape(name)}</button>"
        for k, name in enumerate(names)
    )


def _overview(report: ReportData, page_contents: PageContents) -> str:
    """The first tab, which works without JavaScript: key numbers, summary, settings."""
    parts = []
    if len(report.groups) == 1:
        group = report.groups[0]
        cards = "".join(
            f'<div class="card"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(small)}</small></dd></div>'
            for name, value, small in captions.cards(group)
        )
        parts.append(f'<dl class="cards">{cards}</dl><div id="lead"></div>')
        parts.append("<h2>Summary</h2>" + "".join(f"<p>{escape(line)}</p>" for line in captions.summary(group)))
    elif report.groups:
        parts.append("<h2>Comparison</h2>" + _table(report))
        parts.append(COLUMNS)
        parts.append('<div id="lead"></div>')
    else:
        parts.append('<div id="lead"></div>')
    for report_run in report.unfinished:
        parts.append(f'<p class="note">{escape(captions.unfinished(report_run))}</p>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in page_contents.notes]
    parts.append("<h2>How to read the numbers</h2>" + READING)
    parts.append(_settings(report))
    lines = "\n".join(captions.commands(report))
    parts.append(f"<details><summary>Commands that repeat the runs</summary><pre>{escape(lines)}</pre></details>")
    return "\n".join(parts)


READING = """<p><b>Class-IL</b>: accuracy among all classes learned so far. <b>Task-IL</b>: accuracy among the classes
of the image's task, which is given. <b>Forgetting</b>: how many points an earlier task lost compared with its best, on
average. All numbers are percent; chance level is low in Class-IL and high in Task-IL.</p>"""


COLUMNS = """<p>Mean ± sample standard deviation over seeds, in percent, after the last task; <b>average</b>: of the
accuracies after each task. The best value of a column among comparable runs (same stream, split and memory size) is
<b class="best">marked</b>. A difference in σ is in published standard deviations; it needs several seeds on both sides.
Click on a heading to sort.</p>"""


def _table(report: ReportData) -> str:
    """The comparison of all groups as an HTML table; on a narrow screen each row becomes a card."""
    rows = captions.table(report)
    first, *others = rows[0]
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in rows[0])
    lines = []
    for group, row in zip(sorted(report.groups, key=preference), rows, strict=True):
        cells = "".join(
            f'<td data-name="{escape(name)}" data-measure="{COLUMN_MEASURES.get(name, "")}">{_broken(row[name])}</td>'
            for name in others
        )
        lines.append(f'<tr data-group="{group.key}"><th scope="row">{escape(row[first])}</th>{cells}</tr>')
    table = f'<table class="cells"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<div class="scroll wide-table" tabindex="0">{table}</div>'


def _broken(text: str) -> str:
    """The text of a cell, with the part in brackets on a second line."""
    before, bracket, after = text.partition(" (")
    return escape(before) + (f" <br><small>({escape(after)}</small>" if bracket else "")


def _settings(report: ReportData) -> str:
    """All settings: once where the groups agree, by group where they differ."""
    rows = captions.settings(report)
    common = [(name, values[0]) for name, values in rows if len(set(values)) == 1]
    different = [(name, values) for name, values in rows if len(set(values)) > 1]
    parts = []
    if different:
        items = []
        for name, values in different:
            where = ", ".join(
                f"{escape(value)} <small>({escape(group.name)})</small>"
                for value, group in list(zip(values, report.groups, strict=True))[:MAX_SETTINGS_COLUMNS]
            )
            items.append(f"<dt>{escape(name)}</dt><dd>{where}</dd>")
        parts.append(f'<h3>Different</h3><dl class="settings">{"".join(items)}</dl><h3>Common</h3>')
    items = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in common]
    parts.append(f'<dl class="settings">{"".join(items)}</dl>')
    return f"<details><summary>Settings</summary>{''.join(parts)}</details>"
