"""MLflowCallback and WandbCallback: what they store equals metrics.jsonl. Skipped where a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from itl import UserError
from itl.callbacks import MLflowCallback, WandbCallback
from itl.callbacks.scalars import parameters, scalars
from itl.experiments.run import Config, run
from support.records import lines_of
from support.tiny import TINY, tiny_stream

# Raised by the packages themselves when they are imported or store files.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning", "ignore::ResourceWarning"
)
CONFIG = Config("arrays", "itl", 8, 0, dict(TINY), curves=4)


def recorded(folder: Path) -> list[tuple[str, float, int]]:
    return [triple for n, line in enumerate(lines_of(folder)) for triple in scalars(line, n)]


def train(folder: Path, callback: Any) -> None:
    run(CONFIG, tiny_stream(), folder, device="cpu", callbacks=[callback], save=False)


def test_parameters_are_flat_and_without_missing_values() -> None:
    values = parameters(CONFIG)
    assert values["method"] == "itl"
    assert values["net.width"] == 4
    assert "variant" not in values
    assert parameters({"a": 1, "b": None}) == {"a": 1}


@pytest.mark.parametrize(("callback", "package"), [(MLflowCallback, "mlflow"), (WandbCallback, "wandb")])
def test_missing_package_is_a_user_error_that_names_the_extra(
    callback: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"itl\[{package}\]"):
        callback(CONFIG)


def test_mlflow_stores_every_metric_and_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions prefer a database
    with MLflowCallback(CONFIG, experiment="tiny", tracking_uri=(tmp_path / "mlruns").as_uri()) as callback:
        train(tmp_path / "run", callback)
    stored = callback.client.get_run(callback.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params == {name: str(value) for name, value in parameters(CONFIG).items()}
    found = {
        (tag, metric.step): metric.value
        for tag in stored.data.metrics
        for metric in callback.client.get_metric_history(callback.run_id, tag)
    }
    assert found == pytest.approx({(tag, step): value for tag, value, step in recorded(tmp_path / "run")})


def test_mlflow_run_of_a_failed_block_is_marked_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    callback = MLflowCallback(CONFIG, tracking_uri=(tmp_path / "mlruns").as_uri())
    with pytest.raises(KeyboardInterrupt), callback:
        raise KeyboardInterrupt
    assert callback.client.get_run(callback.run_id).info.status == "FAILED"


def test_wandb_offline_stores_the_last_metrics_and_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WandbCallback(CONFIG, project="tiny", mode="offline", folder=tmp_path) as callback:
        train(tmp_path / "run", callback)
        summary = dict(callback.run.summary)
        assert callback.run.config["net.width"] == 4
    last = {tag: value for tag, value, _ in recorded(tmp_path / "run")}
    assert {tag: summary[tag] for tag in last} == pytest.approx(last)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
