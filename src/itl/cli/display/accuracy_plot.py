"""Plot the accuracy of a run with block characters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

BLOCKS = " ▁▂▃▄▅▆▇█"
STAGE_COLORS = {"specialist": "red", "projection": "yellow"}
GENERALIST_COLOR = "green"
PLOT_HEIGHT = 5  # lines
AXIS_WIDTH = 6  # columns
Point = tuple[int, str, float]  # task, stage, percent


def accuracy_plot(points: Sequence[Point], width: int) -> Text:
    """A bar chart of Class-IL during training, one column per point.

    The color of a bar shows its stage. The letter below the first bar of a stage is the stage's initial.
    """
    shown = downsample(points, max(1, width - AXIS_WIDTH))
    plot = Text(no_wrap=True)
    for row in range(PLOT_HEIGHT, 0, -1):
        label = {PLOT_HEIGHT: "100 ", 1: "  0 "}.get(row, "    ")
        plot.append(f"{label}│", "dim")
        for _, stage, percent in shown:
            filled = round(percent / 100 * PLOT_HEIGHT * 8) - (row - 1) * 8
            plot.append(BLOCKS[min(8, max(0, filled))], STAGE_COLORS.get(stage, GENERALIST_COLOR))
        plot.append("\n")
    plot.append("     ")
    previous: tuple[int, str] | None = None
    for task, stage, _ in shown:
        plot.append(stage[0].upper() if (task, stage) != previous else " ", "dim")
        previous = (task, stage)
    return plot


def downsample(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` evenly spaced points, including the last one."""
    if len(points) <= limit:
        return list(points)
    return [points[round((k + 1) * len(points) / limit) - 1] for k in range(limit)]
