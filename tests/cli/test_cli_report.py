"""`itl report`: the files it writes, its errors, and agreement with `itl table`."""

from __future__ import annotations

import html
import json
import re

from support.run_records import fake_run


def text_of(path) -> str:
    """The text of the page, without styles, scripts and tags."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_report_of_one_run_is_written_to_its_folder(quick_itl, tmp_path):
    fake_run(tmp_path / "run", pictures=8)
    done = quick_itl("report", "run")
    assert (done.code, done.out, done.err) == (0, "wrote run/report.html\n", "")
    page = (tmp_path / "run/report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert len(page) < 10_000_000
    assert not re.search(
        r"""(?:src|href)=["']?(?:https?:)?//""", re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)
    )


def test_report_writes_its_page_and_figures_elsewhere(quick_itl, tmp_path):
    fake_run(tmp_path / "run", tasks=2, classes=4, stop=1, stages=("specialist",))  # few figures
    (tmp_path / "elsewhere").mkdir()
    assert quick_itl("report", "run", "--out", "elsewhere/page.html", "--figures", "figures").code == 0
    assert (tmp_path / "elsewhere/page.html").exists()
    assert not (tmp_path / "run/report.html").exists()
    drawn = {path.suffix: sorted(tmp_path.glob(f"figures/*{path.suffix}")) for path in tmp_path.glob("figures/*")}
    assert drawn.keys() == {".pdf", ".png"}
    assert [path.stem for path in drawn[".pdf"]] == [path.stem for path in drawn[".png"]]


def test_report_and_table_show_the_same_numbers(quick_itl, tmp_path):
    for method in ("itl", "b"):
        for seed in (0, 1, 2):
            fake_run(tmp_path / f"runs/{method}{seed}", method=method, seed=seed)
    assert quick_itl("report", "runs").out == "wrote report.html\n"
    words = " ".join(text_of(tmp_path / "report.html").split())
    table = quick_itl("table", "runs", "--format", "markdown", "--hide-missing").out
    for method in ("itl", "b"):
        row = next(line for line in table.splitlines() if line.startswith(f"| {method} "))
        _, _, theirs, ours, difference, _, task_il, _, *_ = [cell.strip() for cell in row.strip("|").split("|")]
        assert f"{method} {ours} {theirs} ({difference}) {task_il}" in words
    assert quick_itl("report", "runs/itl0").code == 0
    one = " ".join(text_of(tmp_path / "runs/itl0/report.html").split())
    result = json.loads((tmp_path / "runs/itl0/result.json").read_text())
    assert f"Class-IL {result['class_il']:.2f} % published 66.05 ± 0.64" in one
    assert f"Forgetting {result['forgetting']:.2f}" in one


def test_report_of_a_damaged_or_foreign_folder_fails(quick_itl, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/config.json").write_text("[1]")
    (tmp_path / "empty").mkdir()
    bad = fake_run(tmp_path / "bad")
    (bad / "predictions.npz").write_bytes(b"PK no zip")
    cut = fake_run(tmp_path / "cut")
    (cut / "result.json").write_text((cut / "result.json").read_text()[:200])
    for args, words in (
        ([], "RUN"),
        (["nowhere"], "nowhere is not a folder"),
        (["empty"], "no run in empty"),
        (["foreign"], "not the configuration of a run"),
        (["bad"], "bad/predictions.npz is damaged"),
        (["cut"], "cut/result.json cannot be read"),
    ):
        done = quick_itl("report", *args)
        assert (done.code, done.out) == (2, ""), (args, done)
        assert words.casefold() in done.err.casefold(), done.err
        assert done.err.count("\n") == 1
    fake_run(tmp_path / "good")
    done = quick_itl("report", "good", "--out", "no/where.html")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot write" in done.err


def test_report_skips_a_damaged_run_and_shows_the_others(quick_itl, tmp_path):
    for seed in (0, 2):
        fake_run(tmp_path / f"runs/good{seed}", seed=seed)
    (fake_run(tmp_path / "runs/bad", seed=1) / "result.json").write_text("{}")
    done = quick_itl("report", "runs")
    assert (done.code, done.out) == (0, "wrote report.html\n")
    assert done.err.count("\n") == 1
    assert "runs/bad/result.json" in done.err


def test_report_takes_missing_images_from_the_dataset(itl, tmp_path):
    from support.cli_process import tiny

    assert itl("run", *tiny(), "--out", "run", "--quiet").code == 0
    sheets = []
    for options in ([], ["--data", "data"]):
        assert itl("report", "run", *options).code == 0
        payload = re.search(r'id="payload">(.*?)</script>', (tmp_path / "run/report.html").read_text(), re.DOTALL)
        assert payload is not None
        charts = json.loads(payload[1])["charts"]
        sheets.append((charts.get("sheet/r0"), charts.get("wrong/r0")))
        (tmp_path / "run/pictures.npz").unlink(missing_ok=True)
    assert sheets[0][0] is not None
    assert sheets[0] == sheets[1]
