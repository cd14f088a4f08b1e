"""Final accuracy of memory policies: entropy sampling by temperature, coreset by fraction s, and random selection.

The study of the ITL paper's appendix, on seq-digits:

python benchmarks/buffer_policies.py            # run what is missing (interrupted runs continue), print the table
python benchmarks/buffer_policies.py --write    # also draw docs/img/policies.png and update docs/memory.md
python benchmarks/buffer_policies.py --seeds 3,4 --processes 2   # other seeds, two runs at once
python benchmarks/buffer_policies.py --dry      # run nothing
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.pages import put  # noqa: E402
from benchmarks.paired import gain_text, paired_values  # noqa: E402
from benchmarks.runs import result_at, run_all  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.experiments.search.local_backend import LocalBackend  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402

RESULTS = HOME / "results" / "seq-digits"
SEEDS = tuple(range(10))
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)

Curve = dict[str, tuple[float, dict[str, Any]]]  # variant: (x, settings)
CURVES: dict[str, Curve] = {
    "entropy": {f"entropy-t{t:g}": (t, {"memory.policy": "entropy", "memory.temperature": t}) for t in TEMPERATURES},
    "coreset": {f"coreset-s{s:g}": (s, {"memory.policy": "coreset", "memory.fraction": s}) for s in FRACTIONS},
}


def configs(seeds: Sequence[int]) -> Iterator[Config]:
    for seed in seeds:  # seeds in the outer loop, so that an unfinished study has all points
        for variant, (_, settings) in (point for curve in CURVES.values() for point in curve.items()):
            yield Config(seed=seed, settings=settings, variant=variant)


def run_missing(seeds: Sequence[int], processes: int | None) -> None:
    missing = [config for config in configs(seeds) if result_at(RESULTS / "policies" / config.name) is None]
    run_all(missing, RESULTS / "policies", "data", LocalBackend(processes, threads=1, device="cpu"))


def results_of(variant: str | None, method: str = "itl") -> list[dict[str, Any]]:
    """The results of a method (variant None) or of one of its variants, in order of seeds."""
    part, name = ("test", "") if variant is None else ("policies", f"-{variant}")
    part = "reverse" if variant == "reverse" else part
    results = (result_at(RESULTS / part / f"seq-digits-{method}{name}-20-seed{seed}") for seed in SEEDS)
    return [result for result in results if result is not None]


def rows(named: dict[str, list[dict[str, Any]]], first: str) -> str:
    """A table with the difference in Class-IL to the first row, paired by seed, and its 95 % interval."""
    lines = [f"| {first} | Class-IL | difference | Task-IL | forgetting | seeds |", "|---|---|---|---|---|---|"]
    class_il = {name: {r["seed"]: r["class_il"] for r in runs} for name, runs in named.items() if runs}
    reference = next(iter(class_il), None)
    for name, by_seed in class_il.items():
        accuracy, task_il, forgetting = (
            MeanStd.of([r[key] for r in named[name]]).text(1) for key in ("class_il", "task_il", "forgetting")
        )
        difference = "" if name == reference else gain_text(paired_values(by_seed, class_il[reference]))
        lines.append(f"| {name} | {accuracy} | {difference} | {task_il} | {forgetting} | {len(by_seed)} |")
    return "\n".join(lines)


def table() -> str:
    named = {"`stratified` (random)": results_of(None)}
    named |= {f"`entropy`, T = {t:g}": results_of(f"entropy-t{t:g}") for t in TEMPERATURES}
    named |= {f"`coreset`, s = {s:g}": results_of(f"coreset-s{s:g}") for s in FRACTIONS}
    return rows(named, "policy")


def reverse_table() -> str:
    return rows(
        {
            "`itl`": results_of(None),
            "`itl` with `design=reverse`": results_of("reverse"),
            "`b`: the specialist of `itl` alone": results_of(None, "b"),
        },
        "",
    )


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    random = [r["class_il"] for r in results_of(None)]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for axis, name, label in zip(axes, ("entropy", "coreset"), ("temperature", "s"), strict=True):
        curve = CURVES[name]
        xs = [x for x, _ in curve.values()]
        each = [[r["class_il"] for r in results_of(variant)] for variant in curve]
        xs, each = zip(*((x, v) for x, v in zip(xs, each, strict=True) if v), strict=True)
        axis.errorbar(
            xs,
            [statistics.mean(v) for v in each],
            [statistics.stdev(v) if len(v) > 1 else 0.0 for v in each],
            color="#2c5f9e",
            marker="o",
            capsize=3,
            label=name,
        )
        mean, deviation = statistics.mean(random), statistics.stdev(random)
        axis.axhline(mean, color="#2c6e2c", label="random")
        axis.axhspan(mean - deviation, mean + deviation, color="#2c6e2c", alpha=0.12, lw=0)
        axis.set(xlabel=label, title=f"{name}-based sampling")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(TEMPERATURES, [f"{t:g}" for t in TEMPERATURES])
    axes[0].set_ylabel("final Class-IL, %")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="draw the figure and update the page")
    parser.add_argument("--dry", action="store_true", help="run nothing")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds to run, separated by commas")
    parser.add_argument("--processes", type=int, help="runs at once; default: one per core")
    options = parser.parse_args()
    if not options.dry:
        run_missing([int(seed) for seed in options.seeds.split(",")], options.processes)
    if options.write:
        draw(HOME / "docs" / "img" / "policies.png")
        put(HOME / "docs" / "memory.md", "policies", table())
        put(HOME / "docs" / "memory.md", "reverse", reverse_table())
    print(table(), reverse_table(), sep="\n\n")


if __name__ == "__main__":
    main()
