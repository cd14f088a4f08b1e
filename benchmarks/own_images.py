"""Own images: `itl learn` compared with what a practitioner would use instead, and more images of known classes.

    python benchmarks/own_images.py prepare cifar10 --data DATA --out IMAGES --classes 8 --each 500 --more 300
    python benchmarks/own_images.py prepare fashion-mnist --data DATA --out IMAGES --classes 10 --each 400
    python benchmarks/own_images.py prepare tinyimagenet --data TINY --out IMAGES --classes 9 --each 300 --test 250
    python benchmarks/own_images.py compare IMAGES --out FILE  # lessons against joint training and logistic regression
    python benchmarks/own_images.py compare IMAGES --out FILE --backbone efficientnet-lite0
    python benchmarks/own_images.py compare IMAGES --out FILE --scratch  # without a backbone, also for photographs
    python benchmarks/own_images.py known IMAGES --out FILE  # more images of two known classes
    python benchmarks/own_images.py known IMAGES --out FILE --models MODELS  # after the lessons of `compare --models`
    python benchmarks/own_images.py table FILE  # all records of `compare` as a table in Markdown

IMAGES has the subfolders train, test and, for `known`, more, with one folder of images per class. `prepare` writes such
a folder: DATA is what `itl run --data` takes, TINY a folder `tiny-imagenet-200`. It draws from the training images and
takes the test images from the official test or validation set, then from training images that nothing else uses. FILE
gets one more line of JSON for each seed. `prepare --seed` draws other images: give each seed a folder of its own, named
DATASET-SEED, because ridge regression has no other randomness.

Everything uses the defaults of `itl learn`, which holds out a fifth of the images; logistic regression uses all images
at once. `--minutes` changes the time limit of a lesson: on a busy machine the default ends training too soon.
Needs scikit-image for HOG features. Times are only meaningful on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from itl.engine.device import choose_engine
from itl.results.environment import environment

STREAMS = {"cifar10": "seq-cifar10", "fashion-mnist": "seq-fmnist"}
LESSONS = ("itl learn", "joint", "without replay")  # columns of `compare` that `itl learn` trains
SCRATCH = "from scratch"
REGRESSIONS = ("hog and color", "features")  # columns of logistic regression
Features = Callable[[list[Path]], np.ndarray]
TITLES = {  # of the rows of the table, by the folder's name without the seed
    "cifar10": "CIFAR-10, 8 x 500",
    "fashion-mnist": "Fashion-MNIST, 10 x 400",
    "tinyimagenet": "TinyImageNet, 9 x 300",
    "tiny": "TinyImageNet, 9 x 300",  # in older records
}


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
        unused = [train[row] for row in order[args.each + args.more :]]
        tests = [*(test[row] for row in rng.permutation(len(test))), *unused]
        _write(Path(args.out) / "test" / name, tests[: args.test])


def _stream_images(args: argparse.Namespace) -> dict[str, tuple[list[Any], list[Any]]]:
    """Training and test images of a stream, by class."""
    from itl import streams

    out = {}
    for task in streams.load(STREAMS[args.dataset], root=args.data):
        for label in task.classes:
            splits = []
            for images in (task.train, task.test):
                pixels = images.pixels[images.labels == label].permute(0, 2, 3, 1).numpy()
                splits.append([Image.fromarray(one.squeeze()) for one in pixels])
            out[f"class-{label}"] = (splits[0], splits[1])
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
            if not (target / source.name / file.name).exists():
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
    """Teach lessons and return the seconds of each."""
    seconds = []
    for number, folder in enumerate(folders):
        seconds.append(itl("learn", str(model), folder, *([] if number else options))[0])
    return seconds


def learn_options(args: argparse.Namespace, seed: int) -> list[str]:
    """Options of `itl learn` for the first lesson."""
    network = ["--backbone", args.backbone] if args.backbone else ["--method", "itl"] if args.scratch else []
    minutes = [] if args.minutes is None else ["--minutes", str(args.minutes)]
    return [*network, *minutes, "--seed", str(seed)]


@contextmanager
def work_folder(args: argparse.Namespace, seed: int) -> Iterator[Path]:
    """The folder for models and lessons: a temporary one, or the one that keeps them."""
    if args.models:
        yield Path(args.models) / str(seed)
        return
    with tempfile.TemporaryDirectory(dir=args.images) as folder:
        yield Path(folder)


def lesson_folders(images: Path, root: Path, lessons: int) -> list[str]:
    """Folders of `lessons` lessons that divide the training images by class, in alphabetical order."""
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
        from itl.apps.model.input_format import read_model_images

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
    splits = []
    for part in ("train", "test"):
        files = [file for folder in sorted((images / part).iterdir()) for file in sorted(folder.iterdir())]
        splits.append((features(files), [file.parent.name for file in files]))
    (x, y), (test_x, test_y) = splits
    penalties = {"C": np.logspace(-4, 0, 5)}
    classifier = make_pipeline(StandardScaler(), GridSearchCV(LogisticRegression(max_iter=300), penalties, cv=3))
    classifier.fit(x, y)
    return {"accuracy": 100 * float(classifier.score(test_x, test_y)), "seconds": time.monotonic() - start}


# ---------------------------------------------------------------------- parts


def compare(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Accuracies and seconds of lessons, joint training, fine-tuning without replay, and logistic regression."""
    images, row = Path(args.images), dict[str, Any](seed=seed)
    columns = [column for column in args.columns.split(",") if args.backbone or column != "features"]
    with work_folder(args, seed) as root:
        lessons = lesson_folders(images, root, args.lessons)
        every = [_link(sorted((images / "train").iterdir()), root / "all lessons")]
        models = {column: root / column for column in LESSONS}
        for column in columns:
            if column in REGRESSIONS:
                features = hog_and_color if column == "hog and color" else backbone_features(models["itl learn"])
                row[column] = logistic_regression(images, features)
            else:
                replay = ["--method", "sgd"] if column == "without replay" else []  # the last --method counts
                options = [*learn_options(args, seed), *replay]
                seconds = teach(models[column], every if column == "joint" else lessons, options)
                row[column] = {"seconds": seconds, **evaluate(models[column], images)}
            print(seed, column, row[column]["accuracy"], row[column]["seconds"], flush=True)
    return row


def known(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Accuracy by class before and after a lesson with more images of the first two classes."""
    images = Path(args.images)
    with work_folder(args, seed) as root:
        model = root / "known"
        if (root / "itl learn").exists():
            shutil.copytree(root / "itl learn", model)
        else:
            teach(model, lesson_folders(images, root, args.lessons), learn_options(args, seed))
        before = evaluate(model, images)
        more = _link(sorted((images / "more").iterdir())[:2], root / "more")
        seconds = teach(model, [more], [])
        after = evaluate(model, images)
    print(seed, before["accuracy"], after["accuracy"], flush=True)
    return {"seed": seed, "seconds": seconds, "before": before, "after": after}


def accuracies(file: Path) -> dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]]:
    """Results by data and network, column and seed; later records replace earlier ones.

    What does not depend on the network is listed for every network, and is also used of superseded records.
    """
    out: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    hog_results: dict[str, dict[int, dict[str, Any]]] = {}  # by data
    for line in file.read_text().splitlines():
        record = json.loads(line)
        words, result = record["command"].split(), record.get("result")
        if words[:1] != ["benchmarks/own_images.py"] or words[1] != "compare":
            continue
        network = words[words.index("--backbone") + 1] if "--backbone" in words else SCRATCH
        data = re.sub(r"-\d+$", "", Path(words[2]).name)
        title = TITLES.get(data, data)
        columns = out.setdefault((title, network), {"hog and color": hog_results.setdefault(title, {})})
        for row in result["seeds"]:
            shared = result.get("logistic regression", {})  # in older records, of the first seed
            for column in ("hog and color",) if "superseded" in record else (*LESSONS, *REGRESSIONS):
                if column in row or column in shared:
                    columns.setdefault(column, {})[row["seed"]] = row.get(column) or shared[column]
    return out


def table_lines(file: Path) -> Iterator[str]:
    """The records of `compare` in Markdown: mean, standard deviation and number of seeds of each column."""

    def cell(results: dict[int, dict[str, Any]], key: str = "accuracy") -> str:
        values = [result[key] for result in results.values()]
        if not values:
            return "–"
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.1f}{spread} ({len(values)})"

    yield "| data | network | `itl learn` | joint | without replay | HOG and color | features | calibration error |"
    yield "|---|---|---|---|---|---|---|---|"
    for (data, network), columns in sorted(accuracies(file).items()):
        cells = [cell(columns.get(column, {})) for column in (*LESSONS, *REGRESSIONS)]
        error = cell(columns.get("itl learn", {}), "calibration_error")
        yield f"| {' | '.join([data, f'`{network}`' if network != SCRATCH else network, *cells, error])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    writing = parts.add_parser("prepare")
    writing.add_argument("dataset", choices=[*STREAMS, "tinyimagenet"])
    writing.add_argument("--data", required=True)
    writing.add_argument("--out", required=True)
    for name, default in (("classes", 10), ("each", 300), ("more", 0), ("test", 100), ("seed", 0)):
        writing.add_argument(f"--{name}", type=int, default=default)
    for name in ("compare", "known"):
        part = parts.add_parser(name)
        part.add_argument("images")
        part.add_argument("--out", required=True)
        part.add_argument("--backbone")
        part.add_argument("--scratch", action="store_true")
        part.add_argument("--columns", default=",".join((*LESSONS, *REGRESSIONS)))  # of compare
        part.add_argument("--models", help="folder where compare keeps its models, and known finds them")
        part.add_argument("--minutes", type=float, help="maximum time for a lesson")
        part.add_argument("--seeds", default="0,1,2")
        part.add_argument("--lessons", type=int, default=3)
    parts.add_parser("table").add_argument("file", type=Path)
    args = parser.parse_args()
    if args.part == "prepare":
        prepare(args)
        return
    if args.part == "table":
        print("\n".join(table_lines(args.file)))
        return
    for seed in map(int, args.seeds.split(",")):
        record: dict[str, Any] = {"command": " ".join(sys.argv), "threads": os.environ.get("OMP_NUM_THREADS")}
        record |= environment(choose_engine("cpu").device)
        record["result"] = {"seeds": [{"compare": compare, "known": known}[args.part](args, seed)]}
        with Path(args.out).open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
