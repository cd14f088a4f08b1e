"""What each of the engine's ways gives: tangent learning and projection at 200 images, and specialists' steps.

python benchmarks/stages.py [--json FILE] [--profile FOLDER] [--only as-it-is,no-ahead] [--repeat 3]

Every way is one switch less, or one more, than the engine as it is; "as-it-is" is timed first and last. With `--repeat`
all of them are gone so often, in turn, and each has the median. The generalist is timed at the second task, its graphs
kept from the first, over 60 + 60 epochs as `itl bench` does. A GPU's work; on a CPU it is a rehearsal with a small
network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "benchmarks")]

import torch  # noqa: E402

from itl import nets  # noqa: E402
from itl.augment import fused  # noqa: E402
from itl.bench import Workload, engine_timing  # noqa: E402
from itl.engine import concurrency, loop  # noqa: E402
from itl.engine.device import Engine, choose_engine  # noqa: E402
from itl.engine.stage import StepChunk  # noqa: E402
from itl.generalists import epochs  # noqa: E402
from itl.learner import learner  # noqa: E402
from itl.results import environment  # noqa: E402
from itl.streams import Stream  # noqa: E402

FIRST = "as-it-is"
STEPS = 300  # of a specialist before: the norms' statistics must have seen some images
STAGES = ("tangent", "projection")
Way = Callable[[], Any]  # a context in which the engine goes that way


@contextmanager
def searching(limit: int | None = None) -> Iterator[None]:
    """cuDNN searches everywhere, not for captured steps alone; or among all its algorithms, not the first ten."""
    before = torch.backends.cudnn.benchmark_limit
    init = Engine.__post_init__

    def everywhere(self: Engine) -> None:
        init(self)
        torch.backends.cudnn.benchmark = True

    if limit is not None:
        torch.backends.cudnn.benchmark_limit = limit
    with patch.object(Engine, "__post_init__", everywhere if limit is None else init):
        yield
    torch.backends.cudnn.benchmark_limit = before


@contextmanager
def no_ahead() -> Iterator[None]:
    """A round's inputs are made on the steps' own stream."""
    init = loop._Prefetcher.__init__

    def here(self: Any, *args: Any) -> None:
        init(self, *args)
        self.stream = None

    with patch.object(loop._Prefetcher, "__init__", here):
        yield


@contextmanager
def new_streams() -> Iterator[None]:
    """The engine's own are made anew within."""
    kept = dict(concurrency._streams)
    concurrency._streams.clear()
    yield
    concurrency._streams.clear()
    concurrency._streams.update(kept)


@contextmanager
def no_priority() -> Iterator[None]:
    """The kernels of graphs do not go before others."""

    def plain(device: torch.device) -> concurrency.EngineStreams:
        if device not in concurrency._streams:
            concurrency._streams[device] = concurrency.EngineStreams(*(torch.cuda.Stream(device) for _ in range(3)))
        return concurrency._streams[device]

    with new_streams(), ExitStack() as stack:
        for room in (concurrency, loop):
            stack.enter_context(patch.object(room, "own_streams", plain))
        yield


@contextmanager
def ahead_on(count: int) -> Iterator[None]:
    """What is made ahead has so many multiprocessors; 0: all, as the steps have."""
    share = count / torch.cuda.get_device_properties(0).multi_processor_count
    with new_streams(), patch.object(concurrency, "PREFETCH_SHARE", share):
        yield


@contextmanager
def inputs_once() -> Iterator[None]:
    """A span's inputs are those of the first of its shape: what the steps take by themselves, no way to train."""
    make, kept = epochs.SampleRoundPlanner._span, {}

    def again(self: Any, taken: Any, views: Any, sizes: Any) -> StepChunk:
        shape = (self.key[-1], sizes.tobytes())
        if shape not in kept:
            kept[shape] = make(self, taken, views, sizes)
        return kept[shape]

    with patch.object(epochs.SampleRoundPlanner, "_span", again):
        yield


@contextmanager
def small_budget() -> Iterator[None]:
    """256 MB for a step's inputs, whatever the device has."""

    def small(*args: Any, **kwargs: Any) -> Engine:
        return replace(choose_engine(*args, **kwargs), input_bytes=256 << 20)

    with patch.object(learner, "choose_engine", small):
        yield


def ways() -> dict[str, Way]:
    """By name; each is measured alone."""
    return {
        "search-everywhere": searching,
        "search-among-all": lambda: searching(0),
        "no-ahead": no_ahead,
        "no-priority": no_priority,
        "inputs-once": inputs_once,
        "ahead-on-all": partial(ahead_on, 0),
        **{f"ahead-on-{count}": partial(ahead_on, count) for count in (16, 32, 48, 64)},
        "small-budget": small_budget,
        "long-first-span": lambda: patch.object(epochs, "FIRST_CHUNK_EPOCHS", ()),
        "first-spans-1-3": lambda: patch.object(epochs, "FIRST_CHUNK_EPOCHS", (1, 3)),
        "three-rounds": lambda: patch.object(epochs, "MIN_ROUNDS", 3),
        "parts-of-2048": lambda: patch.object(epochs, "INFERENCE_BATCH", 2048),
        "parts-of-512": lambda: patch.object(epochs, "INFERENCE_BATCH", 512),
        "parts-of-256": lambda: patch.object(epochs, "INFERENCE_BATCH", 256),
        "trunk-by-our-kernel": lambda: patch.object(nets.frozen, "USE_CUDNN_FUSION", False),
        "trunk-layer-by-layer": lambda: patch.object(nets.frozen, "supports", lambda _: False),
        "views-by-pytorch": lambda: patch.object(fused, "fits", lambda *_: False),
        "norms-in-two-kernels": lambda: patch.object(nets.norm, "SINGLE_PASS_MAX_ROWS", 0),
        "gradients-summed-apart": lambda: patch.object(nets.resnet, "twice", lambda x: (x, x)),
    }


def generalist(scale: Workload, stream: Stream, **own: Any) -> dict[str, float]:
    """Seconds and ms a step of both stages."""
    epochs = 60 if scale.device == "cuda" else 4
    few = {"specialist.steps": STEPS, "tangent.epochs": epochs, "projection.epochs": epochs, **own}
    watch = engine_timing.train_learner(scale, stream, "itl", 200, few, tasks=2)
    out = {f"{stage}_ms": watch.ms(stage) for stage in STAGES}
    return {**out, "seconds": sum(watch.seconds(stage) for stage in STAGES)}


def specialists(scale: Workload, stream: Stream) -> dict[str, float]:
    """ms a step of er, and of itl's specialist."""
    watch = engine_timing.train_learner(scale, stream, "er", 200, {}, tasks=1)
    own = {"specialist.epochs": 3, "tangent.epochs": 1, "projection.epochs": 1}
    both = engine_timing.train_learner(scale, stream, "itl", 200, own, tasks=2)
    return {"er_ms": watch.ms("specialist"), "itl_specialist_ms": both.ms("specialist")}


def measure(
    scale: Workload, stream: Stream, only: list[str] | None, repeat: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Every way, and the engine as it is before and after; each so often."""
    plan: list[tuple[str, Way]] = [(FIRST, nullcontext), *ways().items(), (f"{FIRST}-again", nullcontext)]
    plan = [(name, way) for name, way in plan if only is None or name in only]
    generalist(scale, stream)  # kernels are compiled
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeat):
        for name, way in plan:
            since = time.perf_counter()
            with way():
                took = generalist(scale, stream)
                if name.startswith((FIRST, "views", "norms", "gradients", "search-among")):
                    took |= specialists(scale, stream)
            found.setdefault(name, []).append(took)
            words = ", ".join(f"{key} {value:.4f}" for key, value in took.items())
            say(f"{name}: {words} ({time.perf_counter() - since:.0f} s)")
    for size in (50, 64):
        name = f"batches of {size}"
        if only is None or name in only:
            found[name] = [generalist(scale, stream, **{f"{stage}.batch": size for stage in STAGES})]
            say(f"{name}: {found[name][0]}")
    out = {name: {key: median(took[key] for took in every) for key in every[0]} for name, every in found.items()}
    return {"format": 1, **environment(torch.device(scale.device)), "ways": out, "repeats": repeat, "each": found}


def profiled(scale: Workload, stream: Stream, folder: Path) -> None:
    """Both stages' kernels, by time and one after another: a table and a trace for each in `folder`."""
    from torch.profiler import ProfilerActivity, profile

    device = scale.device
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    for stage, other in (STAGES, STAGES[::-1]):
        few = {f"{stage}.epochs": 60 if device == "cuda" else 4, f"{other}.epochs": 1, "specialist.steps": STEPS}
        with profile(activities=kinds) as seen:
            engine_timing.train_learner(scale, stream, "itl", 200, few, tasks=1)
        key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
        text = seen.key_averages().table(sort_by=key, row_limit=70, max_name_column_width=110)
        (folder / f"profile-{stage}.txt").write_text(text)
        seen.export_chrome_trace(str(folder / f"trace-{stage}.json.gz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--profile", type=Path, metavar="FOLDER")
    parser.add_argument("--only", help="names of ways, with commas between; default: all")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="times; default: once")
    args = parser.parse_args()
    scale = Workload.for_device(choose_engine("auto").device.type)
    stream = scale.stream()
    only = args.only.split(",") if args.only else None
    found = measure(scale, stream, only, args.repeat, lambda line: print(line, flush=True))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.profile is not None:
        args.profile.mkdir(parents=True, exist_ok=True)
        profiled(scale, stream, args.profile)


if __name__ == "__main__":
    main()
