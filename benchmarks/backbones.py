"""Measure pre-trained backbones: accuracy on Seq-CIFAR-10, time of lessons, and peak memory.

    python benchmarks/backbones.py few --data DATA  # closed-form methods with 20 to 200 images per class
    python benchmarks/backbones.py accuracy --data DATA --size 128  # every method, 3 seeds
    python benchmarks/backbones.py stream --data DATA --size 128  # time of the whole stream, features included
    python benchmarks/backbones.py lessons --images TINY  # ten TinyImageNet classes in five lessons
    python benchmarks/backbones.py first-lesson --images TINY  # cold start to saved model, then a second lesson
    python benchmarks/backbones.py memory --images TINY  # peak memory of 5,000 images at 224 pixels

`--images` is a folder `tiny-imagenet-200` with `train/CLASS/images/*.JPEG`. Times are only meaningful on an idle
machine. Every part starts with an empty cache of features, and writes one JSON file to `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from itl.engine.device import choose_engine
from itl.results.environment import environment

BACKBONE = "efficientnet-lite0"
SEEDS = (0, 1, 2)
RIDGES = (300, 1000, 3000, 10000)
HEAD = {"specialist.epochs": 5, "specialist.momentum": 0.9, "tangent.epochs": 50, "projection.epochs": 50}
# Settings that are chosen on the validation split, for each method; the first one is the default.
CHOICES: dict[str, list[dict[str, Any]]] = {
    "ncm": [{}],
    "ridge": [{"specialist.options.ridge": ridge} for ridge in RIDGES],
    "ranpac": [
        {"specialist.options.width": width, "specialist.options.ridge": ridge}
        for width in (2000, 5000)
        for ridge in RIDGES
    ],
    "er": [{**HEAD, "specialist.lr": lr} for lr in (0.01, 0.03, 0.1)],
    "derpp": [{**HEAD, "specialist.lr": lr} for lr in (0.01, 0.03)],
    "itl": [{**HEAD, "specialist.lr": lr, "tangent.lr": lr} for lr in (0.01, 0.03, 0.1)],
}


def itl(*words: str, cache: Path, quiet: bool = False) -> tuple[float, str, int]:
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
        out = Path(folder) / "run" if args.records is None else Path(args.records) / f"{method}-{split}-{seed}"
        if split == "validation":
            out = Path(folder) / "run"
        more = ["--method", method, "--seed", str(seed), "--split", split, "--out", str(out)]
        return json.loads(itl(*options, *more, *words, cache=args.cache)[1])


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    """Class-IL and Task-IL of every method, with settings chosen on the validation split at seed 0."""
    rows = {}
    for method in args.methods.split(",") if args.methods else CHOICES:
        scored = [(run(args, method, choice, 0, "validation")["class_il"], choice) for choice in CHOICES[method]]
        _, best = max(scored, key=lambda pair: pair[0])
        results = [run(args, method, best, seed, "test") for seed in SEEDS]
        rows[method] = {
            "validation": [{"class_il": score, "settings": choice} for score, choice in scored],
            "settings": best,
            "class_il": [result["class_il"] for result in results],
            "task_il": [result["task_il"] for result in results],
            "versions": results[0]["versions"],
        }
        print(method, best, rows[method]["class_il"], flush=True)
    return rows


def stream(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of `itl run` on the whole stream with the default method for frozen features, from an empty cache."""
    start = time.monotonic()
    result = run(args, "ranpac", {}, 0, "test")
    return {"seconds": time.monotonic() - start, "class_il": result["class_il"], "parts": result["seconds"]}


def make_folders(args: argparse.Namespace, target: Path, lessons: int, classes: int, images: int) -> list[str]:
    """Folders of lessons with links to the images of TinyImageNet's first classes."""
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
}


def lessons(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy and seconds per lesson of ten classes in five lessons of 100 images per class."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folders = make_folders(args, root / "images", 5, 2, 100)
        every = root / "joint"
        for one in folders:
            shutil.copytree(one, every, dirs_exist_ok=True)
        for name, options in VARIANTS.items():
            cache, model = root / f"cache {name}", root / f"model {name}"
            given = [str(every)] if name.startswith("joint") else folders
            seconds, reports = [], []
            for one in given:
                spent, out, _ = itl("learn", str(model), one, "--json", *options, cache=cache)
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
        cached, _, peak = itl("learn", model, folders[1], "--json", cache=cache)
        return {"first": first, "later": later, "later with cached features": cached, "peak_bytes": peak}


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
    parser.add_argument("--records", help="folder for the runs on the test split")
    parser.add_argument("--cache", type=Path, help="keep the cache of features here")
    parser.add_argument("--out", default="benchmarks/results/backbones")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.cache = args.cache or Path(folder)
        result: dict[str, Any] = {"command": " ".join(sys.argv), "threads": os.environ.get("OMP_NUM_THREADS")}
        result |= environment(choose_engine("cpu").device)
        result["result"] = PARTS[args.part](args)
    target = Path(args.out)
    target.mkdir(parents=True, exist_ok=True)
    name = f"{args.part}-{args.size}" if args.part in ("few", "accuracy", "stream") else args.part
    (target / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["result"], indent=1))


if __name__ == "__main__":
    main()
