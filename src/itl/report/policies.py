"""Memory policies side by side: the appendix's curves over an entropy's temperature or a coreset's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from itl.report.chart import Axis, Chart, Series
from itl.report.stages import MEASURES
from itl.report.subject import Group
from itl.results.cells import settings_of


def policies(groups: Sequence[Group], measure: str = "class_il") -> list[Chart]:
    """Accuracy against a memory policy's own number (an entropy's temperature, a coreset's share); a policy without
    one is a level. One chart for each such number, for cells alike in all but the memory's settings.
    """
    out = []
    alike: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        facts = group.cell.facts
        alike.setdefault(tuple(str(facts[name]) for name in ("stream", "split", "method", "buffer")), []).append(group)
    for value, some in alike.items():
        numbers = dict.fromkeys(name for group in some for name, x in _memory(group).items() if _number(x) is not None)
        for number in numbers:
            lines = _by_policy(number, some)
            if lines:
                kept = [_policy(group) for group in some]
                rest = [g for g in some if _policy(g) not in {*lines, "None"} and kept.count(_policy(g)) == 1]
                out.append(_policy_chart(number, lines, rest, value, measure))
    return out


def _by_policy(number: str, groups: Sequence[Group]) -> dict[str, list[tuple[float, Group]]]:
    """The policies that were tried with several values of `number`, with their cells in its order."""
    lines: dict[str, list[tuple[float, Group]]] = {}
    for group in groups:
        x = _number(_memory(group).get(number))
        if x is not None:
            lines.setdefault(_policy(group), []).append((x, group))
    tried = {policy: points for policy, points in lines.items() if len({x for x, _ in points}) > 1}
    return {policy: sorted(points, key=lambda point: point[0]) for policy, points in tried.items()}


def _policy_chart(
    number: str,
    lines: dict[str, list[tuple[float, Group]]],
    rest: Sequence[Group],
    value: tuple[str, ...],
    measure: str,
) -> Chart:
    series = []
    for k, (policy, points) in enumerate(lines.items()):
        means = [group.cell.mean(measure) for _, group in points]
        series.append(
            Series(
                policy,
                [mean.mean for mean in means],
                [x for x, _ in points],
                role="abcdefgh"[k % 8],
                error=[mean.std for mean in means],
                hover=[f"{policy}, {number} {x:g}" for x, _ in points],
            )
        )
    levels = [(group.cell.mean(measure).mean, _policy(group)) for group in rest]
    known = [v for one in series for v in one.y if v is not None] + [v for v, _ in levels if v is not None]
    return Chart(
        f"{value[2]} on {value[0]}, |B| {value[3]}: {MEASURES[measure]} by memory policy",
        x=Axis(number),
        y=Axis(f"{MEASURES[measure]}, %", max(0.0, min(known) - 6), min(104.0, max(known) + 6)),
        series=tuple(series),
        levels=tuple((level, name) for level, name in levels if level is not None),
    )


def _memory(group: Group) -> dict[str, Any]:
    return {name: value for name, value in settings_of(group.cell.runs[0]).items() if name.startswith("memory.")}


def _policy(group: Group) -> str:
    return str(_memory(group).get("memory.policy"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
