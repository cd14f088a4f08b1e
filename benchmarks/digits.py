"""The README's table of results on seq-digits, from the raw records: python benchmarks/digits.py [--write]"""

import json
import re
import statistics
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
RESULTS = HOME / "results" / "seq-digits"
ABOUT = {
    "itl": "offline ER, then half-pipe, tangent learning, projection",
    "b": "the same specialist without the generalist",
    "er": "experience replay from a reservoir",
    "sgd": "no memory: the lower bound",
}


def mean_std(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def results(split: str = "test", buffer: int = 50) -> dict[str, list[dict]]:
    """The raw results by method, seeds in order."""
    out: dict[str, list[dict]] = {}
    for path in sorted(RESULTS.glob("**/result.json")):
        result = json.loads(path.read_text())
        if (result["split"], result["buffer"], result["variant"]) == (split, buffer, None):
            out.setdefault(result["method"], []).append(result)
    return out


def table() -> str:
    found = results()
    lines = ["| method | | Class-IL | Task-IL | forgetting |", "|---|---|---|---|---|"]
    for method, about in ABOUT.items():
        runs = found[method]
        cells = (mean_std([r[key] for r in runs]) for key in ("class_il", "task_il", "forgetting"))
        lines.append(f"| `{method}` | {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    text = table()
    if "--write" in sys.argv:
        page = HOME / "README.md"
        new = re.sub(
            r"(<!-- results:digits -->\n).*?(<!-- /results -->)",
            lambda m: f"{m[1]}{CAPTION}\n\n{text}\n{m[2]}",
            page.read_text(),
            flags=re.DOTALL,
        )
        page.write_text(new)
    print(text)


CAPTION = """`seq-digits`: scikit-learn's 8x8 digits in five tasks of two, 50 images in memory; percent on the test
images after the last task, mean ± standard deviation over five seeds, on a CPU. Raw records are in
[`results/seq-digits`](results/seq-digits), `itl run --method METHOD --seeds 0,1,2,3,4` repeats a row, and
[docs/digits.md](docs/digits.md) says how the settings were chosen."""

if __name__ == "__main__":
    main()
