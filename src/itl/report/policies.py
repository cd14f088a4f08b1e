"""Comparison of memory policies: accuracy by entropy temperature or coreset fraction, as in the paper's appendix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itl.report.chart import ROLES, Axis, Chart, Series, value_range
from itl.report.run_selection import ReportGroup
from itl.results.render import MEASURE_NAMES
from itl.results.seed_groups import TASK_OPTIONS, agree, run_settings, user_setting_names
from itl.settings import value_text

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
        comparable = self.same_identity(other) and agree(self.others, other.others, self.given | other.given)
        return comparable and not self.same_memory(other)

    def same_memory(self, other: PolicyGroup, ignoring: str = "") -> bool:
        """Whether the memory settings agree, except for the setting `ignoring`."""
        own, others = (
            {name: value for name, value in group.memory.items() if name != ignoring} for group in (self, other)
        )
        return agree(own, others, self.given | other.given)


def policies(groups: Sequence[ReportGroup], measure: str = "class_il") -> list[Chart]:
    """Accuracy by a numeric setting of a memory policy (entropy temperature, coreset fraction).

    There is one chart per such setting, for groups that differ in the memory's settings only. Policies without the
    setting are horizontal levels.
    """
    drawn = []
    for comparable in _comparable_groups(groups):
        settings = dict.fromkeys(
            name for group in comparable for name, value in group.memory.items() if _number(value) is not None
        )
        lines = {setting: _lines(setting, comparable) for setting in settings}
        if any(lines.values()):
            drawn.append((comparable, {setting: tried_lines for setting, tried_lines in lines.items() if tried_lines}))
    out = []
    for comparable, lines in drawn:
        tuned = {line[0].policy for tried_lines in lines.values() for line in tried_lines}
        levels = [group for group in comparable if group.policy not in {*tuned, "None"}]
        title = _title(comparable, [other[0] for other, _ in drawn])
        out += [_policy_chart(setting, tried_lines, levels, title, measure) for setting, tried_lines in lines.items()]
    return out


def _comparable_groups(groups: Sequence[ReportGroup]) -> list[list[PolicyGroup]]:
    """Groups that differ in the memory's settings only, whatever their variants are called.

    Variants with the same memory settings must differ in something else, so they are kept apart.
    """
    singles = [[_policy_group(group)] for group in groups]
    named = _merge(singles, lambda first, second: first.variant == second.variant and first.compares(second))
    return _merge(named, PolicyGroup.compares)


def _lines(setting: str, groups: Sequence[PolicyGroup]) -> list[list[PolicyGroup]]:
    """The policies that were tried with several values of `setting` only, in order of its value."""
    singles = [[group] for group in groups if _number(group.memory.get(setting)) is not None]
    lines = _merge(singles, lambda group, other: group.same_memory(other, ignoring=setting))
    return [sorted(line, key=lambda group: float(group.memory[setting])) for line in lines if len(line) > 1]


def _merge(
    lists: Sequence[list[PolicyGroup]], compatible: Callable[[PolicyGroup, PolicyGroup], bool]
) -> list[list[PolicyGroup]]:
    """Merge each list into the first earlier one whose groups are all compatible with all of its groups."""
    out: list[list[PolicyGroup]] = []
    for groups in lists:
        target = next(
            (merged for merged in out if all(compatible(first, second) for first in merged for second in groups)), None
        )
        if target is None:
            out.append(list(groups))
        else:
            target.extend(groups)
    return out


def _policy_chart(
    setting: str,
    lines: Sequence[list[PolicyGroup]],
    without_setting: Sequence[PolicyGroup],
    title: str,
    measure: str,
) -> Chart:
    series = []
    for k, (name, line) in enumerate(zip(_names([line[0] for line in lines], setting), lines, strict=True)):
        means = [group.group.seed_group.mean(measure) for group in line]
        values = [float(group.memory[setting]) for group in line]
        series.append(
            Series(
                name,
                [mean.mean for mean in means],
                values,
                role=ROLES[k % len(ROLES)],
                error=[mean.std for mean in means],
                hover=[f"{name}, {setting} {value:g}" for value in values],
                groups=[group.group.key for group in line],
                samples=[group.group.samples(measure) for group in line],
            )
        )
    levels = [
        (group.group.seed_group.mean(measure).mean, name)
        for group, name in zip(without_setting, _names(without_setting), strict=True)
    ]
    low, high = value_range(series)
    shown = [low, high, *(level for level, _ in levels if level is not None)]
    return Chart(
        f"{title}: {MEASURE_NAMES[measure]} by {setting}",
        x=Axis(setting),
        y=Axis(f"{MEASURE_NAMES[measure]}, %", max(0.0, min(shown) - 6), max(shown) + 6),
        series=tuple(series),
        levels=tuple((level, name) for level, name in levels if level is not None),
    )


def _title(groups: Sequence[PolicyGroup], first_groups: Sequence[PolicyGroup]) -> str:
    """A chart's title, with what distinguishes its groups from the first group of the other charts."""
    group = groups[0]
    rivals = [other for other in first_groups if other is not group and other.same_identity(group)]
    words = [f"{group.others['method']} on {group.others['stream']}", f"|B| {group.others['buffer']}"]
    words += [] if group.others["split"] == "test" else [f"{group.others['split']} split"]
    different = _differences(group.others, [other.others for other in rivals])
    if rivals and not different and group.variant and len({other.variant for other in groups}) == 1:
        different = [group.variant]
    return ", ".join([*words, *different])


def _names(groups: Sequence[PolicyGroup], ignoring: str = "") -> list[str]:
    """Policy names, with the settings that distinguish groups of one policy."""
    out = []
    for group in groups:
        same_policy = [other.memory for other in groups if other.policy == group.policy]
        out.append(", ".join([group.policy, *_differences(group.memory, same_policy, ignoring)]))
    return out


def _differences(settings: Mapping[str, Any], others: Sequence[Mapping[str, Any]], ignoring: str = "") -> list[str]:
    """The settings that differ from others, as text."""
    different = [
        name for name in settings if name != ignoring and any(other.get(name) != settings[name] for other in others)
    ]
    return [f"{name.removeprefix(MEMORY_PREFIX)} {value_text(settings[name])}" for name in different]


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


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
