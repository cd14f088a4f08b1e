"""Seconds of tangent learning and projection as a share of the specialist's, with a method's own defaults.

python benchmarks/generalist_share.py --data data [--method itl] [--buffer 200] [--json FILE]

One run, alone on the device, on the first tasks of Seq-CIFAR-10. The specialist trains for a few epochs per task, and
its time is scaled up to the epochs of the defaults. The first task, in which CUDA graphs are captured, is not counted;
so each later task is what it costs in a full run, apart from how well the shortened specialist has learned.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from itl import streams  # noqa: E402
from itl.engine.device import choose_engine  # noqa: E402
from itl.learner import Learner  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results import environment  # noqa: E402

STREAM = "seq-cifar10"
STAGES = ("specialist", "tangent", "projection")


def seconds_per_task(args: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of each stage of each task, as measured."""
    stream = streams.load(STREAM, args.data)
    epochs = {"specialist.epochs": args.epochs}
    learner = Learner(args.method, args.buffer, 0, stream.classes, settings=epochs, device=args.device)
    out, before = [], dict.fromkeys(STAGES, 0.0)
    for task in stream.tasks[: args.tasks]:
        learner.learn(task)
        total = {stage: learner.timer.seconds[stage] for stage in STAGES}
        out.append({stage: total[stage] - before[stage] for stage in STAGES})
        before = total
    return out


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record: seconds per task, and the share with the specialist's time scaled to its full number of epochs."""
    tasks = seconds_per_task(args)
    epochs = settings_for(args.method, STREAM, args.buffer, {}).specialist.epochs
    mean = {stage: sum(task[stage] for task in tasks[1:]) / len(tasks[1:]) for stage in STAGES}
    specialist = mean["specialist"] * epochs / args.epochs
    return {
        "method": args.method,
        "buffer": args.buffer,
        "epochs timed": args.epochs,
        "epochs": epochs,
        "tasks": tasks,
        "specialist_seconds": specialist,
        "tangent_seconds": mean["tangent"],
        "projection_seconds": mean["projection"],
        "share": (mean["tangent"] + mean["projection"]) / specialist,
        **environment(choose_engine(args.device).device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", default="itl")
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the specialist that are timed")
    parser.add_argument("--tasks", type=int, default=4, help="tasks to train; the first is not counted")
    parser.add_argument("--json", type=Path, help="also write the record to this file")
    args = parser.parse_args()
    record = measure(args)
    print(json.dumps(record, indent=1))
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
