"""Tables of published and our results: only comparable runs are averaged, and every omission is noted."""

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
from itl.results.seed_groups import MeanStd, t_quantile
from itl.results.table import Table, TableRow, build
from support.run_records import fake_run


def table(folder: Path, **options: object) -> Table:
    """The table of the runs below a folder."""
    runs, damaged = find_runs([folder])
    return build(runs, damaged=damaged, **options)  # type: ignore[arg-type]


def rows(found: Table, kind: str = "published", **metadata: object) -> list[TableRow]:
    """The rows of sections of one kind whose fields have the given values."""
    of_kind = [row for section in found.sections if section.kind == kind for row in section.rows]
    return [row for row in of_kind if all(getattr(row, name) == value for name, value in metadata.items())]


def ours(found: Table) -> list[TableRow]:
    """The rows that include runs of ours."""
    return [row for section in found.sections for row in section.rows if row.ours is not None]


def test_mean_and_deviation_equal_those_of_numpy(tmp_path: Path) -> None:
    import scipy.stats

    for seed, level in enumerate((65.0, 66.5, 70.1)):
        fake_run(tmp_path / f"run{seed}", seed=seed, level=level)
    (row, ablation) = [row for row in ours(table(tmp_path)) if row.published is not None]
    assert (row.published.source, ablation.published.source) == ("table 1", "ablation")
    numbers = [json.loads((tmp_path / f"run{seed}" / "result.json").read_text())["class_il"] for seed in range(3)]
    score = row.our_score("class_il")
    assert (score.mean, score.std, score.count) == (
        pytest.approx(np.mean(numbers)),
        pytest.approx(np.std(numbers, ddof=1)),
        3,
    )
    points, deviations = row.difference("class_il")
    assert points == pytest.approx(np.mean(numbers) - 66.05)
    assert deviations == pytest.approx((np.mean(numbers) - 66.05) / 0.64)
    assert score.text() == f"{np.mean(numbers):.2f} ± {np.std(numbers, ddof=1):.2f}"
    low, high = scipy.stats.t.interval(0.95, 2, loc=np.mean(numbers), scale=scipy.stats.sem(numbers))
    assert score.interval == pytest.approx((high - low) / 2)
    assert row.ours.command.endswith("--buffer 200 --seeds 0,1,2")
    assert row.ours.hardware == "NVIDIA H200"


def test_quantiles_of_students_t_equal_those_of_scipy() -> None:
    from scipy.special import stdtrit

    for count in [*range(2, 30), 101, 1000]:
        assert t_quantile(count) == pytest.approx(float(stdtrit(count - 1, 0.975)), rel=1e-11)


@pytest.mark.parametrize(
    ("class_il", "task_il", "matches"),
    [(65.41, 92.71, True), (65.40, 92.71, False), (65.41, 92.70, False), (90.0, 92.70, False), (90.0, 99.0, True)],
)
def test_mark_requires_one_published_deviation_in_both_measures(
    tmp_path: Path, class_il: float, task_il: float, matches: bool
) -> None:
    fake_run(tmp_path / "run", class_il=class_il, task_il=task_il)  # published 66.05 ± 0.64 and 93.05 ± 0.34
    found = table(tmp_path, missing=False)
    row, ablation = [row for row in ours(found) if row.published is not None]
    assert row.matches_published is matches
    assert ablation.matches_published is None  # no published deviation
    assert render.mark(row) == f"{'yes' if matches else 'no'} (1 seed)"
    assert (render.mark(ablation), row.our_score("class_il").interval) == ("–", None)
    assert [r["matches_published"] for r in json.loads(render.as_json(found))["sections"][0]["rows"]] == [matches]
    for text in (render.markdown(found), render.latex(found)):
        assert text.count(render.MARK_NOTE) == 1


def test_mean_of_one_value_has_no_deviation_and_of_none_is_a_dash() -> None:
    assert MeanStd.of([3.0]).text() == "3.00"
    assert MeanStd.of([None]).text() == "–"
    assert MeanStd.of([None, 1.0, 2.0]).text() == "1.50 ± 0.71"


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    variations = [
        {},
        {"variant": "longer"},
        {"split": "validation"},
        {"settings": {"specialist.lr": 0.2}},
        {"buffer": 500},
        {"method": "itl-na"},
        {"stream": "seq-tinyimagenet"},
        {"order_seed": 3},
    ]
    for number, metadata in enumerate(variations):
        for seed in (0, 1):
            fake_run(tmp_path / f"{number}-{seed}", seed=seed, **metadata)
    shown = [*ours(table(tmp_path)), *ours(table(tmp_path, split="validation"))]
    groups = {tuple(sorted(str(run.path.name) for run in row.ours.runs)) for row in shown}
    assert groups == {(f"{number}-0", f"{number}-1") for number in range(len(variations))}
    with_setting = rows(table(tmp_path), method="itl", buffer=200, label="specialist.lr=0.2")
    assert {str(run.path.name) for row in with_setting for run in row.ours.runs} == {"3-0", "3-1"}


def test_published_results_are_compared_with_test_runs_of_the_method_only(tmp_path: Path) -> None:
    fake_run(tmp_path / "variant", variant="longer")
    fake_run(tmp_path / "validation", split="validation")
    fake_run(tmp_path / "order", order_seed=1)
    found = table(tmp_path)
    assert all(row.ours is None for row in rows(found))
    assert [row.label for row in rows(found, "variant")] == ["longer"]
    assert [row.label for row in rows(found, "unpublished")] == ["order_seed=1"]
    assert any("not shown: 1 configuration on the validation split" in note for note in found.notes)
    assert len(rows(table(tmp_path, split="validation"), "validation")) == 1


def test_runs_with_other_defaults_are_another_row_labeled_by_the_difference(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = fake_run(tmp_path / f"old{seed}", seed=seed)
        result = json.loads((path / "result.json").read_text())
        result["settings"]["specialist"]["lr"] = 0.03
        (path / "result.json").write_text(json.dumps(result))
        path = fake_run(tmp_path / f"new{seed}", seed=seed)
    groups = {row.label: row.ours for row in rows(table(tmp_path), method="itl", buffer=200) if row.ours}
    then, now = "earlier defaults, specialist.lr=0.03", "specialist.lr=0.1"
    assert {label: len(group.seeds) for label, group in groups.items()} == {then: 2, now: 2}
    assert groups[then].command.endswith("--buffer 200 --seeds 0,1 --set specialist.lr=0.03")
    assert groups[now].command.endswith("--buffer 200 --seeds 0,1")


def test_command_of_an_older_record_states_defaults_that_have_changed_since(tmp_path: Path) -> None:
    """A setting that the record lacks had its first value."""
    path = fake_run(tmp_path / "old", settings={"projection.epochs": 7})
    result = json.loads((path / "result.json").read_text())
    del result["settings"]["tangent"]["solver"], result["settings"]["projection"]["teacher_rms"]
    (path / "result.json").write_text(json.dumps(result))
    row = next(row for row in rows(table(tmp_path), method="itl", buffer=200) if row.ours)
    assert row.label == "projection.epochs=7, earlier defaults"
    assert row.ours.command.endswith("--set tangent.solver=sgd --set projection.teacher_rms=null")


def test_setting_missing_in_an_older_record_does_not_separate_seeds(tmp_path: Path) -> None:
    fake_run(tmp_path / "old", seed=0)
    path = fake_run(tmp_path / "new", seed=1)
    result = json.loads((path / "result.json").read_text())
    result["settings"]["invented_since"] = 3
    (path / "result.json").write_text(json.dumps(result))
    assert {len(row.ours.seeds) for row in ours(table(tmp_path))} == {2}


def test_setting_given_by_the_user_is_not_that_of_an_older_record(tmp_path: Path) -> None:
    fake_run(tmp_path / "old", seed=0)
    fake_run(tmp_path / "new", seed=1, settings={"invented_since": 4})
    assert json.loads((tmp_path / "new" / "result.json").read_text())["settings"]["invented_since"] == 4
    assert {tuple(row.ours.seeds) for row in ours(table(tmp_path))} == {(0,), (1,)}


def test_setting_given_by_the_user_separates_runs_from_an_older_record(tmp_path: Path) -> None:
    """Two runs that differ are not averaged either, even if an older record agrees with both."""
    fake_run(tmp_path / "old", seed=0)
    for seed, settings in ((1, {}), (2, {"invented_since": 4}), (3, {})):
        path = fake_run(tmp_path / f"new{seed}", seed=seed, settings=settings)
        result = json.loads((path / "result.json").read_text())
        result["settings"].setdefault("invented_since", 5 if seed == 3 else 3)
        (path / "result.json").write_text(json.dumps(result))
    assert {tuple(row.ours.seeds) for row in ours(table(tmp_path))} == {(0, 1), (2,), (3,)}


def test_second_run_of_a_seed_is_not_counted_but_noted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fake_run(tmp_path / name, seed=4)
    found = table(tmp_path)
    assert {tuple(row.ours.seeds) for row in ours(found)} == {(4,)}
    assert any(str(tmp_path / "b") in note and "seed 4" in note for note in found.notes)


def test_published_results_without_runs_are_shown_unless_hidden(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    full = table(tmp_path)
    assert [row.published for row in rows(full)].count(None) == 0
    assert {id(row.published) for row in rows(full)} == {id(result) for result in published()}
    assert "not run" in render.markdown(full)
    hidden = table(tmp_path, missing=False)
    assert len(ours(hidden)) == sum(len(section.rows) for section in hidden.sections) == 2  # Table 1 and the ablation
    assert "not run" not in render.markdown(hidden)


def test_joint_training_is_compared_whatever_its_buffer(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", method="joint", buffer=0)
    assert [row.method for row in ours(table(tmp_path))] == ["joint"]


def test_published_results_have_known_methods_and_sources() -> None:
    assert {result.method for result in published()} <= METHODS.keys()
    assert {result.source for result in published()} == SOURCES.keys()
    assert len(published()) == len(
        {(result.source, result.stream, result.buffer, result.method) for result in published()}
    )
    assert all(0 < result.class_il < 100 for result in published())


# ------------------------------------------------------------------ damaged and foreign folders


def damage(path: Path, **changes: object) -> Path:
    """Change fields of result.json; `...` removes a field."""
    result = json.loads((path / "result.json").read_text())
    for name, value in changes.items():
        result.pop(name) if value is ... else result.update({name: value})
    (path / "result.json").write_text(json.dumps(result))
    return path


DAMAGES = {
    "no format": ({"format": ...}, "no format version"),
    "a later format": ({"format": 99}, "format 99"),
    "no accuracy": ({"class_il": ...}, "'class_il' is missing"),
    "an accuracy as text": ({"class_il": "high"}, "'class_il' is missing or invalid"),
    "not a number": ({"class_il": float("nan")}, "'class_il' is missing or invalid"),
    "a ragged matrix": ({"class_il_matrix": [[1.0], [2.0]]}, "class_il_matrix"),
    "a missing row": ({"task_il_matrix": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]}, "task_il_matrix"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_run_is_reported_in_one_line_and_others_are_read(tmp_path: Path, name: str) -> None:
    changes, message = DAMAGES[name]
    fake_run(tmp_path / "good")
    bad_path = damage(fake_run(tmp_path / "bad", seed=1), **changes)
    runs, damaged = find_runs([tmp_path])
    assert [run.path.name for run in runs] == ["good"]
    (line,) = damaged
    assert message in line
    assert str(bad_path) in line
    assert line in build(runs, damaged=damaged).notes
    with pytest.raises(UserError, match=r"bad/result\.json"):
        find_runs([bad_path])


def test_truncated_file_foreign_folder_and_missing_folder_are_refused(tmp_path: Path) -> None:
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


def test_truncated_last_line_is_skipped_and_other_damaged_lines_are_refused(tmp_path: Path) -> None:
    metrics = fake_run(tmp_path / "run") / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:-1], lines[-1][:20]]))
    assert len(read_run(tmp_path / "run").lines) == len(lines) - 1
    metrics.write_text("".join([*lines[:10], lines[10][:20] + "\n", *lines[11:]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 11, is damaged"):
        _ = read_run(tmp_path / "run").lines


def test_unfinished_run_is_noted_with_its_progress(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stop=3)
    found = table(tmp_path)
    assert ours(found) == []
    assert any("unfinished, 2 tasks done" in note for note in found.notes)


# ------------------------------------------------------------------ formats


def test_markdown_has_hardware_command_and_rows_of_equal_length(tmp_path: Path) -> None:
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


def test_json_has_unrounded_numbers(tmp_path: Path) -> None:
    for seed in (0, 1):
        fake_run(tmp_path / f"run{seed}", level=1 / 3, seed=seed)
    value = json.loads(render.as_json(table(tmp_path, missing=False)))
    row = value["sections"][0]["rows"][0]
    assert row["ours"]["class_il"] == {"mean": pytest.approx(1 / 3), "std": pytest.approx(0)}
    assert row["difference"]["class_il"]["published_stds"] == pytest.approx((1 / 3 - 66.05) / 0.64)
    assert row["ours"]["generalist_share"] == pytest.approx(0.09)
    assert row["ours"]["folders"] == [str(tmp_path / f"run{seed}") for seed in (0, 1)]
