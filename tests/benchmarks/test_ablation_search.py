"""`benchmarks/ablation.py`: equal searches, choices and paired differences."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from itl.experiments.refine import check_settings
from itl.settings import build

HOME = Path(__file__).parents[2]
NAMES = runpy.run_path(str(HOME / "benchmarks" / "ablation.py"))


def test_every_rung_has_equally_many_different_candidates() -> None:
    for rung, candidates in NAMES["LADDERS"]["itl"].items():
        assert len(candidates) == NAMES["CANDIDATES_PER_RUNG"], rung
        assert len({json.dumps(settings, sort_keys=True) for settings in candidates}) == len(candidates)
        for settings in candidates:
            check_settings(settings)
            resolved = build(settings)
            assert resolved.projects == ("pd" in rung or rung == "itl")
            if rung != "itl":  # whose candidates include the specialist's own classifier
                assert resolved.redraws_classifier == ("hp" in rung)


def write_trials(out: Path, offsets: dict[str, float]) -> None:
    """Trials of three seeds after one task; later candidates have lower scores."""
    (out / "trials").mkdir(parents=True)
    for rung, offset in offsets.items():
        for index in range(NAMES["CANDIDATES_PER_RUNG"]):
            for seed, noise in enumerate((0.0, 1.0, 2.0)):
                value = 60 + noise + offset * (1 + 0.1 * noise) - index
                scores = {"class_il": value, "task_il": 90.0}
                stages = {"specialist": {"class_il": 50.0, "task_il": 90.0}, "tangent": scores, "expert": scores}
                trial = {"task": 5, "settings": {}, "stages": stages}
                (out / "trials" / f"{rung}-{index}-seed{seed}-task5.json").write_text(json.dumps(trial))


def test_report_pairs_all_rungs_by_seed(tmp_path: Path) -> None:
    write_trials(tmp_path, {"itl": 5.0, "b+hp+lf": 0.0})
    ablation = NAMES["Ablation"](NAMES["options"](["--out", str(tmp_path), "--tasks", "5", "--report"]))
    assert ablation.chosen() == {"itl": 0, "b+hp+lf": 0}
    text = ablation.report()
    # differences 5, 5.5, 6: mean 5.5, standard deviation 0.5, t(0.975, 2) = 4.3027
    assert text.count("+5.50 ± 1.24") == 2  # experts, and before projection
    assert text.count("-5.50 ± 1.24") == 2
    assert "| `b` | 50.00 ± 0.00 |" in text


def test_a_candidate_that_diverged_is_not_chosen(tmp_path: Path) -> None:
    write_trials(tmp_path, {"itl": 5.0})
    (tmp_path / "trials" / "itl-0-seed1-task5.json").write_text(json.dumps({"task": 5, "error": "not finite"}))
    options = ["--out", str(tmp_path), "--tasks", "5", "--choose-on", "0,1"]
    ablation = NAMES["Ablation"](NAMES["options"](options))
    assert ablation.chosen() == {"itl": 1}
    assert ablation.values("itl", 1, 5, "expert", "class_il") == {2: pytest.approx(67.0)}


def test_a_candidate_replaces_all_settings_that_the_run_was_given(tmp_path: Path) -> None:
    ablation = NAMES["Ablation"](NAMES["options"](["--out", str(tmp_path)]))
    given = {name for settings in NAMES["LADDERS"]["itl"]["itl"] for name in settings}
    for rung, candidates in NAMES["LADDERS"]["itl"].items():
        for index, own in enumerate(candidates):
            settings = ablation.settings(rung, index)
            assert settings.keys() >= given
            assert settings.items() >= own.items()
            assert build(settings).tangent.solver == ("sgd" if own["generalist"] == "full" else "lbfgs")
    assert ablation.settings("itl-doubled", 2)["tangent.iterations"] == 200
    assert ablation.settings("itl-doubled", 2)["tangent.views"] == 32


def test_test_runs_use_what_was_chosen_on_validation_images(tmp_path: Path) -> None:
    write_trials(tmp_path, {"itl": 5.0, "b+hp+lf": 0.0})
    (tmp_path / "trials" / "itl-0-seed1-task5.json").write_text(json.dumps({"task": 5, "error": "not finite"}))
    options = ["--out", str(tmp_path), "--tasks", "5", "--test", "--seeds", "7"]
    ablation = NAMES["Ablation"](NAMES["options"](options))
    config = ablation.config(7)
    assert config.split == "test"
    assert config.settings == NAMES["LADDERS"]["itl"]["itl"][1]
    assert (
        ablation.values("itl", 1, 5, "expert", "class_il") == {}
    )  # validation figures are not reported as test figures
