"""The state of the Seq-CIFAR-10 reproduction: the tables of three pages, from the records.

python benchmarks/reproduction.py            print them
python benchmarks/reproduction.py --write    put them into docs/reproduction.md, README.md and results/README.md

Every published cell has one mark, "within 1 σ": yes if our mean is at least the published mean minus one published
standard deviation, in both Class-IL and Task-IL. Differences have 95 % confidence intervals over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HOME = Path(__file__).parents[1]
sys.path[:0] = [str(HOME), str(HOME / "src")]

from benchmarks import tinyimagenet  # noqa: E402
from benchmarks.candidates import CHOICES, OPEN_QUESTIONS  # noqa: E402
from benchmarks.cifar10 import ABLATION, BASELINES, ITL, PLAN, SEEDS, WITHOUT_MEMORY  # noqa: E402
from benchmarks.pages import put  # noqa: E402
from benchmarks.paired import gain_text, paired_difference  # noqa: E402
from benchmarks.plan import Plan  # noqa: E402
from benchmarks.runs import runs_below  # noqa: E402
from benchmarks.same_specialists import ablation_sentence, recorded_trials, same_specialists  # noqa: E402
from itl.experiments.config import Config  # noqa: E402
from itl.presets import settings_for  # noqa: E402
from itl.results.published import published  # noqa: E402
from itl.results.render import MARK_NOTE, difference, mark, markdown  # noqa: E402
from itl.results.runs import Run, read_run  # noqa: E402
from itl.results.seed_groups import MeanStd, current_settings, run_settings  # noqa: E402
from itl.results.table import MEASURES, TableRow, build  # noqa: E402
from itl.settings import flatten  # noqa: E402

PAGE = HOME / "docs" / "reproduction.md"
README_METHODS = ("itl", "itl-l")
# Cells whose settings were chosen differently from all others, by method and buffer.
FOOTNOTES = {
    ("itl-l-na", 500): (
        "The settings of `itl-l-na` at 500 images were chosen anew because the first choice had missed its target on "
        "the test split. They use DER++ weights (α .1, β .5) that the paper does not use at this size. The cell passed "
        "an earlier, more lenient mark by 2 of 30,000 predictions; it does not pass this one. Since then it has the "
        "settings of `itl-l`, which have not been run on the test split yet."
    )
}
# The variant that the paper's ablation and the open questions are compared with: these runs were made with SGD.
BASES = {"itl": "sgd"}
VARIANT_DESCRIPTIONS = {
    "sgd": "tangent learning by SGD, projection with the squared error",
    "reservoir": "a reservoir instead of a stratified memory",
    "plain": "no AutoAugment, neither on tasks nor on the memory",
    "all-layers": "tangent learning of all layers, not the last two",
    "over-task": "projection over the task (3 epochs), not the memory",
    "joined": "one forward pass for the specialist's two batches",
    "fine-tuned": "full fine-tuning on the memory, not tangent learning",
}


class RecordedTable:
    """The rows of `itl table` for the runs on the test split: published cells with ours, and variants of ours."""

    def __init__(self, runs: Sequence[Run], plan: Plan = PLAN) -> None:
        self.table, self.plan = build(runs, stream=plan.stream), plan
        sections = self.table.sections
        cells = ("published", "unpublished")
        self.cells = [row for section in sections if section.kind in cells for row in section.rows]
        self.variants = [row for section in sections if section.kind == "variant" for row in section.rows]

    def row(self, method: str, buffer: int | None, variant: str | None = None) -> TableRow | None:
        """The row of a method and buffer (None: any), preferring current settings, then more seeds."""
        rows = self.cells if variant is None else self.variants
        found = [row for row in rows if row.method == method and buffer in (None, row.buffer)]
        if variant is not None:
            found = [row for row in found if row.ours and row.ours.metadata.get("variant") == variant]
        return max(found, key=lambda row: (has_current_settings(row, self.plan), seed_count(row)), default=None)

    def base(self, method: str) -> tuple[str | None, TableRow | None]:
        """The variant at 200 images that other runs of the method are compared with, and its row."""
        row = self.row(method, 200, BASES[method]) if method in BASES else None
        return (BASES[method], row) if row is not None else (None, self.row(method, 200))


def has_current_settings(row: TableRow, plan: Plan = PLAN) -> bool:
    """Whether our runs have the settings chosen for their cell, or those that their command gives today."""
    if row.ours is None:
        return False
    run, recorded_settings = row.ours.runs[0], run_settings(row.ours.runs[0])
    buffer, variant = int(run.metadata["buffer"]), run.metadata.get("variant")
    if plan.outdated(Config(plan.stream, row.method, buffer, variant=variant), run.metadata):
        return False
    current = settings_for(
        row.method, plan.stream, buffer, current_settings(run.config.get("settings") or {})
    ).model_dump(mode="json")
    return all(recorded_settings.get(name, value) == value for name, value in flatten(current).items())


def seed_count(row: TableRow | None) -> int:
    """The number of seeds of ours."""
    return 0 if row is None or row.ours is None else len(row.ours.seeds)


def seed_text(row: TableRow | None) -> str:
    """The number of seeds, or a dash for none."""
    return str(seed_count(row)) if seed_count(row) else "–"


def our_text(row: TableRow | None, measure: str) -> str:
    """Our mean ± standard deviation; a dash if nothing was run."""
    return "–" if row is None else row.our_score(measure).text()


def verdict(row: TableRow) -> str:
    """The mark of a cell, or why it has none."""
    if row.ours is None:
        return "not run yet"
    if row.published is None:
        return "not in the paper's tables"
    footnote = " ¹" if (row.method, row.buffer) in FOOTNOTES else ""
    planned = len(SEEDS) if row.method in ITL else 1
    return mark(row) + footnote + ("" if seed_count(row) >= planned else ", seeds missing")


def comparison(records: RecordedTable, methods: Iterable[str], buffers: Iterable[int | None]) -> list[str]:
    """A Markdown table of published cells and ours."""
    rows = ["| method | \\|B\\| | Class-IL, published | ours | diff. | Task-IL, published | ours | diff. | seeds |"]
    rows[0] += " within 1 σ |"
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    for buffer, method in itertools.product(buffers, methods):
        row = records.row(method, buffer)
        if row is None:
            continue
        words = [f"`{method}`", "–" if buffer is None else str(buffer)]
        for m in MEASURES:
            words += [
                row.published_score(m).text(),
                our_text(row, m),
                difference(row, m, short=True).replace("±", " ± "),
            ]
        rows.append(f"| {' | '.join([*words, seed_text(row), verdict(row)])} |")
    return rows


def mark_notes() -> list[str]:
    """What the columns of `comparison` mean."""
    return [MARK_NOTE, "", *(f"¹ {text}" for text in FOOTNOTES.values())]


def ablation(records: RecordedTable) -> list[str]:
    """The paper's ablation and ours, and all differences between two of its methods."""
    published_score = {row.method: row.class_il for row in published() if row.source == "ablation"}
    rows = ["| | Class-IL, published | ours | Task-IL, ours | seeds |", "|---|---|---|---|---|"]
    for method in (*ABLATION, "itl"):
        row = records.base(method)[1]
        words = [*(our_text(row, m) for m in MEASURES), seed_text(row)]
        rows.append(f"| `{method}` | {published_score[method]:.2f} | {' | '.join(words)} |")
    return [*rows, *ablation_differences(records, published_score)]


def ablation_differences(records: RecordedTable, published_score: Mapping[str, float]) -> list[str]:
    """All pairs of the ablation: the paper's difference in Class-IL, and ours, paired by seed."""
    rows = []
    for low, high in itertools.combinations((*ABLATION, "itl"), 2):
        below, above = records.base(low)[1], records.base(high)[1]
        ours = [gain(below, above, measure) for measure in MEASURES]
        if ours[0].mean is None:
            continue
        paper = published_score[high] - published_score[low]
        numbers = " | ".join(gain_text(value) for value in ours)
        rows.append(f"| `{high}` − `{low}` | {paper:+.2f} | {numbers} | {agreement(paper, ours[0])} |")
    if not rows:
        return []
    head = ["| difference | Class-IL, published | ours | Task-IL, ours | Class-IL agrees |", "|---|---|---|---|---|"]
    note = "All differences between two of them, paired by seed, with 95 % confidence intervals (Student's t):"
    return ["", note, "", *head, *rows]


def agreement(paper: float, ours: MeanStd) -> str:
    """Whether the interval of our difference lies on the paper's side of zero."""
    if ours.mean is None or ours.interval is None:
        return "too few seeds"
    if abs(ours.mean) <= ours.interval:
        return "undecided"
    return "as in the paper" if (ours.mean > 0) == (paper > 0) else "**opposite to the paper**"


def gain(below: TableRow | None, above: TableRow | None, measure: str = "class_il") -> MeanStd:
    """The difference between two rows over their common seeds, or between their means if they share none."""
    if below is None or above is None or below.ours is None or above.ours is None:
        return MeanStd(None, None, 0)
    return paired_difference(below.ours, above.ours, measure)


def variants(records: RecordedTable, named: Mapping[str, Iterable[str]]) -> list[str]:
    """Variants of methods at 200 images, and their gains over the first row of the method."""
    rows = ["| | with | Class-IL | over the first | Task-IL | seeds |", "|---|---|---|---|---|---|"]
    for method, names in named.items():
        base, first = records.base(method)
        described = {None: "its defaults", **{name: VARIANT_DESCRIPTIONS[name] for name in names}}
        described = {base: "its defaults" if base is None else VARIANT_DESCRIPTIONS[base]} | described
        for variant, words in described.items():
            row = records.row(method, 200, variant)
            more = "" if variant == base else gain_text(gain(first, row))
            numbers = [our_text(row, "class_il"), more, our_text(row, "task_il")]
            rows.append(f"| `{method}` | {' | '.join([words, *numbers, seed_text(row)])} |")
    return rows


def seconds(records: RecordedTable) -> list[str]:
    """Seconds of ITL's runs by stage."""
    rows = ["| method | \\|B\\| | specialist, s | tangent, s | projection, s | total, s | generalist's share |"]
    rows.append("|---|---|---|---|---|---|---|")
    for buffer, method in itertools.product((200, 500, 5120), ITL):
        row = records.row(method, buffer)
        if row is None or row.ours is None:
            continue
        spent, share = row.ours.seconds(), row.ours.generalist_share()
        words = [f"{spent.get(name, 0.0):.1f}" for name in ("specialist", "tangent", "projection", "total")]
        rows.append(f"| `{method}` | {buffer} | {' | '.join(words)} | {100 * (share or 0):.1f} % |")
    return rows if len(rows) > 2 else ["No run yet."]


def generalist_share_alone() -> list[str]:
    """The generalist's share of the time of a run that has the GPU to itself.

    Its stages are bound by latency, so they suffer most from other runs on the same GPU.
    """
    run = read_run(HOME / "benchmarks" / "results" / "h200-runs" / "whole-run-seq-cifar10-itl-200-seed0")
    spent = run.metadata["seconds"]
    share = (spent["tangent"] + spent["projection"]) / spent["specialist"]
    return [
        f"For a run of `itl` alone on the GPU, the share is {100 * share:.1f} %, with 200 images and 120 + 120 epochs",
        "of SGD ([`h200-runs`](../benchmarks/results/h200-runs)). The limit is 10 %.",
        *solved_share_alone(spent["specialist"] / 5),
    ]


def solved_share_alone(specialist_seconds: float) -> list[str]:
    """The same for the solved generalist, from its time alone on the GPU after the last task."""
    times = next(trial["alone"] for trial in recorded_trials() if "alone" in trial)
    tangent, projection = (min(spent[stage] for spent in times) for stage in ("tangent", "projection"))
    share = (tangent + projection) / specialist_seconds
    return [
        f"Solved, as by default at 200 images, it takes {tangent:.1f} + {projection:.1f} s after the last task, alone",
        f"on the GPU: {100 * share:.0f} % of that run's {specialist_seconds:.1f} s per task for the specialist, which",
        "is above the limit.",
    ]


def variants_beyond_paper() -> dict[str, list[str]]:
    """The variants, by method, that go beyond the paper and whose settings were chosen."""
    named: dict[str, list[str]] = {}
    for choice in CHOICES:
        if choice.variant:
            named.setdefault(choice.methods[0], []).append(choice.variant)
    return named


def page(records: RecordedTable) -> str:
    """The tables of docs/reproduction.md."""
    parts = [
        "## Results",
        "",
        "Test split, percent after the last task, mean ± standard deviation over seeds. The records are in",
        "[`results/seq-cifar10`](../results/seq-cifar10); `itl table --stream seq-cifar10` shows their commands.",
        "",
        *comparison(records, ITL, (200, 500, 5120)),
        "",
        *mark_notes(),
        "",
        "**Baselines**, with the published settings:",
        "",
        *comparison(records, [m for m in BASELINES if m not in WITHOUT_MEMORY], (200, 500, 5120)),
        *comparison(records, WITHOUT_MEMORY, (None,))[2:],
        "",
        "**Ablation from the same specialists** at 200 images: Class-IL of generalists that were learned from the kept",
        "specialists of five runs of `itl`, each with settings that were chosen for it on validation images",
        "([record](../benchmarks/results/ablation)). Differences are paired by seed, with 95 % confidence",
        "intervals. `itl-doubled` has twice the budget of tangent learning.",
        "",
        *same_specialists(),
        "",
        "**The paper's ablation** at 200 images, as whole runs of each method, with the generalist trained by SGD:",
        "",
        *ablation(records),
        "",
        "**Open questions of the paper**, at 200 images; gains are paired by seed, with 95 % confidence intervals:",
        "",
        *variants(records, {"itl": OPEN_QUESTIONS}),
        "",
        "**Beyond the paper**, at 200 images:",
        "",
        *variants(records, variants_beyond_paper()),
        "",
        "**Seconds per run**, with several runs at once on one GPU:",
        "",
        *seconds(records),
        "",
        *generalist_share_alone(),
    ]
    return "\n".join(parts)


def summary(records: RecordedTable) -> str:
    """The README's table: two of the paper's methods, as far as they were run, and what the ablation says."""
    head, ruler, *rows = comparison(records, README_METHODS, (200, 500, 5120))
    run = [row for row in rows if not row.endswith("not run yet |")]
    where = "[every cell and how it was run](docs/reproduction.md)"
    if not run:
        return f"The paper's tables on Seq-CIFAR-10 are still to be run: {where}."
    words = ["Seq-CIFAR-10, ResNet-18, 50 epochs per task, percent of the test images. More:", f"{where};"]
    words += ["[all tables and the ablation next to the paper's](results/README.md), with the command of each row."]
    return "\n".join([*words, "", head, ruler, *run, "", MARK_NOTE, *ablation_sentence()])


def full_table(records: RecordedTable) -> str:
    """The tables of results/README.md, as `itl table` prints them, with footnotes."""
    text = markdown(records.table, with_seconds=True).strip()
    for method, buffer in FOOTNOTES:
        text = re.sub(rf"(?m)^(\| {method}(?: \[[^|]*\])?)( \| {buffer} \| \d+\.\d+ ±)", r"\1 ¹\2", text)
    return "\n\n".join([text, *(f"¹ {note}" for note in FOOTNOTES.values())])


def tinyimagenet_page(records: RecordedTable) -> str:
    """The tables of Seq-TinyImageNet on docs/reproduction.md."""
    table = [
        *comparison(records, ("itl", "itl-na", "itl-l", "er"), (200, 500, 5120)),
        *comparison(records, ("joint",), (None,))[2:],
    ]
    if not any(seed_count(row) for row in records.cells):
        return "\n".join(["No run is recorded yet.", "", *table])
    head = [
        "Test split, 50 epochs per task. The records are in",
        "[`results/seq-tinyimagenet`](../results/seq-tinyimagenet);",
        "`itl table --stream seq-tinyimagenet` shows their commands.",
    ]
    return "\n".join(
        [*head, "", *table, "", "**Seconds per run**, two runs at once on one GPU:", "", *seconds(records)]
    )


def committed_records(plan: Plan = PLAN) -> RecordedTable:
    """The records in the repository."""
    return RecordedTable(runs_below(plan.results / "test"), plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put them into the pages that show them")
    records = committed_records()
    if parser.parse_args().write:
        put(PAGE, "cifar10", page(records))
        put(PAGE, "tinyimagenet", tinyimagenet_page(committed_records(tinyimagenet.PLAN)))
        put(HOME / "README.md", "cifar10", summary(records))
        put(HOME / "results" / "README.md", "cifar10", full_table(records))
    else:
        print(page(records))


if __name__ == "__main__":
    main()
