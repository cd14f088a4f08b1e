"""A run's accuracy so far, drawn with a terminal's characters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
COLOURS = {"specialist": "red", "projection": "yellow"}  # any way of learning the generalist: green
HEIGHT = 5  # lines
Point = tuple[int, str, float]  # task, stage, percent


def curve(points: Sequence[Point], width: int) -> Text:
    """Class-IL against training: a column a point, its stage by colour and by the letters below, tasks by number."""
    shown = thin(points, max(1, width - 6))
    out = Text(no_wrap=True)
    for row in range(HEIGHT, 0, -1):
        edge = {HEIGHT: "100 ", 1: "  0 "}.get(row, "    ")
        out.append(f"{edge}│", "dim")
        for _, stage, value in shown:
            filled = round(value / 100 * HEIGHT * 8) - (row - 1) * 8
            out.append(BLOCKS[min(8, max(0, filled))], COLOURS.get(stage, "green"))
        out.append("\n")
    out.append("     ")
    before: tuple[int, str] | None = None
    for task, stage, _ in shown:
        out.append(stage[0].upper() if (task, stage) != before else " ", "dim")
        before = (task, stage)
    return out


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, evenly spread, the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round((k + 1) * len(points) / most) - 1] for k in range(most)]
