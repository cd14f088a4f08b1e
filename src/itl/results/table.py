"""Published and our numbers side by side, as data for `itl table` and the report. Every omission is noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from itl.results.published import SOURCES, PublishedResult, published
from itl.results.runs import Run
from itl.results.seed_groups import MeanStd, SeedGroup, group_by_seed, run_settings

MEASURES = ("class_il", "task_il")


@dataclass(frozen=True)
class TableRow:
    """A published result, a group of our runs, or both. `label` (variant and settings) distinguishes groups of ours."""

    stream: str
    method: str
    buffer: int | None
    published: PublishedResult | None
    ours: SeedGroup | None
    label: str = ""

    def published_score(self, measure: str) -> MeanStd:
        """The published mean and standard deviation of `class_il` or `task_il`."""
        if self.published is None:
            return MeanStd(None, None, 0)
        return MeanStd(getattr(self.published, measure), getattr(self.published, f"{measure}_std"), 0)

    def our_score(self, measure: str) -> MeanStd:
        """Our mean and standard deviation of `class_il` or `task_il`."""
        return MeanStd(None, None, 0) if self.ours is None else self.ours.mean(measure)

    def difference(self, measure: str) -> tuple[float | None, float | None]:
        """Our mean minus the published mean: in points, and in published standard deviations."""
        theirs, ours = self.published_score(measure), self.our_score(measure)
        if theirs.mean is None or ours.mean is None:
            return None, None
        points = ours.mean - theirs.mean
        return points, points / theirs.std if theirs.std else None


@dataclass(frozen=True)
class TableSection:
    """Rows of one stream and one source, or of one kind of run."""

    title: str
    stream: str
    kind: str  # "published", "unpublished", "variant" or "validation"
    rows: list[TableRow]
    reference: str = ""


@dataclass(frozen=True)
class Table:
    """All sections, and one note for everything that was found and is in no section."""

    sections: list[TableSection]
    notes: list[str] = field(default_factory=list)


def build(
    runs: Sequence[Run],
    *,
    damaged: Sequence[str] = (),
    split: str = "test",
    stream: str | None = None,
    missing: bool = True,
) -> Table:
    """Build the table of some runs.

    Published results are compared only with test runs of the method itself over the stream's usual tasks, not with
    variants.

    Args:
        runs: The runs, finished or not.
        damaged: Lines about runs that could not be read, for the notes.
        split: Which images the runs were evaluated on: `test` or `validation`.
        stream: Show this stream only.
        missing: Whether to include published results without a run of ours.
    """
    groups = [cell for cell in group_by_seed(runs) if stream in (None, cell.metadata["stream"])]
    chosen = [cell for cell in groups if cell.metadata["split"] == split]
    plain = [cell for cell in chosen if not cell.metadata.get("variant")]
    variants = [cell for cell in chosen if cell.metadata.get("variant")]
    sections: list[TableSection] = []
    if split == "test":
        sections += _published([cell for cell in plain if not cell.custom_tasks], stream, missing)
        known = {id(row.ours) for section in sections for row in section.rows}
        sections += _ours([cell for cell in plain if id(cell) not in known], "unpublished", "not published")
    else:
        sections += _ours(plain, "validation", f"{split} split, used to choose settings")
    kind, words = ("variant", "variants of ours") if split == "test" else ("validation", f"{split} split, variants")
    sections += _ours(variants, kind, words)
    return Table(sections, [*damaged, *_notes(runs, groups, split)])


def _published(plain: Sequence[SeedGroup], stream: str | None, missing: bool) -> list[TableSection]:
    """One section per stream and source, in the order of the source."""
    out: dict[tuple[str, str], TableSection] = {}
    for cell in published():
        if stream not in (None, cell.stream):
            continue
        mine = [c for c in plain if cell.matches(c.metadata["stream"], c.metadata["method"], c.metadata["buffer"])]
        if not mine and not missing:
            continue
        title, reference = SOURCES[cell.source]
        home = out.setdefault(
            (cell.stream, cell.source), TableSection(f"{cell.stream}, {title}", cell.stream, "published", [], reference)
        )
        labels = _labels(mine)
        rows = [
            TableRow(cell.stream, cell.method, cell.buffer, cell, c, label)
            for c, label in zip(mine, labels, strict=True)
        ]
        home.rows.extend(rows or [TableRow(cell.stream, cell.method, cell.buffer, cell, None)])
    return [out[key] for key in sorted(out, key=lambda key: key[0])]


def _ours(mine: Sequence[SeedGroup], kind: str, words: str) -> list[TableSection]:
    """One section per stream for groups of runs without a published counterpart."""
    out = []
    for stream in sorted({cell.metadata["stream"] for cell in mine}):
        here = sorted(
            (cell for cell in mine if cell.metadata["stream"] == stream),
            key=lambda c: (
                c.metadata["buffer"],
                c.metadata["method"],
                c.metadata.get("variant") or "",
                c.user_settings,
            ),
        )
        rows = [
            TableRow(stream, c.metadata["method"], c.metadata["buffer"], None, c, label)
            for c, label in zip(here, _labels(here), strict=True)
        ]
        out.append(TableSection(f"{stream}, {words}", stream, kind, rows))
    return out


def _labels(mine: Sequence[SeedGroup]) -> list[str]:
    """What distinguishes groups of one stream, method and buffer: variant, the user's settings, other defaults."""
    out = []
    for cell in mine:
        names = ("stream", "split", "method", "variant", "buffer")
        similar = [c for c in mine if c is not cell and all(c.metadata.get(n) == cell.metadata.get(n) for n in names)]
        words = [str(cell.metadata["variant"])] if cell.metadata.get("variant") else []
        words += [cell.user_settings] if cell.user_settings and (similar or not words) else []
        if any(other.user_settings == cell.user_settings for other in similar):
            flat = run_settings(cell.runs[0])
            others = [run_settings(other.runs[0]) for other in similar]
            odd = [name for name in flat if any(name in o and o[name] != flat[name] for o in others)]
            words += [f"{name}={flat[name]}" for name in odd]
        out.append(", ".join(words))
    return out


def _notes(runs: Sequence[Run], groups: Sequence[SeedGroup], split: str) -> list[str]:
    """One line for everything that is in no row."""
    notes = []
    for cell in groups:
        for run in cell.duplicates:
            notes.append(f"{run.path} is not counted: {_same_seed(cell, run)} has the same seed {run.metadata['seed']}")
    for run in runs:
        if run.result is None:
            done = sum(line.get("kind") == "expert" for line in run.lines)
            notes.append(f"{run.path} is not counted: unfinished, {done} tasks done; continue it with itl run --resume")
    elsewhere = [cell for cell in groups if cell.metadata["split"] != split]
    for name in sorted({cell.metadata["split"] for cell in elsewhere}):
        count = sum(cell.metadata["split"] == name for cell in elsewhere)
        notes.append(f"{count} cells on the {name} split are not shown; --split {name} shows them")
    return notes


def _same_seed(cell: SeedGroup, run: Run) -> Any:
    return next(other.path for other in cell.runs if other.metadata["seed"] == run.metadata["seed"])
