"""Measure calibration and rejection ("unknown") of models of own images: CIFAR-10, with some classes never taught.

    python benchmarks/unknown.py --cifar cifar-10-batches-bin --out FILE
    python benchmarks/unknown.py --folders PHOTOS --out FILE  # one sub-folder of images per class
    python benchmarks/unknown.py --folders tiny-imagenet-200/train --classes 20 --out FILE  # each seed draws 20 of them

FILE gets one more line of JSON for each seed.

Each case teaches some classes with `itl.apps.teaching.Teacher`, as `itl learn` does, in two lessons. A fifth of the
images is held out for the calibration. Other images, which the model has never seen, test it. Images of the taught
classes measure accuracy, expected calibration error and false rejections. Images of the other classes measure how many
are rejected. For CIFAR-10, these are official test images. `--epochs` shortens training from scratch, and `--pairs`
measures instead what happens if any two classes of CIFAR-10 are never taught.

The expected calibration error of a few images is large even if all probabilities are right: `error_by_chance` is its
mean for images whose predictions are correct exactly as often as their confidence says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from itl.apps.images import find_images
from itl.apps.model.evaluation import EvaluationResult, evaluate_predictions, rejection_curve
from itl.apps.model.input_format import read_model_images
from itl.apps.teaching import Teacher, TeachingOptions
from itl.results.environment import environment
from itl.streams import Images

CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BACKBONE = "efficientnet-lite0"
# Taught and never taught classes of CIFAR-10. In the last case each class that is never taught resembles a taught one.
CIFAR_CASES = {
    "vehicles, never animals": ("airplane automobile ship truck", "bird cat deer dog frog horse"),
    "animals, never vehicles": ("bird cat deer dog frog horse", "airplane automobile ship truck"),
    "eight classes, never cat and truck": (
        "airplane automobile bird deer dog frog horse ship",
        "cat truck",
    ),
}
DRAWS = 1000  # of `error_by_chance`
ImagesByClass = dict[str, list[Path]]


def write_cifar(source: Path, target: Path, train: int, test: int, seed: int) -> tuple[ImagesByClass, ImagesByClass]:
    """Write images of the binary version of CIFAR-10 as PNG files: training and test images by class, at random."""
    splits, rng = [], np.random.default_rng(seed)
    for name, count in (("data_batch_1", train), ("test_batch", test)):
        rows = np.fromfile(source / f"{name}.bin", np.uint8).reshape(-1, 3073)
        files: ImagesByClass = {}
        for label, class_name in enumerate(CIFAR_CLASSES):
            folder = target / name / class_name
            folder.mkdir(parents=True)
            for k, row in enumerate(rng.permutation(rows[rows[:, 0] == label])[:count]):
                Image.fromarray(row[1:].reshape(3, 32, 32).transpose(1, 2, 0)).save(folder / f"{k:04d}.png")
            files[class_name] = sorted(folder.iterdir())
        splits.append(files)
    return splits[0], splits[1]


def cifar_pairs() -> dict[str, tuple[str, str]]:
    """Cases in which two classes of CIFAR-10 are never taught."""
    return {
        f"never {first} and {second}": (
            " ".join(name for name in CIFAR_CLASSES if name not in (first, second)),
            f"{first} {second}",
        )
        for first, second in itertools.combinations(CIFAR_CLASSES, 2)
    }


def split_folders(
    source: Path, classes: int | None, train: int, test: int, seed: int
) -> tuple[ImagesByClass, ImagesByClass]:
    """Training and test images of `classes` sub-folders of a folder, or of all, chosen at random."""
    rng = np.random.default_rng(seed)
    folders = sorted(path for path in source.iterdir() if path.is_dir())
    if classes is not None:
        folders = sorted(folders[k] for k in rng.permutation(len(folders))[:classes])
    splits: tuple[ImagesByClass, ImagesByClass] = ({}, {})
    for folder in folders:
        files = find_images(folder)[0]
        chosen = [files[k] for k in rng.permutation(len(files))]
        splits[0][folder.name], splits[1][folder.name] = chosen[:train], chosen[train : train + test]
    return splits


def teach(work: Path, taught: list[str], train: ImagesByClass, options: TeachingOptions) -> Teacher:
    """Teach the first half of the classes, then the second half; a link stands for each image."""
    lessons = []
    for number, names in enumerate((taught[: len(taught) // 2], taught[len(taught) // 2 :])):
        for name in names:
            folder = work / f"lesson-{number}" / name
            folder.mkdir(parents=True)
            for file in train[name]:
                os.symlink(file.resolve(), folder / file.name)
        lessons.append(work / f"lesson-{number}")
    teacher = Teacher(work / "model", lessons, options)
    for result in teacher.lesson_results():
        teacher.teach(result)
    return teacher


def error_by_chance(result: EvaluationResult) -> float:
    """The mean calibration error, in percent, that chance alone causes if every confidence is right."""
    rng = np.random.default_rng(0)
    gaps = [
        count * np.abs(rng.binomial(count, confidence, DRAWS) / count - confidence).mean()
        for count, confidence, _ in result.bins
    ]
    return 100 * float(sum(gaps)) / max(result.images, 1)


def measure(teacher: Teacher, taught: list[str], never: list[str], test: ImagesByClass) -> dict[str, Any]:
    """Accuracy, calibration error and rejections on images that the model has not seen."""
    model = teacher.model
    assert model is not None

    def classify(names: list[str]) -> tuple[Any, list[str]]:
        files = [(file, name) for name in names for file in test[name]]
        decoded = read_model_images(model, [file for file, _ in files])
        if model.learner.extractor is not None:  # compute the features once for all cases
            model.learner.extractor.add(Images(decoded.pixels, torch.zeros(len(decoded.pixels), dtype=torch.int64)))
        return model.classify(decoded.pixels), [files[k][1] for k in decoded.indices]

    known, labels = classify(taught)
    others, _ = classify(never)
    result = evaluate_predictions(model.classes, known.probabilities, labels)
    correct = known.labels == np.array(labels)

    def rejected_at_5_percent(scores: np.ndarray, other_scores: np.ndarray) -> float:
        return 100 * float((other_scores < np.quantile(scores, 0.05)).mean())

    return {
        "held_out": model.calibration.images,
        "temperature": model.calibration.temperature,
        "score": model.calibration.score,
        "accuracy": result.accuracy,
        "confidence": result.confidence,
        "calibration_error": result.calibration_error,
        "error_by_chance": error_by_chance(result),
        "false_rejections": 100 * float(known.unknown.mean()),
        "never_taught_rejected": 100 * float(others.unknown.mean()),
        "never_taught_confidence": 100 * float(others.probabilities.max(1).mean()),
        "curve": rejection_curve(known.scores, correct),
        # For comparison, with a threshold that rejects exactly 5 % of these test images:
        "rejected_by_own_score": rejected_at_5_percent(known.scores, others.scores),
        "rejected_by_probability": rejected_at_5_percent(known.probabilities.max(1), others.probabilities.max(1)),
    }


def cases(args: argparse.Namespace, work: Path, seed: int) -> Any:
    """Name, taught and never taught classes, training and test images of every case."""
    if args.cifar is not None:
        train, test = write_cifar(args.cifar, work / "cifar", args.train, args.test, seed)
        for name, (taught, never) in (cifar_pairs() if args.pairs else CIFAR_CASES).items():
            yield name, taught.split(), never.split(), train, test
        return
    train, test = split_folders(args.folders, args.classes, args.train, args.test, seed)
    names = [sorted(train)[k] for k in np.random.default_rng(seed).permutation(len(train))]
    half = len(names) // 2
    yield args.folders.name, names[:half], names[half:], train, test


def main() -> None:
    """Measure every case with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--cifar", type=Path)
    source.add_argument("--folders", type=Path)
    parser.add_argument("--classes", type=int, help="sub-folders of --folders to draw; default: all")
    parser.add_argument("--train", type=int, default=125, help="images per class, of which a fifth is held out")
    parser.add_argument("--test", type=int, default=100, help="test images per class")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pairs", action="store_true", help="leave out all pairs of classes of CIFAR-10")
    parser.add_argument("--scratch", action="store_true", help="train from scratch instead of on a backbone")
    parser.add_argument("--epochs", type=int, help="epochs of a lesson from scratch")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings = {} if args.epochs is None else {"specialist.epochs": args.epochs}
    for seed in map(int, args.seeds.split(",")):
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, taught, never, train, test) in enumerate(cases(args, Path(folder), seed)):
                own = {"size": 32} if args.scratch else {"backbone": BACKBONE, "method": "ridge"}
                options = TeachingOptions(seed=seed, device="cpu", settings=settings, **own)
                teacher = teach(Path(folder) / str(number), taught, train, options)
                rows.append({"case": name, "seed": seed, **measure(teacher, taught, never, test)})
                print(json.dumps(rows[-1]), flush=True)
        record = {"command": " ".join(sys.argv), "rows": rows, **environment(torch.device("cpu"))}
        with args.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
