"""The paper's Seq-CIFAR-10: every run of its two tables and its ablation, in order of value. A GPU's work.

python benchmarks/cifar10.py --list                               what is not recorded yet, as commands
python benchmarks/cifar10.py --data data [--lanes 4]              run it, several side by side
python benchmarks/cifar10.py --only itl,itl-na --until 900        some methods; begin no run after so many seconds
python benchmarks/cifar10.py --only b --split validation          on the validation images

A run that is recorded is never run again. `itl table --stream seq-cifar10` sets the records beside the paper's numbers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "benchmarks")]

from runs import not_recorded, on_device  # noqa: E402

from itl.config import Config  # noqa: E402

STREAM = "seq-cifar10"
RESULTS = HOME / "results" / STREAM
SEEDS = (0, 1, 2)
ITL = ("itl", "itl-na", "itl-l", "itl-l-na")
ABLATION = ("b", "b+ff", "b+lf", "b+hp+lf", "b+hp+ff+pd")
BASELINES = ("er", "derpp", "der", "joint", "sgd", "agem")
# What the paper leaves open, as variants of itl.
OPEN: dict[str, dict[str, Any]] = {
    "reservoir": {"memory.policy": "reservoir"},
    "plain": {"augment.task": None, "augment.memory": None},
    "all-layers": {"tangent.layers": None},
    "over-task": {"projection.over": "task", "projection.epochs": 3},
    "joined": {"specialist.name": "er"},
}


def configs(split: str = "test") -> list[Config]:
    """All runs, the most valuable first."""
    cells = [(method, 200, {}, None, SEEDS) for method in (*ITL, *ABLATION)]
    cells += [("itl", 200, settings, name, SEEDS) for name, settings in OPEN.items()]
    cells += [(method, buffer, {}, None, SEEDS) for buffer in (500, 5120) for method in ITL]
    cells += [(method, buffer, {}, None, SEEDS[:1]) for buffer in (200, 500, 5120) for method in BASELINES]
    without = [("joint", 500), ("joint", 5120), ("sgd", 500), ("sgd", 5120)]  # the memory's size is nothing to them
    return [
        Config(STREAM, method, buffer, seed, settings, variant=variant, split=split)
        for method, buffer, settings, variant, seeds in cells
        for seed in seeds
        if (method, buffer) not in without
    ]


def place(config: Config) -> Path:
    """Where a run is recorded."""
    return RESULTS / config.split / config.name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="methods, with commas between; default: all")
    parser.add_argument("--buffers", help="with commas between; default: all")
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--list", action="store_true", help="what is missing")
    args = parser.parse_args()
    only = args.only.split(",") if args.only else None
    buffers = [int(size) for size in args.buffers.split(",")] if args.buffers else None
    asked = [
        c
        for c in configs(args.split)
        if (only is None or c.method in only) and (buffers is None or c.buffer in buffers)
    ]
    todo = not_recorded(asked, RESULTS / args.split, args.split)
    print(f"{len(todo)} runs to do", flush=True)
    if args.list:
        print(*(config.command for config in todo), sep="\n")
        return
    on_device(todo, place, args.data, args.device, args.lanes, args.until)


if __name__ == "__main__":
    main()
