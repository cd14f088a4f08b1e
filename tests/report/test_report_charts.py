"""The figures' numbers are the record's, for every kind of run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itl.report import compare, memory, stages, tasks
from itl.report.chart import plain
from itl.report.policies import policies
from itl.report.run_selection import ReportData, report_data
from itl.report.tabs import contents
from itl.results import RunFolder, find_runs
from support.run_records import fake_run


def report(place: Path) -> ReportData:
    return report_data(find_runs([place])[0])


def lines(path: Path, kind: str, **metadata: Any) -> list[dict[str, Any]]:
    every = [line for line in RunFolder(path).read_lines() if line["kind"] == kind]
    return [line for line in every if all(line[name] == value for name, value in metadata.items())]


def test_the_stages_curves_are_the_records_lines_and_the_thick_ones_its_ends(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    for measure in ("class_il", "task_il"):
        chart = stages.stages(report(tmp_path).runs[0], measure)
        assert chart is not None
        for one in chart.series:
            stage = one.name.removesuffix(": end")
            got = [value for value in one.y if value is not None]
            if one.name.endswith(": end"):
                assert got[::2] == got[1::2] == [line[measure] for line in lines(path, "end", stage=stage)]
            else:
                kept = [
                    line
                    for line in RunFolder(path).read_lines()
                    if line["kind"] in ("start", "curve") and line["stage"] == stage
                ]
                assert got == [line[measure] for line in kept]
        assert [band.role for band in chart.bands] == ["specialist", "tangent", "projection"] * 5
        assert len(chart.rules) == len(chart.x.ticks) == 5


def test_the_half_pipes_drop_stands_where_the_stage_begins(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", tasks=2)
    chart = stages.stages(report(tmp_path).runs[0])
    assert chart is not None
    tangent = next(one for one in chart.series if one.name == "tangent")
    begins = [band.low for band in chart.bands if band.role == "tangent"]
    assert [x for x, says in zip(tangent.x, tangent.hover, strict=True) if says.endswith("epoch 0")] == begins


def test_a_task_has_a_line_from_the_moment_it_is_learned(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    chart = stages.breakdown(report(tmp_path).runs[0])
    assert chart is not None
    within = [line for line in RunFolder(path).read_lines() if line["kind"] in ("start", "curve")]
    for number, one in enumerate(chart.series[:-1]):
        mine = [line for line in within if line["task"] > number]
        assert list(one.y) == [line["class_il_tasks"][number] for line in mine]
        assert len(chart.at(one)) == len(chart.hover_texts(one)) == len(mine)
        assert chart.hover_texts(one)[0] == f"task {number + 1}, specialist, epoch 1"
    assert list(chart.series[-1].y) == [line["class_il"] for line in within]


def test_very_many_numbers_are_thinned_and_the_last_of_a_stage_stays(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run", tasks=50, classes=100, points=16)
    chart = stages.breakdown(report(tmp_path).runs[0])
    assert chart is not None
    assert sum(len(one.y) for one in chart.series) < 1.5 * stages.MAX_CHART_NUMBERS
    last = lines(path, "curve", task=50, stage="projection")[-1]
    assert chart.series[0].y[-1] == last["class_il_tasks"][0]


def test_matrices_are_means_over_seeds_below_the_diagonal(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path / f"run{seed}", seed=seed) for seed in (0, 1, 2)]
    chart = tasks.matrix(report(tmp_path).runs, "task_il")
    assert chart is not None
    assert chart.heatmap is not None
    mean = np.mean([RunFolder(path).read("result.json")["task_il_matrix"] for path in paths], axis=0)
    for t, row in enumerate(chart.heatmap.values):
        assert list(row[: t + 1]) == pytest.approx(mean[t, : t + 1].tolist())
        assert set(row[t + 1 :]) <= {None}


def test_the_confusion_matrix_is_scikit_learns(tmp_path: Path) -> None:
    from sklearn.metrics import confusion_matrix

    path = fake_run(tmp_path / "run", each=20)
    chart = tasks.confusion(report(tmp_path).runs[0])
    predicted = RunFolder(path).read_arrays("predictions.npz")
    assert chart is not None
    assert chart.heatmap is not None
    assert predicted is not None
    assert np.array_equal(chart.heatmap.values, confusion_matrix(predicted["label"], predicted["class_il"]))


def test_most_common_confusions_are_counted(tmp_path: Path) -> None:
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


def test_bars_climb_the_ablations_ladder_with_published_figures_beside_them(tmp_path: Path) -> None:
    for method in ("itl", "b", "b+hp+lf"):
        for seed in (0, 1):
            fake_run(tmp_path / f"{method}-{seed}", method=method, seed=seed)
    chart = compare.bars(report(tmp_path).groups)
    assert chart is not None
    ours, *theirs = chart.series
    assert list(ours.x) == ["b", "b+hp+lf", "itl"]
    ablation = next(one for one in theirs if "ablation" in one.name)
    assert list(zip(ablation.x, ablation.y, strict=True)) == [("b", 57.15), ("b+hp+lf", 60.21), ("itl", 66.35)]
    results = [RunFolder(tmp_path / f"itl-{seed}").read("result.json")["class_il"] for seed in (0, 1)]
    assert ours.y[2] == pytest.approx(np.mean(results))
    assert ours.error[2] == pytest.approx(np.std(results, ddof=1))


def test_the_ablations_rungs_stand_apart_from_other_methods_and_variants(tmp_path: Path) -> None:
    for method in ("itl", "b", "b+ff", "er"):
        fake_run(tmp_path / method, method=method)
    fake_run(tmp_path / "longer", variant="longer")
    charts = {title: compare.bars(some) for title, some in compare.comparison_charts(report(tmp_path).groups)}
    names = {title: set(chart.series[0].x) for title, chart in charts.items() if chart is not None}
    assert names == {
        "The ablation: seq-cifar10, 200 images": {"b", "b+ff", "itl"},
        "Methods: seq-cifar10, 200 images": {"er", "itl", "itl longer"},
    }


def test_buffer_sizes_have_our_points_and_the_published_ones(tmp_path: Path) -> None:
    for buffer in (200, 500):
        fake_run(tmp_path / str(buffer), buffer=buffer)
    fake_run(tmp_path / "b", method="b")  # of one size only
    chart = compare.buffers(report(tmp_path).groups, "seq-cifar10")
    assert chart is not None
    ours, theirs = chart.series
    assert list(ours.x) == [200, 500]
    assert list(zip(theirs.x, theirs.y, theirs.error, strict=True)) == [
        (200, 66.05, 0.64),
        (500, 73.84, 0.28),
        (5120, 85.26, 0.26),
    ]


def test_a_policys_number_makes_a_curve_and_a_policy_without_one_a_level(tmp_path: Path) -> None:
    tried = [("entropy", 2.0, 0.5), ("entropy", 0.5, 0.5), ("entropy", 1.0, 0.5), ("stratified", 1.0, 0.5)]
    tried += [("coreset", 1.0, 0.1), ("coreset", 1.0, 0.3)]
    for k, (policy, temperature, fraction) in enumerate(tried):
        own = {"memory.policy": policy, "memory.temperature": temperature, "memory.fraction": fraction}
        fake_run(tmp_path / str(k), settings=own, level=50.0 + k)
    by_temperature, by_fraction = policies(report(tmp_path).groups)
    (entropy,) = by_temperature.series
    assert (entropy.name, list(entropy.x), list(entropy.y)) == ("entropy", [0.5, 1.0, 2.0], [51.0, 52.0, 50.0])
    (coreset,) = by_fraction.series
    assert (coreset.name, list(coreset.x), list(coreset.y)) == ("coreset", [0.1, 0.3], [54.0, 55.0])
    assert by_temperature.levels == by_fraction.levels == ((53.0, "stratified"),)


def tried(path: Path, policy: str, level: float, variant: str | None = None, **more: Any) -> None:
    own = {"memory.policy": policy, "memory.temperature": more.pop("t", 1.0), "memory.logits": more.pop("logits", None)}
    every = {"memory.every": more.pop("every", 5), "specialist.epochs": more.pop("epochs", 15)}
    order = more.pop("order_seed", None)
    fake_run(path, settings={**own, **every, **more}, level=level, variant=variant, order_seed=order)


def test_a_policys_line_holds_only_cells_that_are_alike_in_all_else(tmp_path: Path) -> None:
    tried(tmp_path / "a", "entropy", 50.0, t=1.0, epochs=15)
    tried(tmp_path / "b", "entropy", 60.0, t=2.0, epochs=1)
    assert policies(report(tmp_path).groups) == []
    tried(tmp_path / "c", "entropy", 52.0, "t2", t=2.0, epochs=15)  # a variant that is one in its memory alone
    tried(tmp_path / "d", "entropy", 58.0, t=1.0, epochs=1)
    tried(tmp_path / "e", "stratified", 55.0, epochs=15)
    tried(tmp_path / "f", "stratified", 59.0, epochs=1)
    charts = policies(report(tmp_path).groups)
    assert [[list(one.y) for one in chart.series] for chart in charts] == [[[50.0, 52.0]], [[58.0, 60.0]]]
    assert [chart.levels for chart in charts] == [((55.0, "stratified"),), ((59.0, "stratified"),)]
    where, what = "itl on seq-cifar10, |B| 200", "Class-IL by memory policy"
    assert [chart.title for chart in charts] == [f"{where}, specialist.epochs {n}: {what}" for n in (15, 1)]


def test_a_policys_lines_differ_in_one_number_and_say_what_else_they_are(tmp_path: Path) -> None:
    for k, (t, every) in enumerate([(1.0, 5), (2.0, 5), (1.0, 9), (2.0, 9)]):
        tried(tmp_path / str(k), "entropy", 50.0 + k, t=t, every=every)
    by_temperature, by_every = policies(report(tmp_path).groups)
    assert {one.name: list(one.y) for one in by_temperature.series} == {
        "entropy, every 5": [50.0, 51.0],
        "entropy, every 9": [52.0, 53.0],
    }
    assert [one.name for one in by_every.series] == ["entropy, temperature 1.0", "entropy, temperature 2.0"]


def test_every_level_of_like_cells_is_shown_and_no_other(tmp_path: Path) -> None:
    for k, t in enumerate((1.0, 2.0)):
        tried(tmp_path / str(k), "entropy", 50.0 + k, f"t{k}", t=t)
    view = next(one for tab in contents(report(tmp_path), None).tabs for one in tab.views if one.key[:8] == "policies")
    assert "Horizontal" not in view.caption
    tried(tmp_path / "random", "stratified", 54.0)
    tried(tmp_path / "reverse", "stratified", 57.0, "reverse", design="reverse")
    tried(tmp_path / "orders", "stratified", 58.0, order_seed=3)
    (chart,) = policies(report(tmp_path).groups)
    assert chart.levels == ((54.0, "stratified"),)
    view = next(one for tab in contents(report(tmp_path), None).tabs for one in tab.views if one.key[:8] == "policies")
    assert "Horizontal lines are policies without this setting" in view.caption
    tried(tmp_path / "logits", "stratified", 56.0, logits=True)
    (chart,) = policies(report(tmp_path).groups)
    assert sorted(chart.levels) == [(54.0, "stratified, logits null"), (56.0, "stratified, logits true")]


def test_variants_that_their_settings_do_not_tell_apart_are_not_one_line(tmp_path: Path) -> None:
    for k, variant in enumerate((None, "newer")):
        for t in (1.0, 2.0):
            tried(tmp_path / f"{k}-{t}", "entropy", 50.0 + 10 * k + t, variant, t=t)
    one, other = policies(report(tmp_path).groups)
    assert [[list(line.y) for line in chart.series] for chart in (one, other)] == [[[51.0, 52.0]], [[61.0, 62.0]]]
    assert ("newer" in one.title, "newer" in other.title) == (False, True)


def test_the_repositorys_policies_have_their_random_level() -> None:
    """Another variant of ours is stratified too, but of another design."""
    home = Path(__file__).parents[2] / "results/seq-digits"
    groups = report_data(find_runs([home / name for name in ("policies", "reverse", "test")])[0]).groups
    (random,) = (g.seed_group for g in groups if g.metadata["method"] == "itl" and g.metadata["variant"] is None)
    charts = policies(groups)
    assert [(chart.x.title, chart.series[0].name) for chart in charts] == [
        ("memory.temperature", "entropy"),
        ("memory.fraction", "coreset"),
    ]
    assert [chart.levels for chart in charts] == [((random.mean("class_il").mean, "stratified"),)] * 2


def test_seconds_are_the_cells_and_the_memory_tells_what_it_held_and_when_it_came(tmp_path: Path) -> None:
    path = fake_run(tmp_path / "run")
    report_run = report(tmp_path).runs[0]
    chart = compare.seconds(report(tmp_path))
    assert chart is not None
    assert {one.name: one.y[0] for one in chart.series} == {
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
    came = memory.arrivals(report_run)
    assert came is not None
    assert sorted(came.series[0].x) == sorted(result["memory"]["written"])


def test_a_record_of_the_first_format_still_makes_every_figure(tmp_path: Path) -> None:
    """Made by the code that wrote it then, for the repository: records of format 1 have neither starts nor pictures."""
    old = Path(__file__).parent / "format-1"
    assert RunFolder(old).read("result.json")["format"] == 1
    made = contents(report(old), None)
    assert [tab.name for tab in made.tabs] == ["Stages", "Tasks", "Memory", "Mistakes", "Time"]
    assert made.charts["stages/r0/class_il"]["series"]


def test_lists_that_charts_share_are_in_the_page_once(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    made = contents(report(tmp_path), None)
    one, other = (made.charts[f"breakdown/r0/{measure}"] for measure in ("class_il", "task_il"))
    assert one["descriptions"] == other["descriptions"]
    chart = stages.breakdown(report(tmp_path).runs[0])
    assert chart is not None
    assert made.pool.lists[one["descriptions"]["$"]] == list(chart.descriptions)
    assert len(made.pool.lists) == len({json.dumps(one) for one in made.pool.lists})


def test_a_run_cut_short_has_the_figures_of_what_it_did(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", stop=3)
    made = contents(report(tmp_path), None)
    assert {key.split("/")[0] for key in made.charts} == {"stages", "breakdown", "matrix", "held"}
    assert len(made.charts["matrix/r0/class_il"]["heatmap"]["rows"]) == 2


def test_a_run_of_one_task_and_a_run_that_measured_nothing_make_a_report(tmp_path: Path) -> None:
    fake_run(tmp_path / "one", tasks=1, classes=2)
    assert contents(report(tmp_path / "one"), None).charts["matrix/c0/class_il"]["heatmap"]["values"]
    folder = RunFolder(tmp_path / "nothing")
    folder.create({"method": "itl", "stream": "seq-digits", "buffer": 20, "seed": 0})
    assert contents(report(folder.path), None).tabs == []


def test_what_goes_into_the_page_is_rounded_to_what_is_shown_and_is_json(tmp_path: Path) -> None:
    fake_run(tmp_path / "run")
    chart = stages.stages(report(tmp_path).runs[0])
    value = json.loads(json.dumps(plain(chart), allow_nan=False))
    given = [v for one in chart.series for v in one.y]  # type: ignore[union-attr]
    got = [v for one in value["series"] for v in one["y"]]
    assert [None if v is None else f"{v:.2f}" for v in given] == [None if v is None else f"{v:.2f}" for v in got]


def test_names_tell_runs_apart_by_what_differs(tmp_path: Path) -> None:
    for k, metadata in enumerate(({}, {"seed": 1}, {"variant": "longer"}, {"buffer": 500})):
        fake_run(tmp_path / str(k), **metadata)
    found = report(tmp_path)
    assert [one.name for one in found.runs] == [
        "itl, |B| 200, seed 0",
        "itl, |B| 200, seed 1",
        "itl, longer, |B| 200, seed 0",
        "itl, |B| 500, seed 0",
    ]
    assert [one.name for one in found.groups] == ["itl, |B| 200", "itl, longer, |B| 200", "itl, |B| 500"]
