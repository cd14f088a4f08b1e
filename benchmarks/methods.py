"""Every method on a stream, alone and with the tangent generalist; the tables in docs/methods.md from the raw records.

python benchmarks/methods.py [--seeds 0,1,2] [--processes 2]             run what is not recorded yet, on seq-digits
python benchmarks/methods.py --stream seq-cifar10 --steps 313 --seeds 0 --set tangent.epochs=30 \\
    --set projection.epochs=60 --lanes 4 --data data                     a shortened benchmark, on a GPU
python benchmarks/methods.py --write                                     run nothing; make the tables

A run that is recorded is never run again, so that an interrupted session goes on by the same command. On a CPU runs
share the cores, one thread each; on a GPU several run side by side in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "benchmarks")]

from pages import put  # noqa: E402
from runs import not_recorded, on_device, one, recorded  # noqa: E402

from itl import presets  # noqa: E402
from itl.experiments.config import Config  # noqa: E402

RESULTS = HOME / "results"
PAGE = HOME / "docs" / "methods.md"
TANGENT = {"generalist": "tangent"}
WHOLE = {"itl": "b", "itl-l": None}  # these have their generalist already; the method that is their specialist alone


def names() -> list[str]:
    """The methods that are specialists alone, and the paper's two (`b` is the first one's specialist)."""
    alone = [name for name in presets.METHODS if presets.settings_for(name, None, 200).generalist == "none"]
    return [*(name for name in alone if name != "b"), *WHOLE]


def kinds(name: str) -> list[tuple[str, bool]]:
    """The method's runs, as (method, with the tangent generalist on top)."""
    if name in WHOLE:
        return [(kind, False) for kind in (WHOLE[name], name) if kind is not None]
    return [(name, False), (name, True)]


def configs(args: argparse.Namespace) -> list[Config]:
    """One run for each method, alone and with the generalist, and seed; of each method both before the next."""
    out = []
    for seed in args.seeds:
        for name in args.methods:
            for kind, tangent in kinds(name):
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


def place(config: Config) -> Path:
    """Where a run is recorded."""
    return RESULTS / config.stream / "methods" / config.name


def on_cores(todo: list[Config], args: argparse.Namespace) -> None:
    """A process of one thread for each run, so many at once."""
    given = ["--stream", args.stream, "--buffer", str(args.buffer), "--data", args.data, "--device", "cpu"]
    given += ["--steps", str(args.steps)] if args.steps else []
    given += [word for key, value in args.settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]

    def job(config: Config) -> None:
        name = "itl" if config.method == "b" else config.method
        words = [sys.executable, __file__, "--one", config.name, "--methods", name]
        words += ["--seeds", str(config.seed), *given]
        done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        said = done.stdout.strip() or "\n".join(done.stderr.strip().splitlines()[-1:])
        print(said, flush=True)

    with ThreadPoolExecutor(args.processes) as pool:
        list(pool.map(job, todo))


# ------------------------------------------------------------------------------------------------------------ tables


def mean_std(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def table(stream: str, buffer: int, steps: int | None, seeds: tuple[int, ...]) -> str | None:
    """Class-IL and Task-IL of every method alone and with the generalist; a dash where a seed is missing."""
    found, prefix = recorded(RESULTS / stream), f"steps{steps}" if steps else None
    lines = ["| method | Class-IL | with tangent | Task-IL | with tangent |", "|---|---|---|---|---|"]
    any_run = False
    for name in names():
        tangent = f"{prefix}-tangent" if prefix else "tangent"
        pair = ((WHOLE[name], prefix), (name, prefix)) if name in WHOLE else ((name, prefix), (name, tangent))
        alone, under = ([found[key] for seed in seeds if (key := (*one, buffer, seed)) in found] for one in pair)
        if not alone and not under:
            continue
        any_run = True
        cells = [
            mean_std([run[kind] for run in runs]) if len(runs) == len(seeds) else "–"
            for kind in ("class_il", "task_il")
            for runs in (alone, under)
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) if any_run else None


def digits() -> str:
    """The section on seq-digits."""
    rows = table("seq-digits", 20, None, (0, 1, 2)) or "Not run yet."
    return f"{DIGITS}\n\n{rows}"


def cifar() -> str:
    """The section on the shortened Seq-CIFAR-10, where it was run."""
    rows = table("seq-cifar10", 200, 313, (0,))
    return f"{CIFAR}\n\n{rows}" if rows else ""


def validation() -> str:
    """What was tried for seq-digits on its validation split."""
    lines = ["| method | variant | settings | Class-IL | Task-IL |", "|---|---|---|---|---|"]
    for path in sorted((RESULTS / "seq-digits" / "methods-validation").glob("*/result.json")):
        run, config = (json.loads((path.parent / name).read_text()) for name in ("result.json", "config.json"))
        own = ", ".join(f"`{key.removeprefix('specialist.')}={value}`" for key, value in config["settings"].items())
        scores = f"{run['class_il']:.1f} | {run['task_il']:.1f}"
        lines.append(f"| `{run['method']}` | {run['variant']} | {own or 'as published'} | {scores} |")
    return f"{VALIDATION}\n\n" + "\n".join(lines)


DIGITS = """## On seq-digits

20 images in memory, percent on the test images after the last task, mean ± standard deviation over seeds 0, 1 and 2,
one CPU thread; "with tangent" is the same method with `--set generalist=tangent` (`itl` has it, and its specialist
alone is `b`). `python benchmarks/methods.py` runs what is missing; raw records:
[`results/seq-digits`](../results/seq-digits)."""
CIFAR = """## On a shortened Seq-CIFAR-10

200 images in memory, one epoch a task (313 steps, a fiftieth of the benchmark's), 30 + 60 epochs of the generalist, one
seed, on a GPU: these figures compare methods with each other, not with published ones. One epoch makes weak
specialists, and nothing here was fitted to them: the settings are those of the full benchmark, and several methods are
better alone. With the generalist at its defaults the losses of `er-ace`, `x-der` and `itl-l` were not finite, which
stopped them; these three, and `gcr`, are shown with `tangent.lr=0.01` and `projection.lr=0.03` (each record has its
settings). `icarl`'s runs here are from when the outputs of classes still to come counted in its loss. The dash:
`itl-l`'s specialist alone is `derpp`. Raw records: [`results/seq-cifar10/methods`](../results/seq-cifar10/methods)."""


VALIDATION = """## How settings for seq-digits were chosen

Learning rates and weights are the published ones where nothing else is said here (Co2L's epochs and batches would not
fit tasks of 270 images). What was compared on the validation split (134 images), one seed; raw records:
[`results/seq-digits/methods-validation`](../results/seq-digits/methods-validation)."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stream", default="seq-digits")
    parser.add_argument("--buffer", type=int)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", help="with commas between; default: all")
    parser.add_argument("--steps", type=int, help="at most so many a task")
    parser.add_argument("--set", dest="pairs", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", default="data")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true", help="what is missing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    from itl.settings import parse as settings

    args.settings = settings(args.pairs)
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
    if args.one:
        for config in todo:
            if config.name == args.one:
                print(f"{config.name}: {one(config, place(config), args.data, args.device)}")
        return
    print(f"{len(todo)} of {len(configs(args))} runs to do", flush=True)
    if args.list:
        print(*(config.command for config in todo), sep="\n")
        return
    from itl.engine.device import choose_engine

    if choose_engine(args.device).device.type == "cuda":
        on_device(todo, place, args.data, args.device, args.lanes)
    else:
        on_cores(todo, args)


if __name__ == "__main__":
    main()
