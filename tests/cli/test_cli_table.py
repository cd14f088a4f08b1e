"""`itl table`: its output and its errors."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from support.run_records import fake_run

HOME = Path(__file__).parents[2]


def test_table_reads_results_in_the_current_folder(quick_itl, tmp_path):
    for seed, level in enumerate((65.0, 67.0)):
        fake_run(tmp_path / f"results/seq-cifar10/test/run{seed}", seed=seed, level=level)
    done = quick_itl("table")
    assert (done.code, done.err) == (0, "")
    (line,) = [line for line in done.out.splitlines() if line.startswith("itl ") and "66.05±0.64" in line]
    assert "66.00±1.41" in line
    assert "-0.05±12.71" in line  # t(0.975, 1) = 12.706, standard error 1
    assert "published standard deviation" in done.out.replace("\n", " ")
    assert "itl run --stream seq-cifar10 --method itl --buffer 200 --seeds 0,1" in done.out
    assert "on NVIDIA H200" in done.out
    assert quick_itl("table", "results").out == done.out
    assert "tg + pd" in quick_itl("table", "--seconds").out
    assert quick_itl("table", "--hide-missing").out.count("not run") == 0 < done.out.count("not run")


def test_table_without_runs_shows_the_published_results(quick_itl, tmp_path):
    (tmp_path / "results").mkdir()  # of another program
    done = quick_itl("table")
    assert done.code == 0
    assert "66.05±0.64 not run" in " ".join(done.out.split())
    assert done.err.count("\n") == 1
    assert "there are no runs in results/ or runs/" in done.err


def test_table_reads_runs_if_results_contains_none(quick_itl, tmp_path):
    fake_run(tmp_path / "runs/one", level=65.0)
    done = quick_itl("table")
    assert (done.code, done.err) == (0, "")
    assert "66.05±0.64 65.00 -1.05" in " ".join(done.out.split())
    fake_run(tmp_path / "results/two", level=66.0)
    assert "66.05±0.64 66.00 -0.05" in " ".join(quick_itl("table").out.split())


def test_damaged_records_in_results_are_reported_and_not_replaced_by_other_runs(quick_itl, tmp_path):
    fake_run(tmp_path / "runs/one", level=65.0)
    (tmp_path / "results/test").mkdir(parents=True)
    (tmp_path / "results/test/records.jsonl").write_text("{}\n")
    done = quick_itl("table")
    assert done.code == 2
    assert "records.jsonl, line 1, is not a run's record" in done.err


def test_table_can_be_printed_as_json_and_written_to_a_file(quick_itl, tmp_path):
    fake_run(tmp_path / "run")
    done = quick_itl("table", "run", "--json", "--hide-missing")
    assert done.err == ""
    assert done.json["sections"][0]["rows"][0]["method"] == "itl"
    written = quick_itl("table", "run", "--format", "latex", "--out", "table.tex")
    assert (written.code, written.out) == (0, "")
    assert "tabular" in (tmp_path / "table.tex").read_text()


def test_table_reports_a_damaged_run_on_stderr(quick_itl, tmp_path):
    fake_run(tmp_path / "results/good")
    bad = fake_run(tmp_path / "results/bad", seed=1)
    (bad / "result.json").write_text("{")
    done = quick_itl("table")
    assert done.code == 0
    assert "66.05±0.64" in done.out
    assert done.err.count("\n") == 1
    assert "results/bad/result.json cannot be read" in done.err


def test_table_reports_errors_in_one_line(quick_itl, tmp_path):
    fake_run(tmp_path / "run")
    for args, words in (
        (["table", "nowhere"], "nowhere is not a folder"),
        (["table", "run", "--split", "train"], "test or validation"),
        (["table", "run", "--stream", "seq-cifar11"], "no runs and no published results for 'seq-cifar11'"),
        (["table", "run", "--format", "latex", "--out", "no/where.tex"], "cannot write"),
    ):
        done = quick_itl(*args)
        assert (done.code, done.out) == (2, ""), args
        assert words.casefold() in done.err.casefold(), done.err
        assert done.err.count("\n") == 1


def test_table_of_the_committed_records_agrees_with_the_docs(quick_itl):
    done = quick_itl("table", HOME / "results", "--json")
    assert done.code == 0
    digits = [s for s in done.json["sections"] if s["stream"] == "seq-digits"]
    assert {row["method"] for row in digits[0]["rows"]} >= {"itl", "b", "er", "sgd"}
    ours = next(row["ours"] for row in digits[0]["rows"] if row["method"] == "itl")
    assert (
        f"{ours['class_il']['mean']:.1f} ± {ours['class_il']['std']:.1f}" in (HOME / "docs" / "digits.md").read_text()
    )


def test_rows_in_the_docs_equal_the_output(quick_itl):
    page = (HOME / "docs" / "report.md").read_text()
    table = quick_itl("table", HOME / "results/seq-digits/test", "--stream", "seq-digits", "--seconds").out
    shown = {line.strip() for line in table.splitlines()}
    rows = [line.strip() for line in page.splitlines() if line.startswith(("b  ", "er  ", "itl  ", "sgd  "))]
    assert len(rows) == 8
    assert set(rows) <= shown


@pytest.mark.parametrize(("width", "published"), [(80, False), (120, True), (200, True)])
def test_table_fits_narrow_terminals(width: int, published: bool) -> None:
    from itl.cli.commands.table import _print_grid
    from itl.results import render
    from itl.results.table import build

    text = io.StringIO()
    grid = render.accuracies(build([], stream="seq-cifar10").sections[0], short=True)
    grid.rows[-1][0] = "itl [" + " ".join(f"tangent.lr={n}" for n in range(10)) + "]"
    _print_grid(Console(width=width, file=text), grid)
    lines = text.getvalue().splitlines()
    assert lines[1].count("diff.") == 2
    assert ("published" in lines[1]) == published
    assert any(line.startswith("gmed (buffer") for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= min(width, 130)
    assert sum("tangent.lr=" in line for line in lines) > 2
