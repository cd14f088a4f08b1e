"""Where the reproduction of Seq-CIFAR-10 stands: the tables of three pages, from the records.

python benchmarks/reproduction.py            print them
python benchmarks/reproduction.py --write    put them into docs/reproduction.md, README.md and results/README.md

What a cell must reach is said before it is run: one of ITL's, the published mean less one published standard deviation
(less 1.0 where that is larger), in both measures; `er`, `der`, `derpp` and `joint`, the published mean less 3.0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME / "src"), str(HOME / "benchmarks")]

from candidates import CHOICES, OPEN  # noqa: E402
from cifar10 import ABLATION, BASELINES, ITL, MEMORYLESS, RESULTS, SEEDS, STREAM, outdated  # noqa: E402
from pages import put  # noqa: E402

from itl.experiments.config import Config  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results.published import PublishedResult, published  # noqa: E402
from itl.results.render import NAMES, markdown  # noqa: E402
from itl.results.runs import Run, find_runs  # noqa: E402
from itl.results.seed_groups import MeanStd, run_settings  # noqa: E402
from itl.results.table import MEASURES, TableRow, build  # noqa: E402
from itl.settings import flatten  # noqa: E402

PAGE = HOME / "docs" / "reproduction.md"
HELD = ("er", "der", "derpp", "joint")  # baselines that must come near the published figure
# Of the ablation: the first is to be below the second.
ORDER = (
    *(("b", "b+ff"), ("b", "b+lf"), ("b+ff", "b+hp+lf"), ("b+lf", "b+hp+lf")),
    *(("b+hp+lf", "b+hp+ff+pd"), ("b+hp+ff+pd", "itl")),
)
WORDS = {
    "reservoir": "a reservoir instead of a stratified memory",
    "plain": "no AutoAugment, neither on tasks nor on the memory",
    "all-layers": "the tangent plane over all layers, not the last two",
    "over-task": "projection over the task (3 epochs), not the memory",
    "joined": "one forward for the specialist's two batches",
    "fine-tuned": "full fine-tuning on the memory, not the tangent plane",
}


class Found:
    """What `itl table` makes of the runs on the test split: published cells beside ours, others, and our variants."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.table = build(runs, stream=STREAM)
        sections = self.table.sections
        cells = ("published", "unpublished")
        self.cells = [row for section in sections if section.kind in cells for row in section.rows]
        self.variants = [row for section in sections if section.kind == "variant" for row in section.rows]

    def row(self, method: str, buffer: int | None, variant: str | None = None) -> TableRow | None:
        """That of a method and buffer (None: any), a table's before the ablation's; today's, then the fuller."""
        rows = self.cells if variant is None else self.variants
        mine = [row for row in rows if row.method == method and buffer in (None, row.buffer)]
        if variant is not None:
            mine = [row for row in mine if row.ours and row.ours.metadata.get("variant") == variant]
        return max(mine, key=lambda row: (of_today(row), seeds(row)), default=None)


def of_today(row: TableRow) -> bool:
    """Whether our runs have the settings chosen for their cell, or those that their command gives now."""
    if row.ours is None:
        return False
    run, had = row.ours.runs[0], run_settings(row.ours.runs[0])
    buffer, variant = int(run.metadata["buffer"]), run.metadata.get("variant")
    if outdated(Config(STREAM, row.method, buffer, variant=variant), run.metadata):
        return False
    now = settings_for(row.method, STREAM, buffer, run.config.get("settings")).model_dump(mode="json")
    return all(had.get(name, value) == value for name, value in flatten(now).items())


def seeds(row: TableRow | None) -> int:
    """How many of ours."""
    return 0 if row is None or row.ours is None else len(row.ours.seeds)


def counted(row: TableRow | None) -> str:
    """The same in a table."""
    return str(seeds(row)) if seeds(row) else "–"


def our_text(row: TableRow | None, measure: str) -> str:
    """Our mean ± standard deviation, a dash where nothing was run."""
    return "–" if row is None else row.our_score(measure).text()


def needed(row: PublishedResult, measure: str) -> float | None:
    """The least that our mean must be."""
    mean, std = getattr(row, measure), getattr(row, f"{measure}_std")
    if mean is None or row.method not in (*ITL, *HELD):
        return None
    return float(mean - (3.0 if row.method in HELD else max(std or 0.0, 1.0)))


def verdict(row: TableRow) -> str:
    """Whether a cell has reached what it must."""
    if row.ours is None:
        return "not run yet"
    if row.published is None:
        return "not in the paper's tables"
    asked = {measure: needed(row.published, measure) for measure in MEASURES}
    if all(least is None for least in asked.values()):
        return ""
    short = []
    for measure, least in asked.items():
        mean = row.our_score(measure).mean
        if least is not None and mean is not None and mean < least:
            short.append(f"{NAMES[measure]} {least - mean:.2f} short")
    word = f"**not reached**: {', '.join(short)}" if short else "reached"
    wanted = len(SEEDS) if row.method in ITL else 1
    return word if seeds(row) >= wanted else f"{word} so far"


def against(found: Found, methods: Iterable[str], buffers: Iterable[int | None]) -> list[str]:
    """Rows of published cells beside ours."""
    rows = ["| method | \\|B\\| | Class-IL, published | ours | Task-IL, published | ours | seeds | |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for buffer, method in itertools.product(buffers, methods):
        row = found.row(method, buffer)
        if row is None:
            continue
        words = [f"`{method}`", "–" if buffer is None else str(buffer)]
        for m in MEASURES:
            words += [row.published_score(m).text(), our_text(row, m)]
        rows.append(f"| {' | '.join([*words, counted(row), verdict(row)])} |")
    return rows


def ablation(found: Found) -> list[str]:
    """The paper's ablation beside ours, and whether its order is ours."""
    published_score = {row.method: row.class_il for row in published() if row.source == "ablation"}
    rows = ["| | Class-IL, published | ours | Task-IL, ours | seeds |", "|---|---|---|---|---|"]
    for method in (*ABLATION, "itl"):
        row = found.row(method, 200)
        words = [*(our_text(row, m) for m in MEASURES), counted(row)]
        rows.append(f"| `{method}` | {published_score[method]:.2f} | {' | '.join(words)} |")
    lines = [f"- {line}" for line in (ordered(found, low, high) for low, high in ORDER) if line]
    return [*rows, *(["", *lines] if lines else [])]


def gain(below: TableRow | None, above: TableRow | None) -> tuple[float, float | None] | None:
    """By how much Class-IL is above, and the difference's standard error; none of it where one was not run."""
    low, high = (MeanStd(None, None, 0) if row is None else row.our_score("class_il") for row in (below, above))
    if low.mean is None or high.mean is None:
        return None
    if low.std is None or high.std is None:
        return high.mean - low.mean, None
    return high.mean - low.mean, math.sqrt(low.std**2 / low.count + high.std**2 / high.count)


def ordered(found: Found, low: str, high: str) -> str:
    """Whether one stage more is better, with the difference's standard error; nothing where one was not run."""
    gained = gain(found.row(low, 200), found.row(high, 200))
    if gained is None:
        return ""
    more, error = gained
    if error is None:
        return f"`{high}` over `{low}`: {more:+.1f} (too few seeds for an error)"
    word = "as in the paper" if more > error else "**the other way round**" if more < -error else "within the noise"
    return f"`{high}` over `{low}`: {more:+.1f} ± {error:.1f}, {word}"


def variants(found: Found, named: Mapping[str, Iterable[str]]) -> list[str]:
    """Variants of methods at 200, below the methods' defaults, and what each gains over them."""
    rows = ["| | with | Class-IL | over the defaults | Task-IL | seeds |", "|---|---|---|---|---|---|"]
    for method, names in named.items():
        plain = found.row(method, 200)
        for variant, words in {None: "its defaults", **{name: WORDS[name] for name in names}}.items():
            row = found.row(method, 200, variant)
            more = "" if variant is None else told(gain(plain, row))
            numbers = [our_text(row, "class_il"), more, our_text(row, "task_il")]
            rows.append(f"| `{method}` | {' | '.join([words, *numbers, counted(row)])} |")
    return rows


def told(gained: tuple[float, float | None] | None) -> str:
    """A gain in a table, with its standard error where there is one."""
    if gained is None:
        return "–"
    return f"{gained[0]:+.1f}" + ("" if gained[1] is None else f" ± {gained[1]:.1f}")


def seconds(found: Found) -> list[str]:
    """Where the time of ITL's runs goes."""
    rows = ["| method | \\|B\\| | specialist, s | tangent, s | projection, s | total, s | generalist's share |"]
    rows.append("|---|---|---|---|---|---|---|")
    for buffer, method in itertools.product((200, 500, 5120), ITL):
        row = found.row(method, buffer)
        if row is None or row.ours is None:
            continue
        spent, share = row.ours.seconds(), row.ours.generalist_share()
        words = [f"{spent.get(name, 0.0):.1f}" for name in ("specialist", "tangent", "projection", "total")]
        rows.append(f"| `{method}` | {buffer} | {' | '.join(words)} | {100 * (share or 0):.1f} % |")
    return rows if len(rows) > 2 else ["No run yet."]


def alone() -> list[str]:
    """What the generalist's share is where a run has the GPU for itself: stages bound by latency suffer from others."""
    spent = json.loads((HOME / "benchmarks" / "results" / "h200-whole-run" / "result.json").read_text())["seconds"]
    share = (spent["tangent"] + spent["projection"]) / spent["specialist"]
    return [
        f"With a GPU for itself it is {100 * share:.1f} % in a run of `itl` at 200 images with 120 + 120 epochs",
        "(the defaults: 60 + 120; [`h200-whole-run`](../benchmarks/results/h200-whole-run)). Asked for: 10 % at most.",
    ]


def past() -> dict[str, list[str]]:
    """What goes past the paper: the variants of each method whose settings were chosen."""
    named: dict[str, list[str]] = {}
    for choice in CHOICES:
        if choice.variant:
            named.setdefault(choice.methods[0], []).append(choice.variant)
    return named


def page(found: Found) -> str:
    """All of it."""
    parts = [
        "## Where every cell stands",
        "",
        "Test split, percent after the last task, mean ± standard deviation over seeds. Records are in",
        "[`results/seq-cifar10`](../results/seq-cifar10); `itl table --stream seq-cifar10` shows their commands.",
        "",
        *against(found, ITL, (200, 500, 5120)),
        "",
        "**Baselines**, with the published settings:",
        "",
        *against(found, [m for m in BASELINES if m not in MEMORYLESS], (200, 500, 5120)),
        *against(found, MEMORYLESS, (None,))[2:],
        "",
        "**The ablation** at 200 images, the same specialist throughout:",
        "",
        *ablation(found),
        "",
        "**What the paper leaves open**, at 200 images:",
        "",
        *variants(found, {"itl": OPEN}),
        "",
        "**Past the paper**, at 200 images:",
        "",
        *variants(found, past()),
        "",
        "**Seconds** of a run, several side by side on one GPU:",
        "",
        *seconds(found),
        "",
        *alone(),
    ]
    return "\n".join(parts)


def summary(found: Found) -> str:
    """The README's: what was run of the paper's own methods, of two baselines and of joint training, beside theirs."""
    head, ruler, *cells_ = against(found, [*ITL, "er", "derpp"], (200, 500, 5120))
    cells_ += against(found, ["joint"], (None,))[2:]
    run = [row for row in cells_ if not row.endswith("not run yet |")]
    where = "[where every cell stands](docs/reproduction.md)"
    if not run:
        return f"The paper's tables on Seq-CIFAR-10 are still to be run: {where}."
    words = ["Seq-CIFAR-10, ResNet-18, 50 epochs a task, percent on the test images:", f"{where}, and how it was run;"]
    words += ["[the paper's tables and ablation beside ours](results/README.md), with the command of each row."]
    return "\n".join([*words, "", head, ruler, *run, *beyond(found)])


def beyond(found: Found) -> list[str]:
    """What was reached past the paper, a line each, beside what is published for the method itself."""
    lines = []
    for method, names in past().items():
        plain = found.row(method, 200)
        for name in names:
            row = found.row(method, 200, name)
            if plain is not None and seeds(row):
                numbers = (
                    f"{NAMES[m]} {our_text(row, m)} (published {plain.published_score(m).text()})" for m in MEASURES
                )
                lines.append(f"- `{method}`, {WORDS[name]}: {', '.join(numbers)}; seeds: {seeds(row)}")
    return ["", "Past the paper, with 200 images:", "", *lines] if lines else []


def whole(found: Found) -> str:
    """That of results/: what `itl table` prints."""
    return markdown(found.table, with_seconds=True).strip()


def recorded() -> Found:
    """What the repository holds."""
    return Found(find_runs([RESULTS / "test"])[0] if (RESULTS / "test").exists() else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put them into the pages that show them")
    found = recorded()
    if parser.parse_args().write:
        put(PAGE, "cifar10", page(found))
        put(HOME / "README.md", "cifar10", summary(found))
        put(HOME / "results" / "README.md", "cifar10", whole(found))
    else:
        print(page(found))


if __name__ == "__main__":
    main()
