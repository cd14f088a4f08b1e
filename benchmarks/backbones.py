"""Measure pre-trained backbones: accuracy on Seq-CIFAR-10, time of lessons, and peak memory.

    python benchmarks/backbones.py few --data DATA  # closed-form methods with 20 to 200 images per class
    python benchmarks/backbones.py accuracy --data DATA --size 128  # every method, 3 seeds
    python benchmarks/backbones.py stream --data DATA --size 128  # time of the whole stream, features included
    python benchmarks/backbones.py lessons --images TINY  # ten TinyImageNet classes in five lessons
    python benchmarks/backbones.py first-lesson --images TINY  # cold start to saved model, then a second lesson
    python benchmarks/backbones.py memory --images TINY  # peak memory of 5,000 images at 224 pixels

`--images` is a folder `tiny-imagenet-200` with `train/CLASS/images/*.JPEG`. Times are only meaningful on an idle
machine. Every part starts with an empty cache of features, unless `--cache` is given, and adds one line to
`measurements.jsonl` in `--out`. On a GPU, `accuracy --device cuda --runs-at-once 8` trains several runs in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from itl import streams as itl_streams
from itl.engine.concurrency import run_concurrently
from itl.engine.device import choose_engine
from itl.experiments.run import Config
from itl.experiments.run import run as run_experiment
from itl.learner import Learner
from itl.nets import backbone_settings
from itl.results.environment import environment
from itl.settings import parse
from itl.streams import Images, Stream

BACKBONE = "efficientnet-lite0"
SEEDS = (0, 1, 2)
RIDGES = (30, 100, 300, 1000, 3000, 10000)
HEAD = {"specialist.epochs": 5, "specialist.momentum": 0.9, "tangent.views": 2, "projection.epochs": 50}
LAST_BLOCK = {**HEAD, "net.trained": 3, "tangent.layers": 3, "tangent.iterations": 40}
WHOLE = {"specialist.epochs": 2, "specialist.momentum": 0.9, "net.trained": None}
RATES = [{"specialist.lr": lr} for lr in (0.0003, 0.001, 0.003)]
PENALTIES = [{"specialist.lr": 0.001, "tangent.l2": l2} for l2 in (1e-3, 1e-2, 1e-1)]
# Each row of the table: the method, its settings, and the settings among which the validation split chooses.
ROWS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "ncm": ("ncm", {}, [{}]),
    "ridge": ("ridge", {}, [{"specialist.options.ridge": ridge} for ridge in RIDGES]),
    "ridge-default": ("ridge", {}, [{}]),
    "ranpac": (
        "ranpac",
        {},
        [
            {"specialist.options.width": width, "specialist.options.ridge": ridge}
            for width in (2000, 5000)
            for ridge in RIDGES[3:]
        ],
    ),
    "ranpac-10000": (
        "ranpac",
        {"specialist.options.width": 10000},
        [{"specialist.options.ridge": ridge} for ridge in RIDGES[3:]],
    ),
    "tangent-ridge": (
        "tangent-ridge",
        {"net.trained": 2},
        [
            {"specialist.options.directions": directions, "specialist.options.ridge": ridge}
            for directions in (4, 8)
            for ridge in RIDGES[3:]
        ],
    ),
    "er": ("er", HEAD, RATES),
    "derpp": ("derpp", HEAD, RATES),
    "itl": ("itl", HEAD, PENALTIES),
    "er+block": ("er", LAST_BLOCK, RATES),
    "derpp+block": ("derpp", LAST_BLOCK, RATES),
    "itl+block": ("itl", LAST_BLOCK, PENALTIES),
    "joint+block": ("joint", LAST_BLOCK, RATES),
    "er+whole": ("er", WHOLE, RATES[1:]),
    "joint+whole": ("joint", WHOLE, RATES[1:]),
}


def itl(*words: str, cache: Path) -> tuple[float, str, int]:
    """Run a command of itl: seconds, standard output, and peak memory of all commands so far in bytes."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "itl", *words],
        env={**os.environ, "ITL_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return time.monotonic() - start, done.stdout, peak


def run(args: argparse.Namespace, method: str, settings: dict[str, Any], seed: int, split: str) -> dict[str, Any]:
    """One run on Seq-CIFAR-10 with a memory of 200; its record."""
    words = [f"--set={name}={value}" for name, value in {"net.size": args.size, **settings}.items()]
    options = (
        f"run --stream seq-cifar10 --buffer 200 --curves 0 --json --backbone {BACKBONE} --data {args.data}".split()
    )
    with tempfile.TemporaryDirectory() as folder:
        more = ["--method", method, "--seed", str(seed), "--split", split, "--out", str(Path(folder) / "run")]
        return json.loads(itl(*options, *more, *words, cache=args.cache)[1])


@dataclass(frozen=True)
class Cell:
    """One run of `accuracy`: a row of its table, the settings to try, a seed and a split."""

    row: str
    settings: dict[str, Any]
    seed: int
    split: str

    def config(self, args: argparse.Namespace) -> Config:
        method, common, _ = ROWS[self.row]
        own = {**common, **self.settings, **parse(args.set), "net.size": args.size}
        settings = {**backbone_settings(BACKBONE), **own}
        return Config("seq-cifar10", method, 200, self.seed, settings, split=self.split, curves=0)


def run_cells(args: argparse.Namespace, cells: list[Cell]) -> list[dict[str, Any]]:
    """The record of each run, several at once on a GPU. A run that fails has an `error` in place of its scores."""
    configs = [cell.config(args) for cell in cells]
    streams = {split: load(args, split) for split in {cell.split for cell in cells}}

    def one(config: Config) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = run_experiment(config, streams[config.split], folder, device=args.device, save=False)
            except Exception as error:  # the other runs must go on
                failed = {"command": config.command, "error": f"{type(error).__name__}: {error}"}
                print(json.dumps(failed), flush=True)
                return failed
        kept = ("class_il", "task_il", "forgetting", "seconds", "hardware", "versions", "command")
        record = {name: result[name] for name in kept}
        print(json.dumps(record), flush=True)  # so that an interrupted benchmark leaves its finished runs
        return record

    device = choose_engine(args.device).device
    return run_concurrently([partial(one, config) for config in configs], args.runs_at_once, device)


def load(args: argparse.Namespace, split: str) -> Stream:
    """Seq-CIFAR-10; with `--limit`, only the first images of each part of a task, to check the script."""
    stream = itl_streams.load("seq-cifar10", args.data, split=split)
    if args.limit is None:
        return stream

    def cut(images: Images) -> Images:
        return Images(images.gather(torch.arange(min(args.limit, len(images)))), images.labels[: args.limit])

    tasks = [replace(task, train=cut(task.train), test=cut(task.test)) for task in stream]
    return replace(stream, tasks=tuple(tasks))


def compute_features(args: argparse.Namespace, rows: list[str]) -> dict[str, float]:
    """Compute the features of all images once per frozen part of the network; returns the seconds of each."""
    seconds: dict[str, float] = {}
    stream = load(args, "test")
    for row in rows:
        config = Cell(row, {}, 0, "test").config(args)
        learner = Learner(config.method, 200, 0, 10, settings=config.settings, device=args.device)
        learner.prepare(stream.tasks[0])
        extractor = learner.extractor
        if extractor is None:
            continue
        name = f"{config.settings['net.trained']} trained, {extractor.views} views"
        if name not in seconds:
            start = time.monotonic()
            for task in stream:
                extractor.add(task.train)
                extractor.add(task.test)
            seconds[name] = time.monotonic() - start
            print("features:", name, seconds[name], flush=True)
    return seconds


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    """Class-IL and Task-IL of every method, with settings chosen on the validation split at seed 0."""
    os.environ["ITL_CACHE"] = str(args.cache)
    rows = args.methods.split(",") if args.methods else list(ROWS)
    out: dict[str, Any] = {"size": args.size, "features": compute_features(args, rows), "rows": {}}
    cells = [Cell(row, choice, 0, "validation") for row in rows for choice in ROWS[row][2]]
    scored = list(zip(cells, run_cells(args, cells), strict=True))
    best = {}
    for row in rows:
        tried = [(cell.settings, result) for cell, result in scored if cell.row == row]
        best[row] = max(tried, key=lambda pair: pair[1].get("class_il", -1.0))[0]
        validation = [{"settings": settings, **result} for settings, result in tried]
        out["rows"][row] = {"validation": validation, "settings": best[row], "test": []}
    cells = [Cell(row, best[row], seed, "test") for row in rows for seed in SEEDS]
    for cell, result in zip(cells, run_cells(args, cells), strict=True):
        out["rows"][cell.row]["test"].append(result)
    for row in rows:
        print(row, best[row], [result.get("class_il", result.get("error")) for result in out["rows"][row]["test"]])
    return out


def stream(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of `itl run` on the whole stream with `ridge`, from an empty cache."""
    start = time.monotonic()
    result = run(args, "ridge", {"specialist.options.ridge": 100}, 0, "test")
    return {"seconds": time.monotonic() - start, "class_il": result["class_il"], "parts": result["seconds"]}


def make_folders(args: argparse.Namespace, target: Path, lessons: int, classes: int, images: int) -> list[str]:
    """Write folders of lessons with copies of the images of TinyImageNet's first classes; returns their paths."""
    names = sorted(path.name for path in (Path(args.images) / "train").iterdir())
    folders = []
    for lesson in range(lessons):
        folders.append(str(target / f"lesson{lesson + 1}"))
        for name in names[lesson * classes : (lesson + 1) * classes]:
            own = Path(folders[-1]) / name
            own.mkdir(parents=True)
            for file in sorted((Path(args.images) / "train" / name / "images").iterdir())[:images]:
                shutil.copy(file, own / file.name)
    return folders


VARIANTS = {
    "backbone": ["--backbone", BACKBONE, "--method", "ridge"],
    "backbone, trained classifier": ["--backbone", BACKBONE, "--method", "itl"],
    "from scratch": ["--method", "itl", "--size", "64"],
    "joint, backbone": ["--backbone", BACKBONE, "--method", "ridge"],
    "joint, from scratch": ["--method", "itl", "--size", "64"],
}


def lessons(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy and seconds per lesson of ten classes in five lessons of 100 images per class.

    A lesson trains for at most half a minute, joint training for at most two and a half.
    """
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folders = make_folders(args, root / "images", 5, 2, 100)
        every = root / "joint"
        for one in folders:
            shutil.copytree(one, every, dirs_exist_ok=True)
        for name, options in VARIANTS.items():
            cache, model = root / f"cache {name}", root / f"model {name}"
            given, minutes = ([str(every)], "2.5") if name.startswith("joint") else (folders, "0.5")
            seconds, reports = [], []
            for one in given:
                spent, out, _ = itl("learn", str(model), one, "--json", "--minutes", minutes, *options, cache=cache)
                seconds.append(spent)
                reports.append(json.loads(out)["accuracy"])
                options = []
            rows[name] = {"seconds": seconds, "accuracy": reports}
            print(name, rows[name], flush=True)
    return rows


def first_lesson(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a first lesson of 5 classes x 40 images, of a later one of 2 classes, and of that one repeated."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folders = make_folders(args, root / "images", 3, 5, 40)
        for extra in sorted(Path(folders[1]).iterdir())[2:]:
            shutil.rmtree(extra)
        model, cache = str(root / "model"), root / "cache"
        first, _, _ = itl("learn", model, folders[0], "--quiet", "--size", "224", *VARIANTS["backbone"], cache=cache)
        later, _, _ = itl("learn", model, folders[1], "--quiet", cache=cache)
        itl("undo", model, cache=cache)
        cached, out, peak = itl("learn", model, folders[1], "--json", cache=cache)
        lesson = json.loads(out)["lessons"][0]["seconds"]  # reading, training and evaluation, without start-up
        seconds = {"first": first, "later": later, "later with cached features": cached, "of these the lesson": lesson}
        return {**seconds, "peak_bytes": peak}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a first lesson of 5,000 images at 224 pixels."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folders = make_folders(args, root / "images", 1, 10, 500)
        options = ["--quiet", "--size", "224", *VARIANTS["backbone"]]
        seconds, _, peak = itl("learn", str(root / "model"), folders[0], *options, cache=root / "cache")
        return {"seconds": seconds, "peak_bytes": peak}


def few(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Accuracy of closed-form methods on 1,000 other training images of CIFAR-10, from few images per class."""
    import numpy as np
    import torch

    import itl as package

    os.environ["ITL_CACHE"] = str(args.cache)
    stream = package.streams.load("seq-cifar10", root=args.data)
    pixels = torch.cat([task.train.pixels for task in stream]).permute(0, 2, 3, 1).numpy()
    labels = torch.cat([task.train.labels for task in stream]).numpy()
    rng = np.random.default_rng(0)
    shuffled = [rng.permutation(np.flatnonzero(labels == label)) for label in range(10)]
    held_out = np.concatenate([rows[200:300] for rows in shuffled])
    rows = []
    for count in (20, 100, 200):
        train = np.concatenate([own[:count] for own in shuffled])
        for method, ridges in (("ncm", (None,)), ("ridge", RIDGES), ("ranpac", RIDGES)):
            for ridge in ridges:
                settings = {"net.size": args.size}
                settings |= {} if ridge is None else {"specialist.options.ridge": float(ridge)}
                learner = package.Learner(method, backbone=BACKBONE, settings=settings, device="cpu")
                learner.learn(pixels[train], labels[train])
                accuracy = 100 * float((learner.predict(pixels[held_out]) == labels[held_out]).mean())
                rows.append({"images per class": count, "method": method, "ridge": ridge, "accuracy": accuracy})
                print(rows[-1], flush=True)
    return rows


PARTS = {
    "few": few,
    "accuracy": accuracy,
    "stream": stream,
    "lessons": lessons,
    "first-lesson": first_lesson,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", default="data")
    parser.add_argument("--images")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--methods")
    parser.add_argument("--device", default="cpu", help="device of accuracy")
    parser.add_argument("--runs-at-once", type=int, default=1, help="concurrent runs of accuracy, on a GPU")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, a setting of all runs of accuracy")
    parser.add_argument("--limit", type=int, help="use only this many images per task in accuracy")
    parser.add_argument("--cache", type=Path, help="keep the cache of features here")
    parser.add_argument("--out", default="benchmarks/results/backbones")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.cache = args.cache or Path(folder)
        words = shlex.join(["benchmarks/backbones.py", *sys.argv[1:]])
        command = re.sub(r" --(data|images|cache|out) \S+", "", words)  # records hold no paths
        result: dict[str, Any] = {"part": args.part, "command": command}
        result |= environment(choose_engine(args.device).device)
        result["result"] = PARTS[args.part](args)
    target = Path(args.out)
    target.mkdir(parents=True, exist_ok=True)
    with (target / "measurements.jsonl").open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result["result"], indent=1))


if __name__ == "__main__":
    main()
