"""Read the records of runs into pandas, and plot accuracy after each task.

Run: python examples/records.py [FOLDER ...]    (default: the records of this repository)
"""

import sys
from pathlib import Path

import matplotlib
import pandas as pd

from itl.results import find_runs

matplotlib.use("Agg")
folders = sys.argv[1:] or [Path(__file__).parents[1] / "results" / "seq-digits" / "test"]
runs, damaged = find_runs(folders)
print(f"{len(runs)} runs, {len(damaged)} damaged")

columns = ["method", "variant", "buffer", "seed", "class_il", "task_il", "forgetting"]
records = pd.DataFrame([{name: run.result.get(name) for name in columns} for run in runs if run.result])
print(records.groupby(["method", "buffer"])[["class_il", "task_il", "forgetting"]].agg(["mean", "std"]).round(1))

# metrics.jsonl has one line per evaluation; lines of the kind "expert" are the ends of tasks.
lines = pd.DataFrame(
    [
        {"method": run.metadata["method"], "task": line["task"], "class_il": line["class_il"]}
        for run in runs
        for line in run.lines
        if line["kind"] == "expert"
    ]
)
curves = lines.pivot_table(index="task", columns="method", values="class_il")
axes = curves.plot(marker="o", ylabel="Class-IL of the tasks seen, %", ylim=(0, 100))
axes.figure.savefig("accuracy.png", dpi=150)
print("wrote accuracy.png")
