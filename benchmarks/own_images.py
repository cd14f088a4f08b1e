"""Own images: `itl learn` beside what a practitioner would use instead, and more images of known classes.

    python benchmarks/own_images.py prepare cifar10 --data DATA --out IMAGES --classes 8 --each 500 --more 300
    python benchmarks/own_images.py prepare fashion-mnist --data DATA --out IMAGES --classes 10 --each 400
    python benchmarks/own_images.py prepare tinyimagenet --data TINY --out IMAGES --classes 9 --each 300
    python benchmarks/own_images.py compare IMAGES --out FILE  # lessons against joint training and logistic regression
    python benchmarks/own_images.py compare IMAGES --out FILE --backbone efficientnet-lite0
    python benchmarks/own_images.py compare IMAGES --out FILE --scratch  # without a backbone, also for photographs
    python benchmarks/own_images.py known IMAGES --out FILE  # more images of two known classes

IMAGES has the subfolders train, test and, for `known`, more, with one folder of images per class. `prepare` writes such
a folder: DATA is what `itl run --data` takes, TINY a folder `tiny-imagenet-200`. It draws from the training images and
takes the test images from the official test or validation set. FILE gets one more line of JSON.

Everything uses the defaults of `itl learn`, which holds out a fifth of the images; logistic regression uses all images
at once. Needs scikit-image for HOG features. Times are only meaningful on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from itl.engine.device import choose_engine
from itl.results.environment import environment

STREAMS = {"cifar10": "seq-cifar10", "fashion-mnist": "seq-fmnist"}
TEST_IMAGES = 100  # per class
Features = Callable[[list[Path]], np.ndarray]


# ---------------------------------------------------------------------- images


def prepare(args: argparse.Namespace) -> None:
    """Write the folders train, test and more of a data set."""
    classes = _tinyimagenet(args) if args.dataset == "tinyimagenet" else _stream_images(args)
    rng = np.random.default_rng(args.seed)
    for name, (train, test) in list(classes.items())[: args.classes]:
        order = rng.permutation(len(train))
        parts = {"train": order[: args.each], "more": order[args.each : args.each + args.more]}
        for part, rows in parts.items():
            _write(Path(args.out) / part / name, [train[row] for row in rows])
        _write(Path(args.out) / "test" / name, [test[row] for row in rng.permutation(len(test))[:TEST_IMAGES]])


def _stream_images(args: argparse.Namespace) -> dict[str, tuple[list[Any], list[Any]]]:
    """Training and test images of a stream, by class."""
    from itl import streams

    out = {}
    for task in streams.load(STREAMS[args.dataset], root=args.data):
        for label in task.classes:
            sides = []
            for images in (task.train, task.test):
                pixels = images.pixels[images.labels == label].permute(0, 2, 3, 1).numpy()
                sides.append([Image.fromarray(one.squeeze()) for one in pixels])
            out[f"class-{label}"] = (sides[0], sides[1])
    return out


def _tinyimagenet(args: argparse.Namespace) -> dict[str, tuple[list[Any], list[Any]]]:
    """Paths of training and validation images, by class."""
    root = Path(args.data)
    rows = [line.split("\t")[:2] for line in (root / "val" / "val_annotations.txt").read_text().splitlines()]
    out = {}
    for folder in sorted((root / "train").iterdir()):
        test = [root / "val" / "images" / file for file, name in rows if name == folder.name]
        out[folder.name] = (sorted((folder / "images").iterdir()), test)
    return out


def _write(folder: Path, images: list[Any]) -> None:
    """Write images (Pillow images, or paths of files) to a folder."""
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        if isinstance(image, Path):
            (folder / image.name).write_bytes(image.read_bytes())
        else:
            image.save(folder / f"{number:05d}.png")


def _link(classes: list[Path], target: Path) -> str:
    """A folder of classes whose files are hard links."""
    for source in classes:
        (target / source.name).mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            os.link(file, target / source.name / file.name)
    return str(target)


# ---------------------------------------------------------------------- itl


def itl(*words: str) -> tuple[float, Any]:
    """Seconds and JSON output of a command of itl."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "itl", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return time.monotonic() - start, json.loads(done.stdout)


def evaluate(model: Path, images: Path) -> dict[str, Any]:
    """Accuracy, accuracy by class and calibration of a model on the test images."""
    _, result = itl("eval", str(model), str(images / "test"))
    return result


def teach(model: Path, folders: list[str], options: list[str]) -> list[float]:
    """Teach lessons; seconds of each."""
    seconds = []
    for number, folder in enumerate(folders):
        seconds.append(itl("learn", str(model), folder, *([] if number else options))[0])
    return seconds


def network_options(args: argparse.Namespace) -> list[str]:
    """Options of `itl learn` for the network."""
    return ["--backbone", args.backbone] if args.backbone else ["--method", "itl"] if args.scratch else []


def lesson_folders(images: Path, root: Path, lessons: int) -> list[str]:
    """The training images in a number of lessons, whose classes follow each other in the order of their names."""
    parts = np.array_split(np.array(sorted((images / "train").iterdir()), dtype=object), lessons)
    return [_link(list(part), root / f"lesson{number}") for number, part in enumerate(parts, 1)]


# ---------------------------------------------------------------------- other classifiers


def hog_and_color(files: list[Path]) -> np.ndarray:
    """HOG of the gray image and histograms of the colors."""
    from skimage.feature import hog

    rows = []
    for file in files:
        image = np.asarray(Image.open(file).convert("RGB"))
        cell = max(4, min(image.shape[:2]) // 8)
        gray = np.asarray(Image.fromarray(image).convert("L"))
        edges = hog(gray, orientations=9, pixels_per_cell=(cell, cell), cells_per_block=(2, 2))
        colors = [np.histogram(image[..., channel], 16, (0, 256), density=True)[0] * 16 for channel in range(3)]
        rows.append(np.concatenate([edges, *colors]))
    return np.stack(rows)


def backbone_features(model: Path) -> Features:
    """Features of the frozen backbone of a model, from images read as the model reads them."""

    def compute(files: list[Path]) -> np.ndarray:
        from itl.apps.model import Model
        from itl.apps.model.channels import read_model_images

        opened = Model.open(model, device="cpu")
        extractor = opened.learner.extractor
        assert extractor is not None, "the backbone is not frozen"
        batches = [read_model_images(opened, files[first : first + 64])[0] for first in range(0, len(files), 64)]
        return np.concatenate([extractor(batch).flatten(1).cpu().numpy() for batch in batches])

    return compute


def logistic_regression(images: Path, features: Features) -> dict[str, Any]:
    """Accuracy of logistic regression on all training images; the penalty is chosen by cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    start = time.monotonic()
    sides = []
    for part in ("train", "test"):
        files = [file for folder in sorted((images / part).iterdir()) for file in sorted(folder.iterdir())]
        sides.append((features(files), [file.parent.name for file in files]))
    (x, y), (test_x, test_y) = sides
    penalties = {"C": np.logspace(-4, 0, 5)}
    classifier = make_pipeline(StandardScaler(), GridSearchCV(LogisticRegression(max_iter=300), penalties, cv=3))
    classifier.fit(x, y)
    return {"accuracy": 100 * float(classifier.score(test_x, test_y)), "seconds": time.monotonic() - start}


# ---------------------------------------------------------------------- parts


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracies and seconds per seed of lessons, joint training, fine-tuning without replay, logistic regression."""
    images, rows = Path(args.images), []
    regressions: dict[str, Any] = {}
    backbone = network_options(args)
    for seed in map(int, args.seeds.split(",")):
        with tempfile.TemporaryDirectory(dir=images) as folder:
            root = Path(folder)
            lessons = lesson_folders(images, root, args.lessons)
            every = [_link(sorted((images / "train").iterdir()), root / "joint")]
            options = [*backbone, "--seed", str(seed)]
            row: dict[str, Any] = {"seed": seed}
            columns = {
                "itl learn": (lessons, []),
                "joint": (every, []),
                "without replay": (lessons, ["--method", "sgd"]),
            }
            for column in args.columns.split(","):
                folders, more = columns[column]
                model = root / f"model {column}"
                seconds = teach(model, folders, [*options, *more])  # the last of two equal options counts
                row[column] = {"seconds": seconds, **evaluate(model, images)}
                print(seed, column, row[column]["accuracy"], seconds, flush=True)
            rows.append(row)
            if not regressions:
                regressions["hog and color"] = logistic_regression(images, hog_and_color)
                if args.backbone and "itl learn" in row:
                    features = backbone_features(root / "model itl learn")
                    regressions["features"] = logistic_regression(images, features)
                print(regressions, flush=True)
    return {"seeds": rows, "logistic regression": regressions}


def known(args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy by class before and after a lesson with more images of the first two classes."""
    images, rows = Path(args.images), []
    backbone = network_options(args)
    for seed in map(int, args.seeds.split(",")):
        with tempfile.TemporaryDirectory(dir=images) as folder:
            root = Path(folder)
            model = root / "model"
            teach(model, lesson_folders(images, root, args.lessons), [*backbone, "--seed", str(seed)])
            before = evaluate(model, images)
            more = _link(sorted((images / "more").iterdir())[:2], root / "more")
            seconds = teach(model, [more], [])
            rows.append({"seed": seed, "seconds": seconds, "before": before, "after": evaluate(model, images)})
            print(seed, before["accuracy"], rows[-1]["after"]["accuracy"], flush=True)
    return {"seeds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    writing = parts.add_parser("prepare")
    writing.add_argument("dataset", choices=[*STREAMS, "tinyimagenet"])
    writing.add_argument("--data", required=True)
    writing.add_argument("--out", required=True)
    for name, default in (("classes", 10), ("each", 300), ("more", 0), ("seed", 0)):
        writing.add_argument(f"--{name}", type=int, default=default)
    for name in ("compare", "known"):
        part = parts.add_parser(name)
        part.add_argument("images")
        part.add_argument("--out", required=True)
        part.add_argument("--backbone")
        part.add_argument("--scratch", action="store_true")
        part.add_argument("--columns", default="itl learn,joint,without replay")  # of compare
        part.add_argument("--seeds", default="0,1,2")
        part.add_argument("--lessons", type=int, default=3)
    args = parser.parse_args()
    if args.part == "prepare":
        prepare(args)
        return
    record: dict[str, Any] = {"command": " ".join(sys.argv), "threads": os.environ.get("OMP_NUM_THREADS")}
    record |= environment(choose_engine("cpu").device)
    record["result"] = {"compare": compare, "known": known}[args.part](args)
    with Path(args.out).open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
