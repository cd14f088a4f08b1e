"""The figure of `itl bench`: step times against the baseline loop, memory sizes, concurrent runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from itl.atomic import atomic_write
from itl.bench.measurements import with_current_keys
from itl.errors import UserError


def draw(record: dict[str, Any], path: str) -> None:
    """Draw a record of `measure`, of this version or an earlier one, to an image file.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError("The figure needs matplotlib. Install it with: pip install 'itl[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    record = with_current_keys(record)
    several = len(record["concurrent_runs"]) > 1  # on a CPU runs are never concurrent
    figure, axes = plt.subplots(1, 3 if several else 2, figsize=(12 if several else 9, 3.6), layout="constrained")
    left, middle = axes[:2]
    names = list(record["engine"])
    engine, baseline = ([record[side][name]["ms"] for name in names] for side in ("engine", "baseline"))
    rows = range(len(names))
    left.barh([r + 0.2 for r in rows], baseline, 0.38, color="#bbbbbb", label="baseline loop")
    left.barh([r - 0.2 for r in rows], engine, 0.38, color="#1f6f8b", label="itl")
    for r, mine, theirs in zip(rows, engine, baseline, strict=True):
        left.text(theirs, r + 0.2, f" {theirs:.1f}", va="center", fontsize=8)
        left.text(mine, r - 0.2, f" {mine:.2f}  ({theirs / mine:.1f}x)", va="center", fontsize=8)
    left.set(yticks=list(rows), yticklabels=names, xlabel="ms per step", xlim=(0, 1.25 * max(*engine, *baseline)))
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8)
    sizes = [row["buffer"] for row in record["growth"]]
    for stage, marker in (("tangent", "o"), ("projection", "s")):
        middle.plot(sizes, [row[stage] for row in record["growth"]], marker=marker, label=stage)
    middle.set(xlabel="images in memory", ylabel="seconds per epoch", ylim=(0, None), xlim=(0, None))
    middle.legend(frameon=False, fontsize=8)
    if several:
        timings = [(row["runs"], row["ms_per_run_step"]) for row in record["concurrent_runs"]]
        axes[2].plot(*zip(*timings, strict=True), marker="o", color="#1f6f8b")
        axes[2].set(
            xlabel="concurrent runs", ylabel="ms per step and run (er)", ylim=(0, 1.1 * max(ms for _, ms in timings))
        )
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    with atomic_write(path) as file:
        figure.savefig(file, format=Path(path).suffix[1:] or "png", dpi=150)
    plt.close(figure)
