"""Saving an unfinished stage never takes more than a small share of the time, however slow the disk."""

from __future__ import annotations

import itertools
import time

import pytest

from itl import UserError
from itl.checkpoint.throttle import MAX_SAVE_SHARE, CheckpointThrottle
from itl.experiments.run import Config, run
from support.tiny import TINY, tiny_stream


class Hours:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    hours = Hours()
    monkeypatch.setattr("itl.checkpoint.throttle.time", hours)
    return hours


@pytest.mark.parametrize(("save", "round_"), [(0.01, 0.5), (2.0, 1.0), (40.0, 10.0), (0.5, 200.0)])
def test_a_slow_disk_makes_saves_rarer_and_training_no_slower(hours: Hours, save: float, round_: float) -> None:
    throttle = CheckpointThrottle(30.0)
    saved: list[float] = []
    trained = 0.0
    while trained < 20_000:
        hours.now += round_
        trained += round_
        if throttle.due():
            saved.append(hours.now)
            with throttle.saving():
                hours.now += save
    assert len(saved) * save < 0.03 * hours.now
    gaps = [b - a for a, b in itertools.pairwise(saved)]
    assert max(gaps) <= max(30.0, save / MAX_SAVE_SHARE) + save + round_  # and no rarer than that
    assert min(gaps) >= 30.0


def test_what_saving_took_is_in_the_record(tmp_path: pytest.TempPathFactory) -> None:
    stream = tiny_stream()
    result = run(Config(stream="x", buffer=8, settings=TINY), stream, tmp_path / "run", device="cpu")  # type: ignore
    assert 0 < result["seconds"]["saving"] < result["seconds"]["total"]


def test_how_often_is_for_the_user_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_SAVE_EVERY", "0.05")
    throttle = CheckpointThrottle()
    assert not throttle.due()
    time.sleep(0.06)
    assert throttle.due()
    monkeypatch.setenv("ITL_SAVE_EVERY", "often")
    with pytest.raises(UserError, match="ITL_SAVE_EVERY must be a number of seconds, not 'often'"):
        CheckpointThrottle()
