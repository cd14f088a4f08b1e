"""The charts of a report show the numbers of the records, for every kind of run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.report import compare, memory, stages, tasks
from itl.report.chart import plain
from itl.report.run_selection import ReportData, report_data
from itl.report.tabs import contents
from itl.results import RunFolder, find_runs
from support.run_records import fake_run


def report(folder: Path) -> ReportData:
    """The report data of the runs below a folder."""
    return report_data(find_runs([folder])[0])


def lines(path: Path, kind: str, **metadata: Any) -> list[dict[str, Any]]:
    """The recorded lines of one kind whose fields have the given values."""
    every = [line for line in RunFolder(path).read_lines() if line["kind"] == kind]
    return [line for line in every if all(line[name] == value for name, value in metadata.items())]


def test_stage_curves_show_recorded_measurements_and_stage_ends(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    for measure in ("class_il", "task_il"):
        chart = stages.stages(report(tmp_path).runs[0].run.lines, measure)
        assert chart is not None
        for series in chart.series:
            stage = series.name.removesuffix(": end")
            shown = [value for value in series.y if value is not None]
            if series.name.endswith(": end"):
                assert shown[::2] == shown[1::2] == [line[measure] for line in lines(path, "end", stage=stage)]
            else:
                recorded = [
                    line
                    for line in RunFolder(path).read_lines()
                    if line["kind"] in ("start", "curve") and line["stage"] == stage
                ]
                assert shown == [line[measure] for line in recorded]
        assert [band.role for band in chart.bands] == ["specialist", "tangent", "projection"] * 5
        assert len(chart.rules) == len(chart.x.ticks) == 5


def test_drop_of_the_half_pipe_is_at_the_start_of_the_stage(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", tasks=2)
    chart = stages.stages(report(tmp_path).runs[0].run.lines)
    assert chart is not None
    tangent = next(series for series in chart.series if series.name == "tangent")
    starts = [band.low for band in chart.bands if band.role == "tangent"]
    assert [x for x, text in zip(tangent.x, tangent.hover, strict=True) if text.endswith("epoch 0")] == starts


def test_breakdown_has_a_line_per_task_from_when_it_is_learned(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    chart = stages.breakdown(report(tmp_path).runs[0].run.lines)
    assert chart is not None
    within = [line for line in RunFolder(path).read_lines() if line["kind"] in ("start", "curve")]
    for number, series in enumerate(chart.series[:-1]):
        since_learned = [line for line in within if line["task"] > number]
        assert list(series.y) == [line["class_il_tasks"][number] for line in since_learned]
        descriptions = chart.descriptions[series.start : series.start + len(series.y)]
        assert len(chart.at(series)) == len(descriptions) == len(since_learned)
        assert descriptions[0] == f"task {number + 1}, specialist, epoch 1"
    assert list(chart.series[-1].y) == [line["class_il"] for line in within]


def test_long_curves_are_thinned_but_keep_the_last_point_of_a_stage(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", tasks=50, classes=100, points=16)
    chart = stages.breakdown(report(tmp_path).runs[0].run.lines)
    assert chart is not None
    assert sum(len(series.y) for series in chart.series) < 1.5 * stages.MAX_CHART_NUMBERS
    last = lines(path, "curve", task=50, stage="projection")[-1]
    assert chart.series[0].y[-1] == last["class_il_tasks"][0]


def test_matrix_is_the_mean_over_seeds_without_future_tasks(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / f"run{seed}", seed=seed) for seed in (0, 1, 2)]
    chart = tasks.matrix(report(tmp_path).runs, "task_il")
    assert chart is not None
    assert chart.heatmap is not None
    mean = np.mean([RunFolder(path).read("result.json")["task_il_matrix"] for path in paths], axis=0)
    for t, row in enumerate(chart.heatmap.values):
        assert list(row[: t + 1]) == pytest.approx(mean[t, : t + 1].tolist())
        assert set(row[t + 1 :]) <= {None}


def test_confusion_matrix_equals_that_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.metrics import confusion_matrix

    path = fake_run(tmp_path / "run", each=20)
    chart = tasks.confusion(report(tmp_path).runs[0])
    predicted = RunFolder(path).read_arrays("predictions.npz")
    assert chart is not None
    assert chart.heatmap is not None
    assert predicted is not None
    assert np.array_equal(chart.heatmap.values, confusion_matrix(predicted["label"], predicted["class_il"]))


def test_most_common_confusions_are_counted_in_order(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", each=20)
    predicted = RunFolder(path).read_arrays("predictions.npz")
    chart = tasks.pairs(report(tmp_path).runs[0])
    assert chart is not None
    assert predicted is not None
    counts = {}
    for name, count in zip(chart.series[0].x, chart.series[0].y, strict=True):
        label, guess = (int(part.removeprefix("class ")) for part in str(name).split(" → "))
        assert count == ((predicted["label"] == label) & (predicted["class_il"] == guess)).sum()
        counts[label, guess] = count
    assert list(counts.values()) == sorted(counts.values())


def test_bars_of_the_ablation_are_in_its_order_with_published_results(tmp_path: Path) -> None:
    for method in ("itl", "b", "b+hp+lf"):
        for seed in (0, 1):
            fake_run(tmp_path / f"{method}-{seed}", method=method, seed=seed)
    chart = compare.bars(report(tmp_path).groups)
    assert chart is not None
    ours, *published = chart.series
    assert list(ours.x) == ["b", "b+hp+lf", "itl"]
    ablation = next(series for series in published if "ablation" in series.name)
    assert list(zip(ablation.x, ablation.y, strict=True)) == [("b", 57.15), ("b+hp+lf", 60.21), ("itl", 66.35)]
    results = [RunFolder(tmp_path / f"itl-{seed}").read("result.json")["class_il"] for seed in (0, 1)]
    assert ours.y[2] == pytest.approx(np.mean(results))
    assert ours.error[2] == pytest.approx(np.std(results, ddof=1))


def test_ablation_has_a_separate_chart_from_methods_and_variants(tmp_path: Path) -> None:
    for method in ("itl", "b", "b+ff", "er"):
        fake_run(tmp_path / method, method=method)
    fake_run(tmp_path / "longer", variant="longer")
    found = {comparison.kind: comparison.draw for comparison in compare.comparisons(report(tmp_path).groups)}
    charts = {kind: found[kind]["seq-cifar10, 200 images"]("class_il") for kind in ("ablation", "bars")}
    names = {kind: set(chart.series[0].x) for kind, chart in charts.items() if chart is not None}
    assert names == {"ablation": {"b", "b+ff", "itl"}, "bars": {"er", "itl", "itl, longer"}}


def test_buffer_chart_has_our_and_published_points(tmp_path: Path) -> None:
    for buffer in (200, 500):
        fake_run(tmp_path / str(buffer), buffer=buffer)
    fake_run(tmp_path / "b", method="b")  # run with one buffer size only
    chart = compare.buffers(report(tmp_path).groups, "seq-cifar10")
    assert chart is not None
    ours, published = chart.series
    assert list(ours.x) == [200, 500]
    assert list(zip(published.x, published.y, published.error, strict=True)) == [
        (200, 66.05, 0.64),
        (500, 73.84, 0.28),
        (5120, 85.26, 0.26),
    ]


def test_seconds_and_memory_charts_show_the_record(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    report_run = report(tmp_path).runs[0]
    chart = compare.seconds(report(tmp_path))
    assert chart is not None
    assert {series.name: series.y[0] for series in chart.series} == {
        "specialist": 100.0,
        "memory": 0.5,
        "tangent": 4.0,
        "projection": 5.0,
        "evaluation": 3.5,
    }
    result = RunFolder(path).read("result.json")
    held = memory.held(report_run)
    assert held is not None
    assert held.heatmap is not None
    for column, counts in enumerate(result["memory_history"]):
        assert [row[column] or 0 for row in held.heatmap.values] == counts
    arrivals = memory.arrivals(report_run)
    assert arrivals is not None
    assert sorted(arrivals.series[0].x) == sorted(result["memory"]["written"])


def test_record_of_format_1_gives_every_figure(tmp_path: Path) -> None:
    """The record was written by an earlier version. Records of format 1 have no lines of kind `start` and no images."""
    old = Path(__file__).parent / "format-1"
    assert RunFolder(old).read("result.json")["format"] == 1
    page = contents(report(old), None)
    assert [tab.name for tab in page.tabs] == ["Stages", "Tasks", "Memory", "Mistakes", "Time"]
    assert json.loads(page.charts["stages/r0/class_il"])["series"]


def test_lists_shared_by_charts_are_stored_once(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    page = contents(report(tmp_path), None)
    class_il, task_il = (json.loads(page.charts[f"breakdown/r0/{measure}"]) for measure in ("class_il", "task_il"))
    assert class_il["descriptions"] == task_il["descriptions"]
    chart = stages.breakdown(report(tmp_path).runs[0].run.lines)
    assert chart is not None
    assert page.pool.lists[class_il["descriptions"]["$"]] == list(chart.descriptions)
    assert len(page.pool.lists) == len({json.dumps(class_il) for class_il in page.pool.lists})


def test_interrupted_run_has_figures_of_its_finished_part(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stop=3)
    page = contents(report(tmp_path), None)
    assert {key.split("/")[0] for key in page.charts} == {"stages", "breakdown", "matrix", "held"}
    assert len(json.loads(page.charts["matrix/r0/class_il"])["heatmap"]["rows"]) == 2


def test_report_works_for_one_task_and_for_a_run_without_measurements(tmp_path: Path) -> None:
    fake_run(tmp_path / "one", tasks=1, classes=2)
    charts = contents(report(tmp_path / "one"), None).charts
    assert json.loads(charts["matrix/c0/class_il"])["heatmap"]["values"]
    folder = RunFolder(tmp_path / "nothing")
    folder.create({"method": "itl", "stream": "seq-digits", "buffer": 20, "seed": 0})
    assert contents(report(folder.path), None).tabs == []


def test_chart_data_is_valid_json_with_rounded_numbers(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    chart = stages.stages(report(tmp_path).runs[0].run.lines)
    value = json.loads(json.dumps(plain(chart), allow_nan=False))
    exact = [v for series in chart.series for v in series.y]  # type: ignore[union-attr]
    shown = [v for series in value["series"] for v in series["y"]]
    assert [None if v is None else f"{v:.2f}" for v in exact] == [None if v is None else f"{v:.2f}" for v in shown]


def test_long_lists_are_rounded_like_single_numbers() -> None:
    rng = np.random.default_rng(0)
    ties = [k / 1000 for k in range(-3000, 3000)] + [0.285, 2.675, 1e15 / 7, -0.001, 1e9 + 0.125]
    values: list[float | None] = [*ties, *rng.uniform(-100, 100, 2000).tolist(), None, 7.0]
    expected = [None if value is None else plain(value) for value in values]
    assert [(type(value), value) for value in plain(values)] == [(type(value), value) for value in expected]
    assert json.dumps(plain([0.5, 2.0, None, True, "a"])) == '[0.5, 2, null, true, "a"]'


def test_names_of_runs_and_groups_contain_the_fields_that_differ(tmp_path: Path) -> None:
    for k, metadata in enumerate(({}, {"seed": 1}, {"variant": "longer"}, {"buffer": 500})):
        fake_run(tmp_path / str(k), **metadata)
    data = report(tmp_path)
    assert [item.name for item in data.runs] == [
        "itl, |B| 200, seed 0",
        "itl, |B| 200, seed 1",
        "itl, longer, |B| 200, seed 0",
        "itl, |B| 500, seed 0",
    ]
    assert [item.name for item in data.groups] == ["itl, |B| 200", "itl, longer, |B| 200", "itl, |B| 500"]


# ------------------------------------------------------------------ comparisons of groups


def write_pair(folder: Path, seeds: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    """Runs of itl and er with the same seeds, and one more seed of er."""
    for seed in seeds:
        fake_run(folder / f"itl-{seed}", seed=seed, level=60.0 + seed)
        fake_run(folder / f"er-{seed}", method="er", seed=seed, level=55.0 + 1.5 * seed)
    fake_run(folder / "er-9", method="er", seed=9, level=10.0)


def test_paired_difference_and_its_interval_equal_those_of_scipy(tmp_path: Path) -> None:
    from scipy import stats

    write_pair(tmp_path)
    groups = {group.name: group for group in report(tmp_path).groups}
    chart = compare.paired(list(groups.values()), groups["itl"])
    assert chart is not None
    differences = [(55.0 + 1.5 * seed) - (60.0 + seed) for seed in range(4)]  # seed 9 has no partner
    low, high = stats.ttest_rel([55.0 + 1.5 * s for s in range(4)], [60.0 + s for s in range(4)]).confidence_interval()
    (series,) = chart.series
    assert list(series.x) == ["er"]
    assert series.y[0] == pytest.approx(np.mean(differences))
    assert series.error[0] == pytest.approx((high - low) / 2)
    assert series.samples[0] == pytest.approx(dict(enumerate(differences)))


def test_one_common_seed_has_no_interval_and_none_has_no_mark(tmp_path: Path) -> None:
    fake_run(tmp_path / "itl", seed=0)
    fake_run(tmp_path / "er", method="er", seed=0)
    fake_run(tmp_path / "derpp", method="derpp", seed=1)
    groups = {group.name: group for group in report(tmp_path).groups}
    chart = compare.paired(list(groups.values()), groups["itl"])
    assert chart is not None
    assert (list(chart.series[0].x), list(chart.series[0].error)) == (["er"], [None])
    assert compare.paired(list(groups.values()), groups["derpp"]) is None


def test_average_accuracy_is_the_mean_over_the_tasks_seen(tmp_path: Path) -> None:
    write_pair(tmp_path)
    chart = compare.averages(report(tmp_path).groups)
    assert chart is not None
    itl = next(series for series in chart.series if series.name == "itl")
    matrices = np.array([RunFolder(tmp_path / f"itl-{s}").read("result.json")["class_il_matrix"] for s in range(4)])
    seen = np.array([[matrix[t, : t + 1].mean() for t in range(5)] for matrix in matrices])
    assert list(itl.x) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(itl.y) == pytest.approx(seen.mean(axis=0).tolist())
    assert list(itl.error) == pytest.approx(seen.std(axis=0, ddof=1).tolist())


def test_stages_of_a_group_are_the_mean_over_its_seeds(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / f"run{seed}", seed=seed) for seed in (0, 1)]
    runs = [RunFolder(path).read_lines() for path in paths]
    mean = stages.mean_lines(runs)
    assert len(mean) == len(runs[0])
    for line, *originals in zip(mean, *runs, strict=True):
        assert line["class_il"] == pytest.approx(np.mean([original["class_il"] for original in originals]))
        expected = np.mean([original["task_il_tasks"] for original in originals], axis=0).tolist()
        assert line["task_il_tasks"] == pytest.approx(expected)
    assert len(stages.mean_lines([runs[0], runs[1][:10]])) == 10
    assert "stages/c0/class_il" in contents(report(tmp_path), None).charts


def test_error_bars_lie_within_the_axes(tmp_path: Path) -> None:
    for seed, level in ((0, 20.0), (1, 98.0)):
        fake_run(tmp_path / f"itl-{seed}", seed=seed, level=level)
        fake_run(tmp_path / f"er-{seed}", method="er", seed=seed, level=level)
        fake_run(tmp_path / f"large-{seed}", seed=seed, level=level, buffer=500)
    for comparison in compare.comparisons(report(tmp_path).groups):
        for draw in comparison.draw.values():
            chart = draw("class_il")
            if chart is not None:
                ends = [y + (e or 0) for s in chart.series for y, e in zip(s.y, s.error, strict=True) if y is not None]
                assert max(ends) <= chart.y.high


def test_methods_selected_at_first_are_itl_and_its_baselines(tmp_path: Path) -> None:
    from itl.report.selectors import MAX_SELECTED, default_methods

    names = [
        "agem",
        "co2l",
        "der",
        "derpp",
        "er",
        "er-ace",
        "gcr",
        "gdumb",
        "gmed",
        "gss",
        "icarl",
        "itl",
        "lwf",
        "sgd",
    ]
    for name in names:
        fake_run(tmp_path / name, method=name, tasks=1, classes=2, points=1)
    fake_run(tmp_path / "variant", variant="longer", tasks=1, classes=2, points=1)
    chosen = default_methods(report(tmp_path).groups)
    assert chosen[:3] == ["itl", "er", "derpp"]
    assert len(chosen) == MAX_SELECTED
    assert "itl, longer" not in chosen


def test_marks_of_images_added_in_one_step_do_not_cover_each_other(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", buffer=40, classes=2, tasks=1)
    result = RunFolder(path).read("result.json")
    result["memory"]["written"] = [7] * 40
    RunFolder(path).write("result.json", result)
    chart = memory.arrivals(report(tmp_path).runs[0])
    assert chart is not None
    (series,) = chart.series
    assert len({*zip(series.x, series.y, strict=True)}) == 40
    assert [round(float(y)) for y in series.y] == [0] * 20 + [1] * 20


def test_sections_of_the_time_chart_have_distinct_looks(tmp_path: Path) -> None:
    seconds = dict.fromkeys(("specialist", "memory", "tangent", "projection", "evaluation", "saving", "closing"), 1.0)
    fake_run(tmp_path / "run", seconds={**seconds, "other": 2.0, "total": 9.0})
    chart = compare.seconds(report(tmp_path))
    assert chart is not None
    assert len({series.role for series in chart.series}) == len(chart.series) == 8
