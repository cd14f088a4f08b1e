"""Time of tangent learning, projection and specialists' steps, with one optimization of the engine changed at a time.

python benchmarks/stages.py [--json FILE] [--profile FOLDER] [--only as-it-is,no-ahead] [--repeat 3]

Each variant differs from the engine's defaults in one optimization. The defaults ("as-it-is") are timed first and last.
With `--repeat`, each variant is timed this many times, interleaved, and the median is reported. The generalist has 200
images in memory and is timed on the second task, with the graphs captured on the first, over 60 + 60 epochs as in
`itl bench`. Needs a GPU; on a CPU a small network serves as a dry run.
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
sys.path[:0] = [str(HOME / "src")]

import torch  # noqa: E402

from itl import nets  # noqa: E402
from itl.augment import fused  # noqa: E402
from itl.bench import Workload, engine_timing  # noqa: E402
from itl.engine import concurrency, loop  # noqa: E402
from itl.engine.device import Engine, choose_engine  # noqa: E402
from itl.engine.stage import StepChunk  # noqa: E402
from itl.generalists import round_planner  # noqa: E402
from itl.learner import builder  # noqa: E402
from itl.results import environment  # noqa: E402
from itl.streams import Stream  # noqa: E402

DEFAULTS = "as-it-is"  # name of the variant without a change
SPECIALIST_STEPS = 300  # before the timed stages, so that the norms have running statistics
STAGES = ("tangent", "projection")
# Variants for which specialists are timed too: those that change more than the generalist.
WITH_SPECIALISTS = (DEFAULTS, "views", "norms", "gradients", "search-among")
Variant = Callable[[], Any]  # returns a context manager that applies the change


@contextmanager
def cudnn_search(limit: int | None = None) -> Iterator[None]:
    """Let cuDNN search for algorithms in all steps, not only captured ones; with `limit`, among more algorithms."""
    previous_limit = torch.backends.cudnn.benchmark_limit
    init = Engine.__post_init__

    def init_with_search(self: Engine) -> None:
        init(self)
        torch.backends.cudnn.benchmark = True

    if limit is not None:
        torch.backends.cudnn.benchmark_limit = limit
    with patch.object(Engine, "__post_init__", init_with_search if limit is None else init):
        yield
    torch.backends.cudnn.benchmark_limit = previous_limit


@contextmanager
def no_prefetch_stream() -> Iterator[None]:
    """Prepare the inputs of a round on the stream of the steps."""
    init = loop._Prefetcher.__init__

    def init_without_stream(self: Any, *args: Any) -> None:
        init(self, *args)
        self.stream = None

    with patch.object(loop._Prefetcher, "__init__", init_without_stream):
        yield


@contextmanager
def new_streams() -> Iterator[None]:
    """Create the engine's streams anew inside the context."""
    saved = dict(concurrency._streams)
    concurrency._streams.clear()
    yield
    concurrency._streams.clear()
    concurrency._streams.update(saved)


@contextmanager
def no_priority() -> Iterator[None]:
    """Give the kernels of captured graphs the same priority as all others."""

    def default_priority_streams(device: torch.device) -> concurrency.EngineStreams:
        if device not in concurrency._streams:
            concurrency._streams[device] = concurrency.EngineStreams(*(torch.cuda.Stream(device) for _ in range(3)))
        return concurrency._streams[device]

    with new_streams(), ExitStack() as stack:
        for module in (concurrency, loop):
            stack.enter_context(patch.object(module, "engine_streams", default_priority_streams))
        yield


@contextmanager
def prefetch_on(count: int) -> Iterator[None]:
    """Restrict the preparation of inputs to `count` multiprocessors; 0: no restriction."""
    share = count / torch.cuda.get_device_properties(0).multi_processor_count
    with new_streams(), patch.object(concurrency, "PREFETCH_SHARE", share):
        yield


@contextmanager
def inputs_once() -> Iterator[None]:
    """Reuse the inputs of the first chunk of each shape: times the steps alone, and is no valid training."""
    make_chunk, cache = round_planner.SampleRoundPlanner._chunk, {}

    def cached_chunk(self: Any, rows: Any, draws: Any, sizes: Any) -> StepChunk:
        shape = (self.key[-1], sizes.tobytes())
        if shape not in cache:
            cache[shape] = make_chunk(self, rows, draws, sizes)
        return cache[shape]

    with patch.object(round_planner.SampleRoundPlanner, "_chunk", cached_chunk):
        yield


@contextmanager
def small_budget() -> Iterator[None]:
    """Limit the inputs on the device to 256 MiB, whatever its memory."""

    def choose_small(*args: Any, **kwargs: Any) -> Engine:
        return replace(choose_engine(*args, **kwargs), input_bytes=256 << 20)

    with patch.object(builder, "choose_engine", choose_small):
        yield


def variants() -> dict[str, Variant]:
    """All variants by name; each is measured separately."""
    return {
        "search-everywhere": cudnn_search,
        "search-among-all": lambda: cudnn_search(0),
        "no-ahead": no_prefetch_stream,
        "no-priority": no_priority,
        "inputs-once": inputs_once,
        "ahead-on-all": partial(prefetch_on, 0),
        **{f"ahead-on-{count}": partial(prefetch_on, count) for count in (16, 32, 48, 64)},
        "small-budget": small_budget,
        "long-first-span": lambda: patch.object(round_planner, "FIRST_CHUNK_EPOCHS", ()),
        "first-spans-1-3": lambda: patch.object(round_planner, "FIRST_CHUNK_EPOCHS", (1, 3)),
        "three-rounds": lambda: patch.object(round_planner, "MIN_ROUNDS", 3),
        "parts-of-2048": lambda: patch.object(round_planner, "INFERENCE_BATCH", 2048),
        "parts-of-512": lambda: patch.object(round_planner, "INFERENCE_BATCH", 512),
        "parts-of-256": lambda: patch.object(round_planner, "INFERENCE_BATCH", 256),
        "trunk-by-our-kernel": lambda: patch.object(nets.folded_trunk, "USE_CUDNN_FUSION", False),
        "trunk-layer-by-layer": lambda: patch.object(nets.folded_trunk, "supports", lambda _: False),
        "views-by-pytorch": lambda: patch.object(fused, "fits", lambda *_: False),
        "norms-in-two-kernels": lambda: patch.object(nets.norm, "SINGLE_PASS_MAX_ROWS", 0),
        "gradients-summed-apart": lambda: patch.object(nets.resnet, "fork", lambda x: (x, x)),
    }


def time_generalist(workload: Workload, stream: Stream, **settings: Any) -> dict[str, float]:
    """Milliseconds per step of both stages, and their seconds together."""
    count = 60 if workload.device == "cuda" else 4
    short = {"specialist.steps": SPECIALIST_STEPS, "tangent.epochs": count, "projection.epochs": count, **settings}
    timer = engine_timing.train_learner(workload, stream, "itl", 200, short, tasks=2)
    out = {f"{stage}_ms": timer.ms(stage) for stage in STAGES}
    return {**out, "seconds": sum(timer.seconds(stage) for stage in STAGES)}


def time_specialists(workload: Workload, stream: Stream) -> dict[str, float]:
    """Milliseconds per step of er and of the specialist of itl."""
    er = engine_timing.train_learner(workload, stream, "er", 200, {}, tasks=1)
    short = {"specialist.epochs": 3, "tangent.epochs": 1, "projection.epochs": 1}
    itl = engine_timing.train_learner(workload, stream, "itl", 200, short, tasks=2)
    return {"er_ms": er.ms("specialist"), "itl_specialist_ms": itl.ms("specialist")}


def measure(
    workload: Workload, stream: Stream, only: list[str] | None, repeat: int, log: Callable[[str], None]
) -> dict[str, Any]:
    """Time every variant `repeat` times, the defaults before and after; returns medians and all measurements."""
    plan: list[tuple[str, Variant]] = [(DEFAULTS, nullcontext), *variants().items(), (f"{DEFAULTS}-again", nullcontext)]
    plan = [(name, variant) for name, variant in plan if only is None or name in only]
    time_generalist(workload, stream)  # compiles the kernels
    measured: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeat):
        for name, variant in plan:
            start = time.perf_counter()
            with variant():
                times = time_generalist(workload, stream)
                if name.startswith(WITH_SPECIALISTS):
                    times |= time_specialists(workload, stream)
            measured.setdefault(name, []).append(times)
            text = ", ".join(f"{key} {value:.4f}" for key, value in times.items())
            log(f"{name}: {text} ({time.perf_counter() - start:.0f} s)")
    for size in (50, 64):
        name = f"batches of {size}"
        if only is None or name in only:
            measured[name] = [time_generalist(workload, stream, **{f"{stage}.batch": size for stage in STAGES})]
            log(f"{name}: {measured[name][0]}")
    medians = {name: {key: median(times[key] for times in runs) for key in runs[0]} for name, runs in measured.items()}
    hardware = environment(torch.device(workload.device))
    return {"format": 1, **hardware, "ways": medians, "repeats": repeat, "each": measured}


def write_profiles(workload: Workload, stream: Stream, folder: Path) -> None:
    """Profile the kernels of both stages; writes a table by time and a trace for each stage into `folder`."""
    from torch.profiler import ProfilerActivity, profile

    device = workload.device
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    for stage, other in (STAGES, STAGES[::-1]):
        short = {f"{stage}.epochs": 60 if device == "cuda" else 4, f"{other}.epochs": 1}
        short["specialist.steps"] = SPECIALIST_STEPS
        with profile(activities=activities) as profiler:
            engine_timing.train_learner(workload, stream, "itl", 200, short, tasks=1)
        key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
        text = profiler.key_averages().table(sort_by=key, row_limit=70, max_name_column_width=110)
        (folder / f"profile-{stage}.txt").write_text(text)
        profiler.export_chrome_trace(str(folder / f"trace-{stage}.json.gz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements to this file")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="write profiles of both stages there")
    parser.add_argument("--only", help="names of variants, separated by commas; default: all")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="measurements of each variant; default: 1")
    args = parser.parse_args()
    workload = Workload.for_device(choose_engine("auto").device.type)
    stream = workload.stream()
    only = args.only.split(",") if args.only else None
    measured = measure(workload, stream, only, args.repeat, lambda line: print(line, flush=True))
    if args.json is not None:
        args.json.write_text(json.dumps(measured, indent=1) + "\n")
    if args.profile is not None:
        args.profile.mkdir(parents=True, exist_ok=True)
        write_profiles(workload, stream, args.profile)


if __name__ == "__main__":
    main()
