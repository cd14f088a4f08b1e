"""`benchmarks/reproduction.py`: marks, comparisons, and pages that show the records."""

from __future__ import annotations

import gzip
import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from itl.results.published import published
from itl.results.runs import find_runs
from itl.results.seed_groups import MeanStd
from itl.results.table import TableRow
from support.run_records import fake_run

HOME = Path(__file__).parents[2]
NAMES = runpy.run_path(str(HOME / "benchmarks" / "reproduction.py"))


def published_result(method: str, buffer: int | None = 200) -> Any:
    """A published result of the paper's tables."""
    return next(p for p in published() if (p.stream, p.method, p.buffer) == ("seq-cifar10", method, buffer))


def seed_group(class_il: list[float], task_il: list[float] | None = None) -> Any:
    """A group of our runs with these accuracies, one per seed."""
    values = {"class_il": class_il, "task_il": task_il or [99.0] * len(class_il)}
    run = SimpleNamespace(metadata={"buffer": 200, "settings": {}}, result={}, config={})
    results = [{"class_il": c, "task_il": t} for c, t in zip(values["class_il"], values["task_il"], strict=True)]
    return SimpleNamespace(
        mean=lambda name: MeanStd.of(values[name]), seeds=list(range(len(class_il))), runs=[run], results=results
    )


class FakeTable(NAMES["RecordedTable"]):  # type: ignore[misc]
    """The published results, each with our group of runs of its method."""

    def __init__(self, **groups: Any) -> None:
        super().__init__([])
        self.cells = [replace(row, ours=groups.get(row.method)) for row in self.cells]


@pytest.mark.parametrize(
    ("method", "ours", "verdict"),
    [
        ("itl", seed_group([65.42, 65.41, 65.43]), "yes"),  # published 66.05 ± 0.64
        ("itl", seed_group([65.40, 65.40, 65.40]), "no"),
        ("itl", seed_group([70.0, 70.0, 70.0], [92.7, 92.7, 92.7]), "no"),  # published Task-IL 93.05 ± 0.34
        ("itl", seed_group([66.0]), "yes (1 seed), seeds missing"),
        ("er", seed_group([42.9]), "no (1 seed)"),  # published 44.79 ± 1.86
        ("er", seed_group([43.0]), "yes (1 seed)"),
        ("itl", None, "not run yet"),
    ],
)
def test_mark_requires_one_published_deviation_in_both_measures(method: str, ours: Any, verdict: str) -> None:
    assert NAMES["verdict"](TableRow("seq-cifar10", method, 200, published_result(method), ours)) == verdict


def test_baseline_that_is_not_published_is_shown_without_a_buffer() -> None:
    records = NAMES["committed_records"]()
    line = next(line for line in NAMES["page"](records).splitlines() if line.startswith("| `sgd`"))
    assert [word.strip() for word in line.split("|")[2:4]] == ["–", "–"]
    assert line.endswith("| 1 | not in the paper's tables |")


def test_footnote_is_next_to_the_cell_it_explains() -> None:
    records = NAMES["committed_records"]()
    for made in ("page", "full_table"):
        lines = NAMES[made](records).splitlines()
        (cell,) = [line for line in lines if line.startswith("|") and "¹" in line]
        assert cell.lstrip("| `").startswith("itl-l-na")
        assert "| 500 |" in cell
        assert sum("2 of 30,000 predictions" in line for line in lines) == 1


def test_ablation_lists_all_paired_differences() -> None:
    records = FakeTable(
        **{
            "b": seed_group([57.0, 58.0, 59.0]),
            "b+ff": seed_group([60.0, 61.5, 62.0]),
            "b+lf": seed_group([57.1, 58.9, 58.0]),
            "b+hp+lf": seed_group([56.0, 57.1, 58.0]),
        }
    )
    rows = {line.split(" | ")[0]: line for line in NAMES["ablation"](records) if "−" in line}
    assert len(rows) == 6
    # differences 3, 3.5, 3: mean 3.167, standard deviation 0.2887, t(0.975, 2) = 4.3027
    assert "+2.09 | +3.2 ± 0.7 |" in rows["| `b+ff` − `b`"]
    assert rows["| `b+ff` − `b`"].endswith("| as in the paper |")
    assert rows["| `b+lf` − `b`"].endswith("| undecided |")
    assert rows["| `b+hp+lf` − `b`"].endswith("| **opposite to the paper** |")
    single = FakeTable(b=seed_group([57.0]), itl=seed_group([66.0]))
    assert NAMES["ablation"](single)[-1].endswith("| +9.0 | +0.0 | too few seeds |")


def test_variants_show_their_gain(tmp_path: Path) -> None:
    for seed, class_il in enumerate((65.0, 66.0, 67.0)):
        fake_run(tmp_path / f"plain{seed}", seed=seed, class_il=class_il)
        fake_run(tmp_path / f"open{seed}", seed=seed, class_il=class_il + 3, variant="reservoir")
    fake_run(tmp_path / "alone", class_il=60.0, variant="joined")
    records = NAMES["RecordedTable"](find_runs([tmp_path])[0])
    lines = NAMES["variants"](records, {"itl": ("reservoir", "joined", "plain")})
    cells = [[word.strip() for word in line.split("|")[3:5]] for line in lines[2:]]
    assert cells == [["66.00 ± 1.00", ""], ["69.00 ± 1.00", "+3.0 ± 0.0"], ["60.00", "-5.0"], ["–", "–"]]


def test_ablation_from_the_same_specialists_is_paired_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"split": "test", "alone": []}, {"split": "validation", "rung": "itl", "seed": 0, "task": 5}]
    scores = {"itl": (66.0, 69.0), "b+hp+lf": (64.0, 64.0), "b+hp+ff+pd": (68.0, 70.0)}  # before and after projection
    for (rung, (before, expert)), (seed, noise) in itertools.product(scores.items(), enumerate((0.0, 1.0, 2.5))):
        more = noise * (1.2 if rung == "itl" else 1.0)
        values = {"specialist": 50.0, "generalist": before + more, "expert": expert + more}
        stages = {stage: {"class_il": value} for stage, value in values.items()}
        lines.append({"split": "test", "rung": rung, "candidate": 0, "seed": seed, "task": 5, "stages": stages})
    path = tmp_path / "trials.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    monkeypatch.setattr("benchmarks.same_specialists.RECORD", path)
    text = " ".join(NAMES["ablation_sentence"]())
    # differences 5, 5.2, 5.5: mean 5.233, standard deviation 0.2517, t(0.975, 2) = 4.3027
    assert "3 seeds" in text
    linear = "`itl` is above a linear classifier (+5.2 ± 0.6 points; +6.1 in the paper; +2.2 ± 0.6 before projection)"
    assert f"{linear} and below full fine-tuning (-0.8 ± 0.6; +4.5 in the paper)" in text
    rows = [[word.strip() for word in row.split("|")[2:-1]] for row in NAMES["same_specialists"]()[2:]]
    assert [row[0] for row in rows] == ["`b`", "`b+hp+lf`", "`b+hp+ff+pd`", "`itl`"]
    assert rows[1][1:] == ["65.17 ± 1.26", "65.17 ± 1.26", "+2.2 ± 0.6", "+5.2 ± 0.6"]


def test_methods_are_compared_with_the_variant_that_has_their_settings(tmp_path: Path) -> None:
    for seed, class_il in enumerate((69.0, 69.5, 70.0)):
        fake_run(tmp_path / f"now{seed}", seed=seed, class_il=class_il)
        fake_run(tmp_path / f"sgd{seed}", seed=seed, class_il=class_il - 4, variant="sgd")
        fake_run(tmp_path / f"open{seed}", seed=seed, class_il=class_il - 3, variant="reservoir")
    records = NAMES["RecordedTable"](find_runs([tmp_path])[0])
    assert "| `itl` | 66.35 | 65.50 ± 0.50 |" in "\n".join(NAMES["ablation"](records))
    lines = NAMES["variants"](records, {"itl": ("sgd", "reservoir")})
    cells = [[word.strip() for word in line.split("|")[3:5]] for line in lines[2:]]
    assert cells == [["65.50 ± 0.50", ""], ["69.50 ± 0.50", "+4.0 ± 0.0"], ["66.50 ± 0.50", "+1.0 ± 0.0"]]


def test_page_lists_every_result_even_if_it_was_not_run() -> None:
    text = NAMES["page"](NAMES["RecordedTable"]([]))
    for method in (*NAMES["ITL"], *NAMES["ABLATION"], *NAMES["BASELINES"]):
        assert f"| `{method}` |" in text or method == "sgd"  # the paper has no sgd
    assert text.count("not run yet") == 4 * 3 + 4 * 3 + 1
    assert set(NAMES["VARIANT_DESCRIPTIONS"]) == {
        *NAMES["OPEN_QUESTIONS"],
        *(c.variant for c in NAMES["CHOICES"] if c.variant),
    }


def test_row_prefers_runs_with_current_settings(tmp_path: Path) -> None:
    for name, seed, variant in (
        ("then0", 0, None),
        ("then1", 1, None),
        ("now", 0, None),
        ("variant", 0, "reservoir"),
        ("variant-then", 2, "reservoir"),
    ):
        path = fake_run(tmp_path / name, seed=seed, variant=variant)
        result = json.loads((path / "result.json").read_text())
        result["settings"]["specialist"]["lr"] = 0.01 if "then" in name else 0.1
        (path / "result.json").write_text(json.dumps(result))
    records = NAMES["RecordedTable"](find_runs([tmp_path])[0])
    assert [records.row("itl", 200, variant).ours.seeds for variant in (None, "reservoir")] == [[0], [0]]
    assert records.row("itl", 200).ours.runs[0].path.name == "now"


@pytest.mark.parametrize(
    ("page", "made"), [("docs/reproduction.md", "page"), ("README.md", "summary"), ("results/README.md", "full_table")]
)
def test_pages_show_the_records(page: str, made: str) -> None:
    section = f"<!-- results:cifar10 -->\n{NAMES[made](NAMES['committed_records']())}\n<!-- /results -->"
    assert section in (HOME / page).read_text(), "run python benchmarks/reproduction.py --write"


def test_page_shows_the_records_of_tinyimagenet() -> None:
    made = NAMES["tinyimagenet_page"](NAMES["committed_records"](NAMES["tinyimagenet"].PLAN))
    section = f"<!-- results:tinyimagenet -->\n{made}\n<!-- /results -->"
    assert section in (HOME / "docs" / "reproduction.md").read_text(), "run python benchmarks/reproduction.py --write"


def test_readme_shows_only_results_that_were_run() -> None:
    assert "still to be run" in NAMES["summary"](FakeTable())
    text = NAMES["summary"](FakeTable(itl=seed_group([66.0, 66.5, 67.0], [93.0, 93.0, 93.0])))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("|")[1:3] for row in rows] == [[" `itl` ", f" {size} "] for size in (200, 500, 5120)]
    assert "66.50 ± 0.50" in rows[0]
    assert rows[0].endswith("| 3 | yes |")
