"""Every method on a stream, alone and with the tangent generalist, and the tables of docs/methods.md.

python benchmarks/methods.py [--seeds 0,1] [--processes 2]               run what is not recorded yet, on seq-digits
python benchmarks/methods.py --stream seq-cifar10 --steps 313 --seeds 0 --set tangent.epochs=30 \\
    --set projection.epochs=60 --runs-per-gpu 4 --data data              a shortened benchmark, on a GPU
python benchmarks/methods.py --write                                     run nothing; make the tables

A recorded run is never repeated, and the same command continues an interrupted session. On a CPU each process has one
thread; on a GPU several runs share one process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.pages import put  # noqa: E402
from benchmarks.runs import add_run_options, not_recorded, recorded, run_all, runs_below  # noqa: E402
from itl import presets  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.experiments.search.time_limit import deadline_in  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402
from itl.settings import parse as parse_settings  # noqa: E402

RESULTS = HOME / "results"
PAGE = HOME / "docs" / "methods.md"
TANGENT = {"generalist": "tangent"}
# Methods that include the generalist, and the method that is their specialist alone.
WITH_GENERALIST = {"itl": "b", "itl-l": None}


def names() -> list[str]:
    """The methods without a generalist, and the paper's two (`b` is the specialist of `itl`)."""
    alone = [name for name in presets.METHODS if presets.settings_for(name, None, 200).generalist == "none"]
    return [*(name for name in alone if name != "b"), *WITH_GENERALIST]


def runs_of(name: str) -> list[tuple[str, bool]]:
    """The runs of a method as (method, whether the tangent generalist is added)."""
    if name in WITH_GENERALIST:
        return [(kind, False) for kind in (WITH_GENERALIST[name], name) if kind is not None]
    return [(name, False), (name, True)]


def configs(args: argparse.Namespace) -> list[Config]:
    """The runs of every seed and method, alone and with the generalist."""
    out = []
    for seed in args.seeds:
        for name in args.methods:
            for kind, tangent in runs_of(name):
                variant = "-".join([*([f"steps{args.steps}"] if args.steps else []), *(["tangent"] if tangent else [])])
                own = {**({"specialist.steps": args.steps} if args.steps else {}), **(TANGENT if tangent else {})}
                out.append(
                    Config(
                        args.stream,
                        kind,
                        args.buffer,
                        seed,
                        {**own, **args.settings},
                        variant=variant or None,
                        curves=0,
                    )
                )
    return out


def missing(args: argparse.Namespace) -> list[Config]:
    """The runs that are not recorded yet."""
    return not_recorded(configs(args), RESULTS / args.stream)


# ------------------------------------------------------------------------------------------------------------ tables


def table(stream: str, buffer: int, steps: int | None, seeds: tuple[int, ...]) -> str | None:
    """Class-IL and Task-IL of every method alone and with the generalist; a dash where a seed is missing."""
    found, prefix = recorded(RESULTS / stream), f"steps{steps}" if steps else None
    lines = ["| method | Class-IL | with tangent | Task-IL | with tangent |", "|---|---|---|---|---|"]
    any_run = False
    for name in names():
        tangent = f"{prefix}-tangent" if prefix else "tangent"
        pair = ((name, prefix), (name, tangent))
        if name in WITH_GENERALIST:
            pair = ((WITH_GENERALIST[name], prefix), (name, prefix))
        alone, combined = ([found[k] for seed in seeds if (k := (*kind, buffer, seed)) in found] for kind in pair)
        if not alone and not combined:
            continue
        any_run = True
        cells = [
            MeanStd.of([run[kind] for run in runs]).text(1) if len(runs) == len(seeds) else "–"
            for kind in ("class_il", "task_il")
            for runs in (alone, combined)
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) if any_run else None


def complete_seeds(stream: str, buffer: int) -> tuple[int, ...]:
    """The seeds that are recorded for every method that was run, alone and with the generalist."""
    kinds = {(kind, "tangent" if tangent else None) for name in names() for kind, tangent in runs_of(name)}
    seeds: dict[tuple[str, str | None], set[int]] = {kind: set() for kind in kinds}
    for method, variant, size, seed in recorded(RESULTS / stream):
        if size == buffer and (method, variant) in kinds:
            seeds[method, variant].add(seed)
    return tuple(sorted(set.intersection(*filter(None, seeds.values()))))


def digits() -> str:
    """The section on seq-digits."""
    seeds = complete_seeds("seq-digits", 20)
    rows = table("seq-digits", 20, None, seeds) or "Not run yet."
    return f"{DIGITS.format(seeds=len(seeds))}\n\n{rows}"


def cifar() -> str:
    """The section on the shortened Seq-CIFAR-10; empty if it was not run."""
    rows = table("seq-cifar10", 200, 313, (0,))
    return f"{CIFAR}\n\n{rows}" if rows else ""


def validation() -> str:
    """The settings that were tried for seq-digits on its validation split."""
    lines = ["| method | variant | settings | Class-IL | Task-IL |", "|---|---|---|---|---|"]
    for run in runs_below(RESULTS / "seq-digits" / "methods-validation"):
        result, settings = run.result or {}, run.config["settings"].items()
        changed = ", ".join(f"`{name.removeprefix('specialist.')}={value}`" for name, value in settings)
        scores = f"{result['class_il']:.1f} | {result['task_il']:.1f}"
        lines.append(f"| `{result['method']}` | {result['variant']} | {changed or 'as published'} | {scores} |")
    return f"{VALIDATION}\n\n" + "\n".join(lines)


DIGITS = """## On seq-digits

20 images in memory; percent of the test images after the last task, mean ± standard deviation over {seeds} seeds, on
one CPU thread. "With tangent" is the same method with `--set generalist=tangent`; `itl` includes it, and its specialist
alone is `b`. `python benchmarks/methods.py` runs what is missing. Records:
[`results/seq-digits`](../results/seq-digits)."""
CIFAR = """## On a shortened Seq-CIFAR-10

200 images in memory, one epoch per task (313 steps, a fiftieth of the benchmark's training), 30 + 60 epochs of the
generalist, one seed, on a GPU. These numbers compare the methods with each other, not with published results. One epoch
trains weak specialists. The settings are those of the full benchmark and were not tuned for one epoch; several methods
are better without the generalist. With the generalist's defaults, `er-ace`, `x-der` and `itl-l` diverged. These three
and `gcr` are shown with `tangent.lr=0.01` and `projection.lr=0.03` (each record lists its settings). The runs of
`icarl` are older than the change that excludes the outputs of future classes from its loss. The dash stands for the
specialist of `itl-l` alone, which is `derpp`. Records:
[`results/seq-cifar10/methods`](../results/seq-cifar10/methods)."""


VALIDATION = """## How settings for seq-digits were chosen

Learning rates and loss weights are the published ones unless listed here (the published epochs and batches of Co2L do
not fit tasks of 270 images). The table lists what was compared on the validation split (134 images), with one seed.
Records: [`results/seq-digits/methods-validation`](../results/seq-digits/methods-validation)."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stream", default="seq-digits")
    parser.add_argument("--buffer", type=int)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9")
    parser.add_argument("--methods", help="methods, separated by commas; default: all")
    parser.add_argument("--steps", type=int, help="training steps per task, at most")
    parser.add_argument("--set", dest="pairs", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--processes", type=int, default=1, help="runs at once on a CPU")
    add_run_options(parser)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/methods.md")
    args = parser.parse_args(words)
    args.settings = parse_settings(args.pairs)
    args.seeds = tuple(int(seed) for seed in args.seeds.split(","))
    args.methods = args.methods.split(",") if args.methods else names()
    args.buffer = args.buffer or (20 if args.stream == "seq-digits" else 200)
    return args


def main() -> None:
    args = parse()
    if args.write:
        put(PAGE, "methods", digits())
        put(PAGE, "methods-cifar10", cifar())
        put(PAGE, "methods-validation", validation())
        return
    todo = missing(args)
    print(f"{len(todo)} of {len(configs(args))} runs to do", flush=True)
    if args.list:
        print(*(config.command for config in todo), sep="\n")
        return
    deadline = deadline_in(args.minutes)
    backend = LocalBackend(args.processes, 1, args.runs_per_gpu, args.device, deadline)
    run_all(todo, RESULTS / args.stream / "methods", args.data, backend)


if __name__ == "__main__":
    main()
