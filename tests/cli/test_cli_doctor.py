"""`itl doctor`: facts for a bug report, and a self-test that can fail."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from itl.cli.commands import doctor

HOME = Path(__file__).parents[2]


def test_doctor_lists_versions_extras_and_disk_without_the_home_folder(itl):
    facts = itl("doctor", "--no-test", "--device", "cpu", "--json").json
    assert facts["versions"]["torch"]
    assert facts["hardware"]["device"] == "cpu"
    assert facts["free_disk_bytes"] > 0
    assert "self_test" not in facts
    text = itl("doctor", "--no-test", "--device", "cpu").out
    assert str(Path.home()) + "/" not in text
    assert "extra      report: " in text


def test_doctor_knows_all_extras():
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*doctor.EXTRAS} == {name for name in extras if name not in ("dev", "docs")}


def test_self_test_learns_saves_and_loads():
    result = doctor.self_test("cpu")
    assert result["error"] is None
    assert result["class_il"] > 40


def test_failed_self_test_is_reported_with_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys):
    def fail(device: str) -> float:
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(doctor, "_learn_and_reload", fail)
    with pytest.raises(SystemExit) as stop:
        doctor.doctor.main(["--device", "cpu"], standalone_mode=False)
    assert stop.value.code == 1
    assert "self-test  failed: RuntimeError: no luck" in capsys.readouterr().out
