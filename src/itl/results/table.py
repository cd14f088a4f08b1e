"""Published results beside our own, as data for `itl table` and the report. Every omission is noted."""

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
        """Our mean minus the published mean: in points, and in published standard deviations.

        The second number is None unless both sides have several seeds: one run says nothing about the spread.
        """
        published, ours = self.published_score(measure), self.our_score(measure)
        if published.mean is None or ours.mean is None:
            return None, None
        points = ours.mean - published.mean
        return points, points / published.std if published.std and ours.std is not None else None

    @property
    def matches_published(self) -> bool | None:
        """Whether both measures are at least the published mean minus one published standard deviation.

        None if nothing was run, or if a published mean or standard deviation is missing.
        """
        matches = []
        for measure in MEASURES:
            theirs, ours = self.published_score(measure), self.our_score(measure)
            if theirs.mean is None or theirs.std is None or ours.mean is None:
                return None
            matches.append(ours.mean >= theirs.mean - theirs.std)
        return all(matches)


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
    groups = [group for group in group_by_seed(runs) if stream in (None, group.metadata["stream"])]
    chosen = [group for group in groups if group.metadata["split"] == split]
    without_variant = [group for group in chosen if not group.metadata.get("variant")]
    variants = [group for group in chosen if group.metadata.get("variant")]
    sections: list[TableSection] = []
    if split == "test":
        sections += _published([group for group in without_variant if not group.custom_tasks], stream, missing)
        known = {id(row.ours) for section in sections for row in section.rows}
        sections += _ours(
            [group for group in without_variant if id(group) not in known], "unpublished", "not published"
        )
    else:
        sections += _ours(without_variant, "validation", f"{split} split, used to choose settings")
    kind, description = (
        ("variant", "variants of ours") if split == "test" else ("validation", f"{split} split, variants")
    )
    sections += _ours(variants, kind, description)
    return Table(sections, [*damaged, *_notes(runs, groups, split)])


def _published(groups: Sequence[SeedGroup], stream: str | None, missing: bool) -> list[TableSection]:
    """One section per stream and source, in the order of the source."""
    out: dict[tuple[str, str], TableSection] = {}
    for result in published():
        if stream not in (None, result.stream):
            continue
        matching = [
            group
            for group in groups
            if result.matches(group.metadata["stream"], group.metadata["method"], group.metadata["buffer"])
        ]
        if not matching and not missing:
            continue
        title, reference = SOURCES[result.source]
        section = out.setdefault(
            (result.stream, result.source),
            TableSection(f"{result.stream}, {title}", result.stream, "published", [], reference),
        )
        labels = _labels(matching)
        rows = [
            TableRow(result.stream, result.method, result.buffer, result, group, label)
            for group, label in zip(matching, labels, strict=True)
        ]
        section.rows.extend(rows or [TableRow(result.stream, result.method, result.buffer, result, None)])
    return [out[key] for key in sorted(out, key=lambda key: key[0])]


def _ours(groups: Sequence[SeedGroup], kind: str, description: str) -> list[TableSection]:
    """One section per stream for groups of runs without a published counterpart."""
    out = []
    for stream in sorted({group.metadata["stream"] for group in groups}):
        in_stream = sorted(
            (group for group in groups if group.metadata["stream"] == stream),
            key=lambda group: (
                group.metadata["buffer"],
                group.metadata["method"],
                group.metadata.get("variant") or "",
                group.user_settings,
            ),
        )
        rows = [
            TableRow(stream, group.metadata["method"], group.metadata["buffer"], None, group, label)
            for group, label in zip(in_stream, _labels(in_stream), strict=True)
        ]
        out.append(TableSection(f"{stream}, {description}", stream, kind, rows))
    return out


def _labels(groups: Sequence[SeedGroup]) -> list[str]:
    """What distinguishes groups of one stream, method and buffer: variant, the user's settings, other defaults."""
    out = []
    for group in groups:
        names = ("stream", "split", "method", "variant", "buffer")
        similar = [
            other
            for other in groups
            if other is not group and all(other.metadata.get(name) == group.metadata.get(name) for name in names)
        ]
        words = [str(group.metadata["variant"])] if group.metadata.get("variant") else []
        if not words or similar:
            words += [group.user_settings] if group.user_settings else []
            words += ["earlier defaults"] if group.earlier_defaults else []
        if any(other.user_settings == group.user_settings for other in similar):
            settings = run_settings(group.runs[0])
            other_settings = [run_settings(other.runs[0]) for other in similar]
            different = [
                name
                for name in settings
                if any(name in other and other[name] != settings[name] for other in other_settings)
            ]
            words += [f"{name}={settings[name]}" for name in different]
        out.append(", ".join(words))
    return out


def _notes(runs: Sequence[Run], groups: Sequence[SeedGroup], split: str) -> list[str]:
    """One line for everything that is in no row."""
    notes = []
    for group in groups:
        for run in group.duplicates:
            notes.append(
                f"{run.path} is not counted: {_same_seed(group, run)} has the same seed {run.metadata['seed']}"
            )
    for run in runs:
        if run.result is None:
            done = sum(line.get("kind") == "expert" for line in run.lines)
            notes.append(f"{run.path} is not counted: unfinished, {done} tasks done; continue it with itl run --resume")
    not_shown = [group for group in groups if group.metadata["split"] != split]
    for name in sorted({group.metadata["split"] for group in not_shown}):
        count = sum(group.metadata["split"] == name for group in not_shown)
        counted = "1 configuration" if count == 1 else f"{count} configurations"
        notes.append(f"not shown: {counted} on the {name} split; --split {name} shows {'it' if count == 1 else 'them'}")
    return notes


def _same_seed(group: SeedGroup, run: Run) -> Any:
    return next(other.path for other in group.runs if other.metadata["seed"] == run.metadata["seed"])
