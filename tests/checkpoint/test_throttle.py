"""CheckpointThrottle: saving takes a small share of the running time, also on a slow disk."""

from __future__ import annotations

import itertools
import time

import pytest

from itl import UserError
from itl.checkpoint.throttle import MAX_SAVE_SHARE, CheckpointThrottle
from itl.experiments.run import Config, run
from support.tiny import TINY, tiny_stream


class FakeTime:
    """Replaces the module `time`; the test sets the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake_time = FakeTime()
    monkeypatch.setattr("itl.checkpoint.throttle.time", fake_time)
    return fake_time


@pytest.mark.parametrize(("save", "round_"), [(0.01, 0.5), (2.0, 1.0), (40.0, 10.0), (0.5, 200.0)])
def test_throttle_bounds_the_share_of_time_spent_saving(fake_time: FakeTime, save: float, round_: float) -> None:
    throttle = CheckpointThrottle(30.0)
    saved: list[float] = []
    trained = 0.0
    while trained < 20_000:
        fake_time.now += round_
        trained += round_
        if throttle.due():
            saved.append(fake_time.now)
            with throttle.saving():
                fake_time.now += save
    assert len(saved) * save < 0.03 * fake_time.now
    gaps = [b - a for a, b in itertools.pairwise(saved)]
    assert max(gaps) <= max(30.0, save / MAX_SAVE_SHARE) + save + round_  # not rarer than necessary
    assert min(gaps) >= 30.0


def test_record_contains_the_time_spent_saving(tmp_path: pytest.TempPathFactory) -> None:
    stream = tiny_stream()
    result = run(Config(stream="x", buffer=8, settings=TINY), stream, tmp_path / "run", device="cpu")  # type: ignore
    assert 0 < result["seconds"]["saving"] < result["seconds"]["total"]


def test_environment_variable_sets_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_SAVE_EVERY", "0.05")
    throttle = CheckpointThrottle()
    assert not throttle.due()
    time.sleep(0.06)
    assert throttle.due()
    monkeypatch.setenv("ITL_SAVE_EVERY", "often")
    with pytest.raises(UserError, match="ITL_SAVE_EVERY must be a number of seconds, not 'often'"):
        CheckpointThrottle()
