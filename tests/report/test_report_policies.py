"""The charts that compare memory policies by one of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from itl.report.policies import policies
from itl.report.run_selection import ReportData, report_data
from itl.report.tabs import contents
from itl.results import find_runs
from support.run_records import fake_run


def report(folder: Path) -> ReportData:
    """The report data of the runs below a folder."""
    return report_data(find_runs([folder])[0])


def test_policy_with_a_numeric_setting_is_a_curve_and_one_without_is_a_level(tmp_path: Path) -> None:
    variants = [("entropy", 2.0, 0.5), ("entropy", 0.5, 0.5), ("entropy", 1.0, 0.5), ("stratified", 1.0, 0.5)]
    variants += [("coreset", 1.0, 0.1), ("coreset", 1.0, 0.3)]
    for k, (policy, temperature, fraction) in enumerate(variants):
        settings = {"memory.policy": policy, "memory.temperature": temperature, "memory.fraction": fraction}
        fake_run(tmp_path / str(k), settings=settings, level=50.0 + k)
    by_temperature, by_fraction = policies(report(tmp_path).groups)
    (entropy,) = by_temperature.series
    assert (entropy.name, list(entropy.x), list(entropy.y)) == ("entropy", [0.5, 1.0, 2.0], [51.0, 52.0, 50.0])
    (coreset,) = by_fraction.series
    assert (coreset.name, list(coreset.x), list(coreset.y)) == ("coreset", [0.1, 0.3], [54.0, 55.0])
    assert by_temperature.levels == by_fraction.levels == ((53.0, "stratified"),)


def write_policy_run(path: Path, policy: str, level: float, variant: str | None = None, **more: Any) -> None:
    """Write a run with a memory policy; `t` is its temperature, `more` are other settings."""
    memory = {
        "memory.policy": policy,
        "memory.temperature": more.pop("t", 1.0),
        "memory.logits": more.pop("logits", None),
    }
    others = {"memory.every": more.pop("every", 5), "specialist.epochs": more.pop("epochs", 15)}
    order = more.pop("order_seed", None)
    fake_run(path, settings={**memory, **others, **more}, level=level, variant=variant, order_seed=order)


def test_policy_curve_includes_only_groups_that_agree_in_other_settings(tmp_path: Path) -> None:
    write_policy_run(tmp_path / "a", "entropy", 50.0, t=1.0, epochs=15)
    write_policy_run(tmp_path / "b", "entropy", 60.0, t=2.0, epochs=1)
    assert policies(report(tmp_path).groups) == []
    write_policy_run(
        tmp_path / "c", "entropy", 52.0, "t2", t=2.0, epochs=15
    )  # a variant that differs in memory settings only
    write_policy_run(tmp_path / "d", "entropy", 58.0, t=1.0, epochs=1)
    write_policy_run(tmp_path / "e", "stratified", 55.0, epochs=15)
    write_policy_run(tmp_path / "f", "stratified", 59.0, epochs=1)
    charts = policies(report(tmp_path).groups)
    assert [[list(series.y) for series in chart.series] for chart in charts] == [[[50.0, 52.0]], [[58.0, 60.0]]]
    assert [chart.levels for chart in charts] == [((55.0, "stratified"),), ((59.0, "stratified"),)]
    runs, measure = "itl on seq-cifar10, |B| 200", "Class-IL by memory.temperature"
    assert [chart.title for chart in charts] == [f"{runs}, specialist.epochs {n}: {measure}" for n in (15, 1)]


def test_policy_curves_vary_one_setting_and_are_named_by_the_others(tmp_path: Path) -> None:
    for k, (t, every) in enumerate([(1.0, 5), (2.0, 5), (1.0, 9), (2.0, 9)]):
        write_policy_run(tmp_path / str(k), "entropy", 50.0 + k, t=t, every=every)
    by_temperature, by_every = policies(report(tmp_path).groups)
    assert {series.name: list(series.y) for series in by_temperature.series} == {
        "entropy, every 5": [50.0, 51.0],
        "entropy, every 9": [52.0, 53.0],
    }
    assert [series.name for series in by_every.series] == ["entropy, temperature 1.0", "entropy, temperature 2.0"]


def test_policy_levels_include_only_comparable_groups(tmp_path: Path) -> None:
    for k, t in enumerate((1.0, 2.0)):
        write_policy_run(tmp_path / str(k), "entropy", 50.0 + k, f"t{k}", t=t)
    figure_spec = next(
        figure for tab in contents(report(tmp_path), None).tabs for figure in tab.views if figure.key[:8] == "policies"
    )
    assert "Horizontal" not in figure_spec.caption
    write_policy_run(tmp_path / "random", "stratified", 54.0)
    write_policy_run(tmp_path / "reverse", "stratified", 57.0, "reverse", design="reverse")
    write_policy_run(tmp_path / "orders", "stratified", 58.0, order_seed=3)
    (chart,) = policies(report(tmp_path).groups)
    assert chart.levels == ((54.0, "stratified"),)
    figure_spec = next(
        figure for tab in contents(report(tmp_path), None).tabs for figure in tab.views if figure.key[:8] == "policies"
    )
    assert "Horizontal lines are policies without this setting" in figure_spec.caption
    write_policy_run(tmp_path / "logits", "stratified", 56.0, logits=True)
    (chart,) = policies(report(tmp_path).groups)
    assert sorted(chart.levels) == [(54.0, "stratified, logits null"), (56.0, "stratified, logits true")]


def test_variants_with_equal_settings_have_separate_policy_charts(tmp_path: Path) -> None:
    for k, variant in enumerate((None, "newer")):
        for t in (1.0, 2.0):
            write_policy_run(tmp_path / f"{k}-{t}", "entropy", 50.0 + 10 * k + t, variant, t=t)
    default, newer = policies(report(tmp_path).groups)
    assert [[list(series.y) for series in chart.series] for chart in (default, newer)] == [
        [[51.0, 52.0]],
        [[61.0, 62.0]],
    ]
    assert ("newer" in default.title, "newer" in newer.title) == (False, True)


def test_committed_policy_records_have_curves_and_a_random_level() -> None:
    """The variant `reverse` is also stratified, but has another design, so it is no level."""
    home = Path(__file__).parents[2] / "results/seq-digits"
    groups = report_data(find_runs([home / name for name in ("policies", "reverse", "test")])[0]).groups
    (random,) = (g.seed_group for g in groups if g.metadata["method"] == "itl" and g.metadata["variant"] is None)
    charts = policies(groups)
    assert [(chart.x.title, chart.series[0].name) for chart in charts] == [
        ("memory.temperature", "entropy"),
        ("memory.fraction", "coreset"),
    ]
    assert [chart.levels for chart in charts] == [((random.mean("class_il").mean, "stratified"),)] * 2
