"""Time of a training step of mammoth, the reference benchmark code, and of ours: `er` and `derpp` on one device.

python benchmarks/mammoth_speed.py CHECKOUT [--device cuda] [--steps 300] [--images 10000] [--json FILE]

CHECKOUT is your own clone of github.com/aimagelab/mammoth, with its requirements installed (and pandas, which some of
its datasets import); nothing is downloaded. Its `main.py` runs unchanged on Seq-CIFAR-10, whose pictures are replaced
by noise. A step is the time from one call of the method to the next, so it includes loading, transforms and the
update; the first steps are not counted. Ours is measured as in `itl bench`: ResNet-18, batches of 32 + 32 images of
32x32 pixels, a memory of 200. Both use their defaults: on a GPU, mammoth computes in float32 without graphs, and itl
in bf16 with captured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

METHODS: dict[str, list[str]] = {"er": [], "derpp": ["--alpha", "0.1", "--beta", "0.5"]}
WARM_UP = 10  # steps that are not counted


class Finished(BaseException):
    """Enough steps were timed."""


def drive(checkout: Path, method: str, device: str, steps: int, images: int, out: Path) -> None:
    """Run the checkout's `main.py` for some steps and write the milliseconds of each; runs in its own process."""
    import numpy as np
    from torchvision.datasets import CIFAR10

    def noise(self: Any, root: str, train: bool = True, transform: Any = None, target_transform: Any = None, **_: Any):
        count = 5 * images if train else 100
        self.root, self.train, self.transform, self.target_transform = root, train, transform, target_transform
        self.data = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
        self.targets = [k % 10 for k in range(count)]

    CIFAR10.__init__, CIFAR10._check_integrity = noise, lambda self: True
    clip: Any = ModuleType("open_clip")  # other datasets of the checkout download a model when they are imported
    clip.create_model_and_transforms = lambda *_, **__: (None, None, None)
    sys.modules["open_clip"] = clip
    sys.path.insert(0, str(checkout))
    sys.argv = ["main.py", "--dataset", "seq-cifar10", "--model", method, "--buffer_size", "200", "--lr", "0.001"]
    sys.argv += ["--seed", "0", "--n_epochs", "1", *METHODS[method]]
    sys.argv += ["--device", "0"] if device == "cuda" else []  # accepts only GPU numbers
    from models.utils.continual_model import ContinualModel  # type: ignore[import-not-found]  # of the checkout

    observe, times, warm_up = ContinualModel.meta_observe, [], min(WARM_UP, steps)

    def timed(self: Any, *args: Any, **options: Any) -> Any:
        times.append(time.perf_counter())
        if len(times) > warm_up + steps:
            raise Finished
        return observe(self, *args, **options)  # waits for the device: it returns the loss as a number

    ContinualModel.meta_observe = timed
    import main as mammoth  # type: ignore[import-not-found]

    with suppress(Finished):
        mammoth.main()
    differences = [1e3 * (after - before) for before, after in pairwise(times)]
    out.write_text(json.dumps(differences[warm_up:]))


def reference_ms(checkout: Path, method: str, args: argparse.Namespace) -> float:
    """Milliseconds per step of the checkout: the median of blocks of ten, because its loader delivers in bursts."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        command = [sys.executable, str(Path(__file__).resolve()), str(checkout), "--drive", method, "--json", str(out)]
        command += ["--device", args.device, "--steps", str(args.steps), "--images", str(args.images)]
        environment = os.environ | ({} if args.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=environment)
        if done.returncode or not out.exists():
            sys.exit(f"{checkout} did not train {method}; are its requirements installed? It printed:\n{done.stderr}")
        times = json.loads(out.read_text())
    if len(times) < args.steps:
        sys.exit(f"{checkout} made {len(times)} of {args.steps} steps; use more --images or fewer --steps")
    block = min(10, len(times))
    return statistics.median(statistics.fmean(times[k : k + block]) for k in range(0, len(times) - block + 1, block))


def our_ms(method: str, args: argparse.Namespace) -> float:
    """Milliseconds per step of the engine, as `itl bench` measures it."""
    from itl.bench.engine_timing import train_learner
    from itl.bench.workload import Workload

    epochs = 4 if args.device == "cuda" else 2
    workload = replace(Workload.for_device("cuda"), device=args.device, images=args.images, epochs=epochs)
    return train_learner(workload, workload.stream(), method, 200, {}, tasks=1).ms("specialist")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=300, help="timed steps of mammoth")
    parser.add_argument("--images", type=int, default=10_000, help="images per task")
    parser.add_argument("--commit", help="commit of a checkout without .git")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    parser.add_argument("--drive", choices=list(METHODS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    checkout = args.checkout.resolve()
    if not (checkout / "models/utils/continual_model.py").is_file():
        parser.error(f"{args.checkout} is not a checkout of mammoth; clone github.com/aimagelab/mammoth")
    if args.drive:
        drive(checkout, args.drive, args.device, args.steps, args.images, args.json)
        return
    import torch

    from benchmarks.pages import print_record
    from itl.results.environment import environment, git_commit

    rows = {}
    for method in METHODS:
        reference, ours = reference_ms(checkout, method, args), our_ms(method, args)
        rows[method] = {"mammoth_ms": reference, "ours_ms": ours, "ratio": reference / ours}
    command = f"python benchmarks/mammoth_speed.py CHECKOUT --device {args.device} --steps {args.steps}"
    record = {
        "command": f"{command} --images {args.images}",
        "mammoth_commit": git_commit(checkout / "main.py") or args.commit,
        "mammoth_packages": {name: version(name) for name in ("kornia", "torchvision", "pillow")},
        **environment(torch.device(args.device)),
        "methods": rows,
    }
    print_record(record, args.json)


if __name__ == "__main__":
    main()
