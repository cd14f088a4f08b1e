"""Comparison of memory policies: accuracy by entropy temperature or coreset fraction, as in the paper's appendix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itl.report.chart import Axis, Chart, Series
from itl.report.run_selection import ReportGroup
from itl.report.stages import MEASURES
from itl.results.seed_groups import TASK_OPTIONS, agree, run_settings, user_setting_names

IDENTITY_FIELDS = ("stream", "split", "method", "buffer")
MEMORY_PREFIX = "memory."  # of the memory's settings


@dataclass(frozen=True)
class PolicyGroup:
    """A group of runs with its memory settings, all other settings, and the names of those the user gave (`given`)."""

    group: ReportGroup
    memory: dict[str, Any]
    others: dict[str, Any]
    given: frozenset[str]

    @property
    def policy(self) -> str:
        """The memory's policy."""
        return str(self.memory.get("memory.policy"))

    @property
    def variant(self) -> str | None:
        """The name of the variant."""
        return self.group.metadata.get("variant")

    def same_identity(self, other: PolicyGroup) -> bool:
        """Whether both have the same stream, split, method and buffer."""
        return all(self.others[name] == other.others[name] for name in IDENTITY_FIELDS)

    def compares(self, other: PolicyGroup) -> bool:
        """Whether they differ in the memory's settings only."""
        alike = self.same_identity(other) and agree(self.others, other.others, self.given | other.given)
        return alike and not self.same_memory(other)

    def same_memory(self, other: PolicyGroup, but: str = "") -> bool:
        """Whether the memory settings agree, except for the setting `but`."""
        mine, theirs = ({n: x for n, x in one.memory.items() if n != but} for one in (self, other))
        return agree(mine, theirs, self.given | other.given)


def policies(groups: Sequence[ReportGroup], measure: str = "class_il") -> list[Chart]:
    """Accuracy by a numeric setting of a memory policy (entropy temperature, coreset fraction).

    There is one chart per such setting, for groups that differ in the memory's settings only. Policies without the
    setting are horizontal levels.
    """
    drawn = []
    for some in _alike(groups):
        numbers = dict.fromkeys(name for one in some for name, x in one.memory.items() if _number(x) is not None)
        lines = {number: _lines(number, some) for number in numbers}
        if any(lines.values()):
            drawn.append((some, {number: tried for number, tried in lines.items() if tried}))
    out = []
    for some, lines in drawn:
        tuned = {line[0].policy for tried in lines.values() for line in tried}
        rest = [one for one in some if one.policy not in {*tuned, "None"}]
        title = _title(some, [other[0] for other, _ in drawn])
        out += [_policy_chart(number, tried, rest, title, measure) for number, tried in lines.items()]
    return out


def _alike(groups: Sequence[ReportGroup]) -> list[list[PolicyGroup]]:
    """Groups that differ in the memory's settings only, whatever their variants are called.

    Variants with the same memory settings must differ in something else, so they are kept apart.
    """
    cells = [[_policy_group(group)] for group in groups]
    named = _gather(cells, lambda one, other: one.variant == other.variant and one.compares(other))
    return _gather(named, PolicyGroup.compares)


def _lines(number: str, some: Sequence[PolicyGroup]) -> list[list[PolicyGroup]]:
    """The policies that were tried with several values of the setting `number` only, in order of its value."""
    having = [[one] for one in some if _number(one.memory.get(number)) is not None]
    lines = _gather(having, lambda one, other: one.same_memory(other, but=number))
    return [sorted(line, key=lambda one: float(one.memory[number])) for line in lines if len(line) > 1]


def _gather(
    parts: Sequence[list[PolicyGroup]], fits: Callable[[PolicyGroup, PolicyGroup], bool]
) -> list[list[PolicyGroup]]:
    """Merge each part into the first earlier one whose groups all fit all of its groups."""
    out: list[list[PolicyGroup]] = []
    for part in parts:
        home = next((some for some in out if all(fits(one, other) for one in some for other in part)), None)
        if home is None:
            out.append(list(part))
        else:
            home.extend(part)
    return out


def _policy_chart(
    number: str, lines: Sequence[list[PolicyGroup]], rest: Sequence[PolicyGroup], title: str, measure: str
) -> Chart:
    series = []
    for k, (name, line) in enumerate(zip(_names([line[0] for line in lines], number), lines, strict=True)):
        means = [one.group.seed_group.mean(measure) for one in line]
        at = [float(one.memory[number]) for one in line]
        series.append(
            Series(
                name,
                [mean.mean for mean in means],
                at,
                role="abcdefgh"[k % 8],
                error=[mean.std for mean in means],
                hover=[f"{name}, {number} {x:g}" for x in at],
            )
        )
    levels = [(one.group.seed_group.mean(measure).mean, name) for one, name in zip(rest, _names(rest), strict=True)]
    known = [v for one in series for v in one.y if v is not None] + [v for v, _ in levels if v is not None]
    return Chart(
        f"{title}: {MEASURES[measure]} by memory policy",
        x=Axis(number),
        y=Axis(f"{MEASURES[measure]}, %", max(0.0, min(known) - 6), min(104.0, max(known) + 6)),
        series=tuple(series),
        levels=tuple((level, name) for level, name in levels if level is not None),
    )


def _title(some: Sequence[PolicyGroup], firsts: Sequence[PolicyGroup]) -> str:
    """A chart's title, with what distinguishes its groups from the first group of the other charts."""
    one = some[0]
    rivals = [other for other in firsts if other is not one and other.same_identity(one)]
    words = [f"{one.others['method']} on {one.others['stream']}", f"|B| {one.others['buffer']}"]
    words += [] if one.others["split"] == "test" else [f"{one.others['split']} split"]
    odd = _odd(one.others, [other.others for other in rivals])
    if rivals and not odd and one.variant and len({other.variant for other in some}) == 1:
        odd = [one.variant]
    return ", ".join([*words, *odd])


def _names(some: Sequence[PolicyGroup], but: str = "") -> list[str]:
    """Policy names, with the settings that distinguish groups of one policy."""
    out = []
    for one in some:
        same_policy = [other.memory for other in some if other.policy == one.policy]
        out.append(", ".join([one.policy, *_odd(one.memory, same_policy, but)]))
    return out


def _odd(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]], but: str = "") -> list[str]:
    """The settings that differ from others, as text."""
    odd = [name for name in mine if name != but and any(other.get(name) != mine[name] for other in others)]
    return [f"{name.removeprefix(MEMORY_PREFIX)} {_value_text(mine[name])}" for name in odd]


def _policy_group(group: ReportGroup) -> PolicyGroup:
    run, metadata = group.seed_group.runs[0], group.metadata
    settings = run_settings(run)
    others = {name: metadata[name] for name in IDENTITY_FIELDS} | {name: run.config.get(name) for name in TASK_OPTIONS}
    return PolicyGroup(
        group,
        {name: value for name, value in settings.items() if name.startswith(MEMORY_PREFIX)},
        others | {name: value for name, value in settings.items() if not name.startswith(MEMORY_PREFIX)},
        user_setting_names(run),
    )


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
