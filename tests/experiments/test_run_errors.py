"""Runs that cannot start or that diverge end with one line, and leave nothing unusable behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import itl
from itl import UserError
from itl.experiments.run import Config, run
from support.tiny import TINY, tiny_learner, tiny_stream

STREAM = {"classes": 6, "tasks": 3}


def test_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        run(
            Config(stream="arrays", method="er", buffer=8, settings={**TINY, "net.name": "nonsense"}),
            tiny_stream(),
            tmp_path / "run",
            device="cpu",
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "settings", "setting"),
    [
        (
            "learning the new images",
            {"specialist.lr": 100.0, "specialist.momentum": 0.99, "specialist.epochs": 30},
            "specialist.lr",
        ),
        (
            "combining old and new",
            {"projection.lr": 100.0, "projection.momentum": 0.99, "projection.epochs": 30},
            "projection.lr",
        ),
        ("learning from the memory", {"tangent.lr": 100.0, "tangent.l2": 1.0, "tangent.epochs": 30}, "tangent.lr"),
    ],
)
def test_diverging_run_reports_the_stage_and_keeps_the_last_good_checkpoint(
    words: str, settings: dict[str, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITL_SAVE_EVERY", "0")
    given = Config("arrays", "itl", 8, 0, {**TINY, **settings})
    with pytest.raises(UserError) as caught:
        run(given, tiny_stream(), tmp_path, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"task 1, {words}, epoch ")
    assert f"lower {setting} (now 100)" in message
    assert "\n" not in message
    if (tmp_path / "model").exists():
        loaded = itl.load(tmp_path / "model", device="cpu")
        assert all(bool(t.isfinite().all()) for t in loaded.net.state_dict().values())
        assert all(bool(t.isfinite().all()) for t in loaded.stage_state.tensors().values())
    assert not (tmp_path / "result.json").exists()


def test_buffer_smaller_than_the_classes_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot hold one image of each"):
        run(Config("arrays", "itl", 5, 0, dict(TINY)), tiny_stream(**STREAM), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    learner = tiny_learner("itl", buffer=3, classes=None)
    first, second = tiny_stream().tasks
    learner.learn(first)
    with pytest.raises(UserError, match="a buffer of 3 cannot hold one image of each of 4 classes"):
        learner.learn(second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "not the configuration of a run"),
        ("{}", "not the configuration of a run"),
        (
            '{"stream": "arrays", "method": "itl", "buffer": 8, "seed": 0, "tasks": "x"}',
            "'tasks' is missing or invalid",
        ),
        ('{"stream": "arrays", "method": "itl", "buffer": 8, "seed": 0, "order": 3}', "'order' is missing or invalid"),
        ('{"stream": "arrays"', "cannot be read"),
    ],
)
def test_folder_with_an_invalid_configuration_gives_a_one_line_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        run(Config("arrays", "itl", 8, 0, dict(TINY)), tiny_stream(**STREAM), tmp_path, device="cpu", resume=True)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)
