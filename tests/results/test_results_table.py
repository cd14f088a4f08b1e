"""Published numbers beside ours: nothing mixed, nothing left out without a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from itl import UserError
from itl.presets import METHODS
from itl.results import render
from itl.results.published import SOURCES, published
from itl.results.runs import find_runs, read_run
from itl.results.seed_groups import MeanStd
from itl.results.table import Table, TableRow, build
from support.run_records import fake_run

LATER = {"joint", "agem", "gss", "er-t", "gmed", "metasp", "der", "co2l", "gcr", "cls-er", "er-ace", "x-der"}


def table(place: Path, **options: object) -> Table:
    runs, wrong = find_runs([place])
    return build(runs, damaged=wrong, **options)  # type: ignore[arg-type]


def rows(found: Table, kind: str = "published", **metadata: object) -> list[TableRow]:
    every = [row for section in found.sections if section.kind == kind for row in section.rows]
    return [row for row in every if all(getattr(row, name) == value for name, value in metadata.items())]


def ours(found: Table) -> list[TableRow]:
    return [row for section in found.sections for row in section.rows if row.ours is not None]


def test_mean_and_deviation_are_numpys_over_the_runs_own_numbers(tmp_path: Path) -> None:
    for seed, level in enumerate((65.0, 66.5, 70.1)):
        fake_run(tmp_path / f"run{seed}", seed=seed, level=level)
    (row, ablation) = [row for row in ours(table(tmp_path)) if row.published is not None]
    assert (row.published.source, ablation.published.source) == ("table 1", "ablation")
    numbers = [json.loads((tmp_path / f"run{seed}" / "result.json").read_text())["class_il"] for seed in range(3)]
    got = row.our_score("class_il")
    assert (got.mean, got.std, got.count) == (
        pytest.approx(np.mean(numbers)),
        pytest.approx(np.std(numbers, ddof=1)),
        3,
    )
    points, deviations = row.difference("class_il")
    assert points == pytest.approx(np.mean(numbers) - 66.05)
    assert deviations == pytest.approx((np.mean(numbers) - 66.05) / 0.64)
    assert got.text() == f"{np.mean(numbers):.2f} ± {np.std(numbers, ddof=1):.2f}"
    assert row.ours.command.endswith("--buffer 200 --seeds 0,1,2")
    assert row.ours.hardware == "NVIDIA H200"


def test_one_seed_has_no_deviation_and_one_task_no_forgetting() -> None:
    assert MeanStd.of([3.0]).text() == "3.00"
    assert MeanStd.of([None]).text() == "–"
    assert MeanStd.of([None, 1.0, 2.0]).text() == "1.50 ± 0.71"


def test_variants_splits_settings_buffers_and_orders_are_never_averaged_together(tmp_path: Path) -> None:
    others = [
        {},
        {"variant": "longer"},
        {"split": "validation"},
        {"settings": {"specialist.lr": 0.1}},
        {"buffer": 500},
        {"method": "itl-na"},
        {"stream": "seq-tinyimagenet"},
        {"order_seed": 3},
    ]
    for number, metadata in enumerate(others):
        for seed in (0, 1):
            fake_run(tmp_path / f"{number}-{seed}", seed=seed, **metadata)
    found = [*ours(table(tmp_path)), *ours(table(tmp_path, split="validation"))]
    cells = {tuple(sorted(str(run.path.name) for run in row.ours.runs)) for row in found}
    assert cells == {(f"{number}-0", f"{number}-1") for number in range(len(others))}
    own = rows(table(tmp_path), method="itl", buffer=200, label="specialist.lr=0.1")
    assert {str(run.path.name) for row in own for run in row.ours.runs} == {"3-0", "3-1"}


def test_only_the_method_itself_on_the_test_split_meets_a_published_cell(tmp_path: Path) -> None:
    fake_run(tmp_path / "variant", variant="longer")
    fake_run(tmp_path / "validation", split="validation")
    fake_run(tmp_path / "order", order_seed=1)
    found = table(tmp_path)
    assert all(row.ours is None for row in rows(found))
    assert [row.label for row in rows(found, "variant")] == ["longer"]
    assert [row.label for row in rows(found, "unpublished")] == ["order_seed=1"]
    assert any("not shown: 1 configuration on the validation split" in note for note in found.notes)
    assert len(rows(table(tmp_path, split="validation"), "validation")) == 1


def test_defaults_of_another_day_are_another_cell_and_the_row_says_what_differs(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = fake_run(tmp_path / f"old{seed}", seed=seed)
        result = json.loads((path / "result.json").read_text())
        result["settings"]["specialist"]["lr"] = 0.03
        (path / "result.json").write_text(json.dumps(result))
        path = fake_run(tmp_path / f"new{seed}", seed=seed)
    labels = {row.label: len(row.ours.seeds) for row in rows(table(tmp_path), method="itl", buffer=200) if row.ours}
    assert labels == {"specialist.lr=0.03": 2, "specialist.lr=0.01": 2}


def test_a_setting_that_an_older_record_does_not_know_parts_no_seeds(tmp_path: Path) -> None:
    fake_run(tmp_path / "old", seed=0)
    path = fake_run(tmp_path / "new", seed=1)
    result = json.loads((path / "result.json").read_text())
    result["settings"]["invented_since"] = 3
    (path / "result.json").write_text(json.dumps(result))
    assert {len(row.ours.seeds) for row in ours(table(tmp_path))} == {2}


def test_a_setting_that_the_user_gave_is_not_passed_over_beside_an_older_record(tmp_path: Path) -> None:
    """Nor are two runs averaged that differ because an older one goes with each of them."""
    fake_run(tmp_path / "old", seed=0)
    for seed, own in ((1, {}), (2, {"invented_since": 4}), (3, {})):
        path = fake_run(tmp_path / f"new{seed}", seed=seed, settings=own)
        result = json.loads((path / "result.json").read_text())
        result["settings"].setdefault("invented_since", 5 if seed == 3 else 3)
        (path / "result.json").write_text(json.dumps(result))
    assert {tuple(row.ours.seeds) for row in ours(table(tmp_path))} == {(0, 1), (2,), (3,)}


def test_a_seed_counts_once_and_the_other_run_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fake_run(tmp_path / name, seed=4)
    found = table(tmp_path)
    assert {tuple(row.ours.seeds) for row in ours(found)} == {(4,)}
    assert any(str(tmp_path / "b") in note and "seed 4" in note for note in found.notes)


def test_every_published_cell_is_a_row_and_hiding_them_takes_asking(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    found = table(tmp_path)
    assert [row.published for row in rows(found)].count(None) == 0
    assert {id(row.published) for row in rows(found)} == {id(cell) for cell in published()}
    assert "not run" in render.markdown(found)
    hidden = table(tmp_path, missing=False)
    assert len(ours(hidden)) == sum(len(section.rows) for section in hidden.sections) == 2  # Table 1 and the ablation
    assert "not run" not in render.markdown(hidden)


def test_joint_training_meets_its_cell_whatever_the_buffer(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", method="joint", buffer=0)
    assert [row.method for row in ours(table(tmp_path))] == ["joint"]


def test_the_published_data_names_methods_by_our_names_and_sources_with_references() -> None:
    assert {cell.method for cell in published()} <= METHODS.keys() | LATER
    assert {cell.source for cell in published()} == SOURCES.keys()
    assert len(published()) == len({(c.source, c.stream, c.buffer, c.method) for c in published()})
    assert all(0 < cell.class_il < 100 for cell in published())


# ------------------------------------------------------------------ damaged and foreign folders


def damage(path: Path, **changes: object) -> Path:
    result = json.loads((path / "result.json").read_text())
    for name, value in changes.items():
        result.pop(name) if value is ... else result.update({name: value})
    (path / "result.json").write_text(json.dumps(result))
    return path


DAMAGES = {
    "no format": ({"format": ...}, "no format version"),
    "a later format": ({"format": 99}, "format 99"),
    "no accuracy": ({"class_il": ...}, "'class_il' is missing"),
    "an accuracy of words": ({"class_il": "high"}, "'class_il' is missing or invalid"),
    "not a number": ({"class_il": float("nan")}, "'class_il' is missing or invalid"),
    "a ragged matrix": ({"class_il_matrix": [[1.0], [2.0]]}, "class_il_matrix"),
    "a task's row lost": ({"task_il_matrix": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]}, "task_il_matrix"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_one_line_and_hides_no_other(tmp_path: Path, name: str) -> None:
    changes, words = DAMAGES[name]
    fake_run(tmp_path / "good")
    bad = damage(fake_run(tmp_path / "bad", seed=1), **changes)
    runs, wrong = find_runs([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    (line,) = wrong
    assert words in line
    assert str(bad) in line
    assert line in build(runs, damaged=wrong).notes
    with pytest.raises(UserError, match=r"bad/result\.json"):
        find_runs([bad])


def test_a_file_cut_off_a_foreign_folder_and_no_folder_are_refused(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    (path / "result.json").write_text((path / "result.json").read_text()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        read_run(path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"learning_rate": 1}')
    with pytest.raises(UserError, match="not the configuration of a run"):
        read_run(tmp_path / "foreign")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run in"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])


def test_a_damaged_line_is_passed_over_at_the_end_alone(tmp_path: Path) -> None:
    metrics = fake_run(tmp_path / "run") / "metrics.jsonl"
    every = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*every[:-1], every[-1][:20]]))
    assert len(read_run(tmp_path / "run").lines) == len(every) - 1
    metrics.write_text("".join([*every[:10], every[10][:20] + "\n", *every[11:]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 11, is damaged"):
        _ = read_run(tmp_path / "run").lines


def test_an_unfinished_run_is_named_with_how_far_it_came(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stop=3)
    found = table(tmp_path)
    assert ours(found) == []
    assert any("unfinished, 2 tasks done" in note for note in found.notes)


# ------------------------------------------------------------------ as text


def test_markdown_has_hardware_command_and_as_many_cells_in_every_row(tmp_path: Path) -> None:
    for seed in (0, 1):
        fake_run(tmp_path / f"run{seed}", seed=seed)
    text = render.markdown(table(tmp_path), with_seconds=True)
    assert "`itl run --stream seq-cifar10 --method itl --buffer 200 --seeds 0,1`" in text
    assert "NVIDIA H200" in text
    assert "9.0 %" in text  # tangent 4 + projection 5 of specialist 100
    for block in text.split("\n\n"):
        lines = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1


def test_latex_is_balanced_and_escaped(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", settings={"memory.policy": "reser_voir"})
    text = render.latex(table(tmp_path), with_seconds=True)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") > 5
    body = [line for line in text.splitlines() if not line.startswith(("%", "\\begin"))]
    assert any(r"reser\_voir" in line for line in body)
    for line in body:
        assert line.count("$") % 2 == 0, line
        assert "±" not in line
        assert "_" not in line.replace(r"\_", "")
        assert "%" not in line.replace(r"\%", "")


def test_json_holds_the_numbers_unrounded(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", level=1 / 3)
    value = json.loads(render.as_json(table(tmp_path, missing=False)))
    row = value["sections"][0]["rows"][0]
    assert row["ours"]["class_il"] == {"mean": 1 / 3, "std": None}
    assert row["difference"]["class_il"]["published_stds"] == pytest.approx((1 / 3 - 66.05) / 0.64)
    assert row["ours"]["generalist_share"] == pytest.approx(0.09)
    assert row["ours"]["folders"] == [str(tmp_path / "run")]
