"""The ablation from the same specialists: every rung learned after tasks 1, 3 and 5 of the same five runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.paired import gain_text, paired_values
from itl.results.published import published
from itl.results.seed_groups import MeanStd

RECORD = Path(__file__).parent / "results" / "ablation" / "cifar10.jsonl.gz"


def recorded_trials() -> list[dict[str, Any]]:
    """The lines of the record."""
    return [json.loads(line) for line in gzip.decompress(RECORD.read_bytes()).decode().splitlines()]


def trials(task: int, stage: str) -> dict[str, dict[int, float]]:
    """Class-IL on the test split by rung and seed, learned from the same specialists: of the expert, or `before` it."""
    out: dict[str, dict[int, float]] = {}
    for trial in recorded_trials():
        if trial["split"] == "test" and trial.get("task") == task:
            before = next(value for name, value in trial["stages"].items() if name not in ("specialist", "expert"))
            value = before if stage == "before" else trial["stages"][stage]
            out.setdefault(trial["rung"], {})[trial["seed"]] = value["class_il"]
            out.setdefault("b", {})[trial["seed"]] = trial["stages"]["specialist"]["class_il"]
    return out


def same_specialists() -> list[str]:
    """The ablation from the same specialists: all rungs after tasks 1, 3 and 5, and their distance to `itl`."""
    rows = ["| after task | | before projection | expert | `itl` minus it, before | `itl` minus it, expert |"]
    rows.append("|---|---|---|---|---|---|")
    for task in (1, 3, 5):
        before, expert = trials(task, "before"), trials(task, "expert")
        for rung in ("b", "b+lf", "b+hp+lf", "b+ff", "b+hp+ff+pd", "itl", "itl-doubled"):
            if rung not in expert:
                continue
            scores = ["" if rung == "b" else MeanStd.of([*before[rung].values()]).text()]
            scores.append(MeanStd.of([*expert[rung].values()]).text())
            gains = [gain_text(paired_values(stage["itl"], stage[rung])) for stage in (before, expert)]
            gains = ["", ""] if rung == "itl" else ["", gains[1]] if rung == "b" else gains
            rows.append(f"| {task} | `{rung}` | {' | '.join([*scores, *gains])} |")
    return rows


def ablation_sentence() -> list[str]:
    """What the ablation from the same specialists says about tangent learning."""
    published_score = {row.method: row.class_il for row in published() if row.source == "ablation"}
    expert, before = trials(5, "expert"), trials(5, "before")
    linear, full = (paired_values(expert["itl"], expert[rung]) for rung in ("b+hp+lf", "b+hp+ff+pd"))
    paper = [published_score["itl"] - published_score[rung] for rung in ("b+hp+lf", "b+hp+ff+pd")]
    model = paired_values(before["itl"], before["b+hp+lf"])
    return [
        "",
        f"**Ablation** at 200 images ({len(expert['itl'])} seeds, Class-IL): `itl` is {position(linear)} a linear "
        f"classifier ({gain_text(linear)} points; {paper[0]:+.1f}",
        f"in the paper; {gain_text(model)} before projection) and {position(full)} full fine-tuning "
        f"({gain_text(full)}; {paper[1]:+.1f} in the paper).",
    ]


def position(gained: MeanStd) -> str:
    """Which side of zero the interval of a difference lies on, in words."""
    if gained.mean is None or gained.interval is None or abs(gained.mean) <= gained.interval:
        return "level with"
    return "above" if gained.mean > 0 else "below"
