"""`itl bench`: engine and baseline loop do the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from itl import UserError
from itl.bench import Workload, baseline_loop, engine_timing, full_run
from itl.bench import method_steps as bench_methods
from itl.bench.measurements import with_current_keys
from itl.bench.plot import draw
from itl.engine.concurrency import run_concurrently
from itl.presets import settings_for

TINY = Workload("cpu", 64, 8, {"net.name": "resnet8", "net.width": 4}, 2, 2, 0, (50, 100), (1,), {"tangent.epochs": 2})
SHORT = {"specialist.epochs": 1, "tangent.epochs": 1, "projection.epochs": 1, "projection.lr": 1e-4}
STEPS = {"er", "derpp", "itl specialist", "itl tangent", "itl projection"}


@pytest.fixture(scope="module")
def record() -> dict[str, object]:
    stream = TINY.stream()
    engine = engine_timing.steps(TINY, stream)
    baseline = {name: {"ms": ms} for name, ms in baseline_loop.measure(TINY, stream).items()}
    return {
        "engine": engine,
        "baseline": baseline,
        "growth": engine_timing.growth(TINY, stream),
        "concurrent_runs": engine_timing.concurrent_runs(TINY, stream),
    }


def test_engine_and_baseline_time_the_same_steps(record: dict[str, dict[str, dict[str, float]]]) -> None:
    assert set(record["engine"]) == set(record["baseline"]) == STEPS
    for side in ("engine", "baseline"):
        assert all(times["ms"] > 0 for times in record[side].values())


def test_generalist_is_trained_by_sgd_like_the_baseline() -> None:
    """The defaults of itl on the stream solve tangent learning instead."""
    timer = engine_timing.train_learner(TINY, TINY.stream(), "itl", 200, {}, tasks=1)
    steps_per_epoch = 2  # 64 images in memory, batches of 32
    assert timer.count("tangent") == 2 * steps_per_epoch


def test_growth_and_concurrency_have_a_row_for_each_size(record: dict[str, list[dict[str, float]]]) -> None:
    assert [row["buffer"] for row in record["growth"]] == [50, 100]
    assert all(row["tangent"] > 0 and row["projection"] > 0 for row in record["growth"])
    assert [row["runs"] for row in record["concurrent_runs"]] == [1]
    assert record["concurrent_runs"][0]["ms_per_run_step"] > 0


def test_record_can_be_plotted(record: dict[str, object], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(record, str(tmp_path / "bench.png"))
    assert (tmp_path / "bench.png").stat().st_size > 5_000


def test_engine_that_is_slower_than_the_baseline_fits_into_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    growth = [{"buffer": 8, "tangent": 0.1, "projection": 0.1}]
    record = {"engine": {"er": {"ms": 500.0}}, "baseline": {"er": {"ms": 1.0}}, "growth": growth, "concurrent_runs": []}
    draw(record, str(tmp_path / "bench.png"))  # matplotlib warns of labels outside of the figure


@pytest.mark.parametrize("name", ["cpu-bench", "h200-bench"])
def test_record_of_an_earlier_version_is_read(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "speed" / f"{name}.json"
    old = json.loads(path.read_text())
    record = with_current_keys(old)
    assert record["engine"] == old["ours"]
    assert record["baseline"] == old["usual"]
    assert [row["runs"] for row in record["concurrent_runs"]] == [row["lanes"] for row in old["lanes"]]
    draw(old, str(tmp_path / "bench.png"))


def test_size_of_the_images_is_chosen_and_recorded() -> None:
    small, large = Workload.for_device("cpu", quick=True), Workload.for_device("cpu", quick=True, side=64)
    assert (small.side, large.side) == (16, 64)
    assert large.describe()["side"] == 64
    assert large.stream().tasks[0].train.pixels.shape[1:] == (3, 64, 64)
    assert (small.stream().policy, large.stream().policy) == ("cifar10", "imagenet")


def test_baseline_reservoir_holds_offered_samples() -> None:
    stream = TINY.stream()
    buffer = baseline_loop.Buffer(16, baseline_loop.Transform(stream))
    pixels = stream.tasks[0].train.pixels.permute(0, 2, 3, 1)
    for first in range(0, 64, 8):
        buffer.add(pixels[first : first + 8], torch.arange(first, first + 8), torch.zeros(8, 4))
    assert len(buffer.images) == 16
    for image, row in zip(buffer.images, buffer.labels, strict=True):
        assert torch.equal(image, pixels[row])  # the label says which row it was


def test_jobs_on_a_cpu_run_in_order() -> None:
    done: list[int] = []

    def job(k: int) -> int:
        done.append(k)
        return k * k

    assert run_concurrently([lambda k=k: job(k) for k in range(4)], 3, torch.device("cpu")) == [0, 1, 4, 9]
    assert done == [0, 1, 2, 3]


def test_baseline_run_completes_every_stage_with_a_balanced_memory() -> None:
    stream = TINY.stream()
    settings = settings_for("itl", None, 8, {**TINY.net, **SHORT})
    run = full_run.BaselineRun(stream, 8, settings, seed=0)
    before = [p.detach().clone() for p in run.net.parameters()]
    for index in range(len(stream)):
        run.learn(index)
    assert sorted(run.memory.labels) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(not torch.equal(a, b) for a, b in zip(before, run.net.parameters(), strict=True))
    assert 0 <= run.class_il() <= 100


def test_method_step_factor_relates_time_to_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_methods.Workload, "for_device", lambda device, quick, side: TINY)
    record = bench_methods.measure_methods("cpu", bench_methods.parse_names("derpp,gdumb,co2l"))
    rows = {row["method"]: row for row in record["methods"]}
    assert list(rows) == ["er", "derpp", "gdumb", "co2l"]
    assert all(row["ms"] > 0 for row in rows.values())
    assert (rows["er"]["ratio"], rows["er"]["explained"], rows["er"]["factor"]) == (1, 1, 1)
    assert rows["derpp"]["explained"] == 1.5  # three batches of 32 instead of two
    assert rows["gdumb"]["explained"] == 0.5
    assert rows["co2l"]["explained"] == 8 / 6  # four forwards, two of them back
    for row in rows.values():
        assert row["factor"] == pytest.approx(row["ratio"] / row["explained"])


def test_every_method_without_a_generalist_is_measured() -> None:
    assert {"sgd", "er", "derpp", "joint", "agem", "cls-er", "lwf"} <= set(bench_methods.parse_names("all"))
    assert not {"b", "b+ff", "itl", "itl-l"} & set(bench_methods.parse_names("all"))
    with pytest.raises(UserError, match=r"Unknown method to measure 'dre'. Did you mean"):
        bench_methods.parse_names("er,dre")
