"""Published numbers beside ours, as data: what `itl table` and the report show. Nothing is left out silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from itl.results.cells import Cell, Mean, cells, settings_of
from itl.results.published import SOURCES, Published, published
from itl.results.runs import Run

MEASURES = ("class_il", "task_il")


@dataclass(frozen=True)
class Row:
    """A published cell, ours, or both. `label` tells our cells of one name apart: variant and settings."""

    stream: str
    method: str
    buffer: int | None
    published: Published | None
    ours: Cell | None
    label: str = ""

    def reported(self, measure: str) -> Mean:
        """The published mean and standard deviation of `class_il` or `task_il`."""
        if self.published is None:
            return Mean(None, None, 0)
        return Mean(getattr(self.published, measure), getattr(self.published, f"{measure}_std"), 0)

    def reached(self, measure: str) -> Mean:
        """Ours."""
        return Mean(None, None, 0) if self.ours is None else self.ours.mean(measure)

    def difference(self, measure: str) -> tuple[float | None, float | None]:
        """Ours less the published mean: in points, and in published standard deviations."""
        theirs, ours = self.reported(measure), self.reached(measure)
        if theirs.mean is None or ours.mean is None:
            return None, None
        points = ours.mean - theirs.mean
        return points, points / theirs.std if theirs.std else None


@dataclass(frozen=True)
class Section:
    """Rows that belong together: one stream, one source or one kind of run of ours."""

    title: str
    stream: str
    kind: str  # "published", "unpublished", "variant" or "validation"
    rows: list[Row]
    reference: str = ""


@dataclass(frozen=True)
class Table:
    """All sections, and what is in none of them: a line for everything that was found and not counted."""

    sections: list[Section]
    notes: list[str] = field(default_factory=list)


def build(
    runs: Sequence[Run],
    *,
    wrong: Sequence[str] = (),
    split: str = "test",
    stream: str | None = None,
    missing: bool = True,
) -> Table:
    """The table of some runs. `split` is which images they were evaluated on; `missing=False` hides published cells
    without a run of ours; `stream` shows one stream alone. Published cells meet test runs of the method itself only,
    over the stream's usual tasks.
    """
    every = [cell for cell in cells(runs) if stream in (None, cell.facts["stream"])]
    chosen = [cell for cell in every if cell.facts["split"] == split]
    plain = [cell for cell in chosen if not cell.facts.get("variant")]
    variants = [cell for cell in chosen if cell.facts.get("variant")]
    sections: list[Section] = []
    if split == "test":
        sections += _published([cell for cell in plain if not cell.recut], stream, missing)
        known = {id(row.ours) for section in sections for row in section.rows}
        sections += _ours([cell for cell in plain if id(cell) not in known], "unpublished", "not published")
    else:
        sections += _ours(plain, "validation", f"{split} split: settings were chosen on these")
    kind, words = ("variant", "variants of ours") if split == "test" else ("validation", f"{split} split, variants")
    sections += _ours(variants, kind, words)
    return Table(sections, [*wrong, *_notes(runs, every, split)])


def _published(plain: Sequence[Cell], stream: str | None, missing: bool) -> list[Section]:
    """A section for each stream and source, in the source's order."""
    out: dict[tuple[str, str], Section] = {}
    for cell in published():
        if stream not in (None, cell.stream):
            continue
        mine = [c for c in plain if cell.answers(c.facts["stream"], c.facts["method"], c.facts["buffer"])]
        if not mine and not missing:
            continue
        title, reference = SOURCES[cell.source]
        home = out.setdefault(
            (cell.stream, cell.source), Section(f"{cell.stream}, {title}", cell.stream, "published", [], reference)
        )
        labels = _labels(mine)
        rows = [
            Row(cell.stream, cell.method, cell.buffer, cell, c, label) for c, label in zip(mine, labels, strict=True)
        ]
        home.rows.extend(rows or [Row(cell.stream, cell.method, cell.buffer, cell, None)])
    return [out[key] for key in sorted(out, key=lambda key: key[0])]


def _ours(mine: Sequence[Cell], kind: str, words: str) -> list[Section]:
    """A section a stream for cells that are held against no published one."""
    out = []
    for stream in sorted({cell.facts["stream"] for cell in mine}):
        here = sorted(
            (cell for cell in mine if cell.facts["stream"] == stream),
            key=lambda c: (c.facts["buffer"], c.facts["method"], c.facts.get("variant") or "", c.own),
        )
        rows = [
            Row(stream, c.facts["method"], c.facts["buffer"], None, c, label)
            for c, label in zip(here, _labels(here), strict=True)
        ]
        out.append(Section(f"{stream}, {words}", stream, kind, rows))
    return out


def _labels(mine: Sequence[Cell]) -> list[str]:
    """What tells cells apart beside stream, method and buffer: variant, own settings, other defaults."""
    out = []
    for cell in mine:
        names = ("stream", "split", "method", "variant", "buffer")
        twins = [c for c in mine if c is not cell and all(c.facts.get(n) == cell.facts.get(n) for n in names)]
        words = [str(cell.facts["variant"])] if cell.facts.get("variant") else []
        words += [cell.own] if cell.own and (twins or not words) else []
        if any(twin.own == cell.own for twin in twins):
            flat = settings_of(cell.runs[0])
            others = [settings_of(twin.runs[0]) for twin in twins]
            odd = [name for name in flat if any(name in o and o[name] != flat[name] for o in others)]
            words += [f"{name}={flat[name]}" for name in odd]
        out.append(", ".join(words))
    return out


def _notes(runs: Sequence[Run], every: Sequence[Cell], split: str) -> list[str]:
    """A line for everything that is in no row."""
    notes = []
    for cell in every:
        for run in cell.twice:
            notes.append(
                f"{run.path} is another run of seed {run.facts['seed']}, beside {_beside(cell, run)}: not counted"
            )
    for run in runs:
        if run.result is None:
            done = sum(line.get("kind") == "expert" for line in run.lines)
            notes.append(f"{run.path} is unfinished, {done} tasks done: not counted; itl run --resume goes on with it")
    elsewhere = [cell for cell in every if cell.facts["split"] != split]
    for name in sorted({cell.facts["split"] for cell in elsewhere}):
        count = sum(cell.facts["split"] == name for cell in elsewhere)
        notes.append(f"{count} cells on the {name} split are not shown: --split {name} shows them")
    return notes


def _beside(cell: Cell, run: Run) -> Any:
    return next(other.path for other in cell.runs if other.facts["seed"] == run.facts["seed"])
