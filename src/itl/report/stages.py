"""Accuracy through the stages of a run (the paper's Fig. 3): specialist, tangent learning, projection."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

from itl.errors import UserError
from itl.results import Folder

COLOURS = {"specialist": "#f4c9c9", "projection": "#f5e7b2"}  # backgrounds; any way of learning the generalist: green
LINES = {"specialist": "#a02c2c", "projection": "#c77f12"}
GREENS = ("#cfe6cf", "#2c6e2c")


def draw_stages(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Draw Class-IL over the tasks seen against training, each stage on its background, its end as a bar."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs matplotlib; install it with pip install 'itl[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    folder = Folder(run)
    config, lines = folder.read("config.json"), folder.lines()
    figure, axis = plt.subplots(figsize=(9, 3.4), layout="constrained")
    names: dict[str, str] = {}
    at = 0.0
    for (task, stage), points in _stages(lines):
        curve = [line["class_il"] for line in points if line["kind"] == "curve"]
        end = next((line["class_il"] for line in points if line["kind"] == "end"), None)
        width = 2.0 if stage == "specialist" else 1.0
        back, front = COLOURS.get(stage, GREENS[0]), LINES.get(stage, GREENS[1])
        names[stage] = back
        axis.axvspan(at, at + width, color=back, lw=0)
        xs = [at + width * (k + 1) / (len(curve) + 1) for k in range(len(curve))]
        axis.plot(xs, curve, color=front, lw=1.2)
        if end is not None:
            axis.plot([at, at + width], [end, end], color=front, lw=2.4)
            axis.text(at + width / 2, end + 1.5, f"{end:.0f}", ha="center", va="bottom", fontsize=8, color=front)
        if stage == "specialist":
            axis.axvline(at, color="#777777", lw=0.8, ls=":")
            axis.text(at + 0.05, 0.03, f"task {task}", fontsize=8, transform=axis.get_xaxis_transform())
        at += width
    low = min((line["class_il"] for line in lines if line["kind"] in ("curve", "end")), default=0.0)
    axis.set(xlim=(0, at), ylim=(max(0.0, low - 12), 108), xticks=[], ylabel="Class-IL over the tasks seen, %")
    title = f"{config['method']} on {config['stream']}, {config['buffer']} images in memory"
    axis.set_title(title, fontsize=10, loc="left")
    handles = [Patch(color=colour, label=name) for name, colour in names.items()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=3, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _stages(lines: list[dict[str, Any]]) -> list[tuple[tuple[int, str], list[dict[str, Any]]]]:
    """A run's lines by (task, stage), in order."""
    inside = [line for line in lines if line["kind"] in ("curve", "end")]
    return [(key, list(part)) for key, part in groupby(inside, key=lambda line: (line["task"], line["stage"]))]
