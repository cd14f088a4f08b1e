"""The tables of results on seq-digits, from the records.

python benchmarks/digits.py            print them
python benchmarks/digits.py --write    put them into docs/digits.md
"""

import statistics
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks.pages import put  # noqa: E402
from benchmarks.paired import paired_values  # noqa: E402
from benchmarks.runs import runs_below  # noqa: E402
from itl.results.seed_groups import MeanStd  # noqa: E402

RESULTS = HOME / "results" / "seq-digits"
DESCRIPTIONS = {
    "itl": "offline ER, then half-pipe, tangent learning, projection",
    "b+hp+lf": "the same specialist, then half-pipe, fine-tuning of the classifier on the memory",
    "b": "the same specialist without the generalist",
    "er": "experience replay from a reservoir",
    "sgd": "no memory: the lower bound",
}


def results(split: str) -> dict[tuple[str, str | None], list[dict]]:
    """The results in the folder of a split by (method, variant), in order of seeds."""
    out: dict[tuple[str, str | None], list[dict]] = {}
    for run in runs_below(RESULTS / split):
        result = run.result or {}
        out.setdefault((result["method"], result["variant"]), []).append(result)
    return out


def table() -> str:
    found = results("test")
    lines = ["| method | | Class-IL | Task-IL | forgetting |", "|---|---|---|---|---|"]
    for method, description in DESCRIPTIONS.items():
        runs = found[method, None]
        cells = (MeanStd.of([r[key] for r in runs]).text(1) for key in ("class_il", "task_il", "forgetting"))
        lines.append(f"| `{method}` | {description} | {' | '.join(cells)} |")
    return "\n".join(lines)


def comparison() -> str:
    """The difference in Class-IL between `itl` and linear fine-tuning, in a sentence."""
    found = results("test")
    itl, linear = ({r["seed"]: r["class_il"] for r in found[method, None]} for method in ("itl", "b+hp+lf"))
    difference = paired_values(itl, linear)
    verdict = "not above" if (difference.mean or 0.0) < (difference.interval or 0.0) else "above"
    return (
        f"`itl` is {verdict} linear fine-tuning (`b+hp+lf`) on this small stream: the difference in Class-IL is\n"
        f"{difference.mean:+.1f} ± {difference.interval:.1f} points (95 % interval, paired by seed)."
    )


def validation_table() -> str:
    lines = ["| method | variant | Class-IL, seeds | mean | seconds |", "|---|---|---|---|---|"]
    for (method, variant), runs in sorted(results("validation").items(), key=lambda item: str(item[0])):
        each = ", ".join(f"{r['class_il']:.1f}" for r in runs)
        mean = statistics.mean(r["class_il"] for r in runs)
        seconds = statistics.mean(r["seconds"]["total"] for r in runs)
        lines.append(f"| `{method}` | {variant} | {each} | {mean:.1f} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    if "--write" in sys.argv:
        put(HOME / "docs" / "digits.md", "digits", f"{CAPTION}\n\n{table()}\n\n{comparison()}")
        put(HOME / "docs" / "digits.md", "validation", validation_table())
    print(table(), validation_table(), sep="\n\n")


CAPTION = """`seq-digits`: scikit-learn's 8x8 digits in five tasks of two, 20 images in memory; percent on the test
images after the last task, mean ± standard deviation over ten seeds, on one CPU thread. Raw records are in
[`results/seq-digits`](../results/seq-digits).
`itl run --method er --seeds 0,1,2,3,4,5,6,7,8,9` repeats a row: exactly on the same machine with the same number of
threads, and within the noise of seeds elsewhere, because other processors round sums differently."""

if __name__ == "__main__":
    main()
