"""The live display, and the time it says is left."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from itl.callbacks.base import Callback
from itl.cli.display.accuracy_plot import curve, thin
from itl.cli.display.eta import Outlook, legs
from itl.cli.display.run_tables import clock
from itl.learner.stage_estimate import StageEstimate
from support.cli_process import tiny
from support.image_folders import SMALL, as_options, write_pictures


def on_a_terminal(args: list[str], folder) -> str:
    """What `itl` shows on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "itl.cli", *args], cwd=folder, stdout=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> str:
    return on_a_terminal(["run", *tiny("specialist.steps=40", "tangent.steps=80")], tmp_path_factory.mktemp("live"))


def test_a_terminal_sees_task_stage_epoch_accuracy_loss_and_time_left(shown):
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"task 1 of 2  specialist  epoch \d+ of 2", plain)
    assert re.search(r"task 2 of 2  \w+  epoch \d+ of \d+  loss [\d.e-]+\nClass-IL [\d.]+  Task-IL [\d.]+", plain)
    assert re.search(r"\d+ %  0:\d\d elapsed, about 0:\d\d left", plain)
    assert re.search(r"\n1 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ \n", plain)
    assert max(map(len, plain.splitlines())) <= 80
    assert "wrote runs/seq-digits-itl-20-seed0" in plain


def test_a_terminal_sees_the_curve_so_far(shown):
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    drawn = re.findall(
        r"Class-IL over the tasks seen, %\n100 │([^\n]*)\n(?:    │[^\n]*\n){3}  0 │([^\n]*)\n     ([STP ]+)", plain
    )
    assert drawn
    top, bottom, letters = drawn[-1]
    assert set(top + bottom) <= set(" ▁▂▃▄▅▆▇█")
    assert letters.replace(" ", "").startswith("STPST")


def test_a_curves_columns_are_as_high_as_its_points():
    points = [(1, "specialist", 0.0), (1, "specialist", 50.0), (1, "tangent", 100.0), (2, "specialist", 2.6)]
    lines = curve(points, 80).plain.splitlines()
    assert [line[5:] for line in lines] == ["  █ ", "  █ ", " ▄█ ", " ██ ", " ██▁", "S TS"]
    assert max(map(len, curve(points * 100, 60).plain.splitlines())) <= 60
    assert thin(points * 100, 7)[-1] == points[-1]


def test_it_redraws_itself_a_few_times_a_second_and_gives_the_cursor_back(shown):
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert shown.index("\x1b[?25h") < shown.index("wrote ")


def test_a_learn_shows_the_same_of_a_folder(tmp_path):
    write_pictures(tmp_path / "monday", "ant", "bee")
    words = ["learn", "m", "monday", "--size", "8", "--buffer", "12", "--device", "cpu"]
    shown = on_a_terminal([*words, *as_options({**SMALL, "specialist.epochs": 40, "tangent.steps": 80})], tmp_path)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "m learns monday" in plain
    assert re.search(r"specialist  epoch \d+ of 40", plain)
    assert re.search(r"\d+ %  0:\d\d elapsed, about 0:\d\d left", plain)
    assert max(map(len, plain.splitlines())) <= 80
    assert "wrote m (2 classes, 12 of 12 images in memory)" in plain


class Counts(Callback):
    def __init__(self):
        self.steps = []

    def stage_begins(self, learner, stage):
        self.steps.append((len(learner.tasks), stage.name, stage.planner.total_steps))


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("itl", {}),
        ("itl", {"projection.over": "task", "specialist.steps": 7}),
        ("b+hp+ff+pd", {"tangent.steps": 5}),
        ("er", {}),
        ("sgd", {}),
    ],
)
def test_the_steps_foreseen_are_the_steps_taken(tmp_path, method, own):
    from itl.experiments.run import Config, run

    small = {"net.width": 2, "specialist.epochs": 1, "tangent.epochs": 2, "projection.epochs": 1, **own}
    config = Config(method=method, tasks=2, settings=small)
    stream, counts = config.load_stream("data"), Counts()
    result = run(config, stream, tmp_path / "run", device="cpu", callbacks=[counts], save=False)
    from itl.settings import build

    foreseen = legs(build(result["settings"]), [len(task.train) for task in stream], config.buffer)
    stages = {"full": "generalist", "tangent": "generalist"}
    assert [(leg.task, leg.stage, leg.steps) for leg in foreseen] == [
        (task, stages.get(name, name), steps) for task, name, steps in counts.steps
    ]


def test_the_time_left_follows_from_the_pace_so_far():
    outlook = Outlook(
        [
            StageEstimate(1, "specialist", 10, 32),
            StageEstimate(1, "generalist", 4, 32),
            StageEstimate(2, "specialist", 10, 64),
        ]
    )
    assert outlook.left() is None
    outlook.begins(1, "specialist", 0)
    outlook.advances(5, 10.0)  # two seconds a step of 32
    assert outlook.left() == pytest.approx(5 * 2 + 4 * 2 + 10 * 4)
    outlook.advances(10, 10.0)
    outlook.begins(1, "tangent", 0)
    outlook.advances(4, 4.0)  # the generalist is twice as fast
    outlook.begins(2, "specialist", 5)  # and the second task was half done already
    assert outlook.left() == pytest.approx(5 * 4)
    outlook.advances(10, 20.0)
    assert outlook.left() == 0


def test_times_are_short():
    assert [clock(s) for s in (0, 59.6, 61, 3599, 3725)] == ["0:00", "1:00", "1:01", "59:59", "1:02:05"]
