"""The live displays and the estimate of the remaining time."""

from __future__ import annotations

import os
import pty
import re
import select

import pytest

from itl.callbacks.base import Callback
from itl.cli.display.accuracy_plot import accuracy_plot, downsample
from itl.cli.display.formatting import format_duration
from itl.learner.remaining_time import EtaEstimator, estimate_run
from itl.learner.stage_estimate import StageEstimate
from support.cli_process import ForkServer, tiny
from support.image_folders import IMAGE_SETTINGS, as_options, write_images


def run_on_terminal(server: ForkServer, args: list[str], folder) -> str:
    """Everything `itl` writes to a terminal of 80 columns."""
    master, slave = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
    process = server.start(args, folder, env=env, terminal=os.ttyname(slave))
    written, ended = b"", False
    while not ended:
        ended = process.has_ended()  # before the last bytes are read
        while select.select([master], [], [], 0.05)[0]:
            written += os.read(master, 65536)
    os.close(slave)
    os.close(master)
    assert process.wait().code == 0
    return written.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def shown(fork_server, tmp_path_factory) -> str:
    return run_on_terminal(
        fork_server, ["run", *tiny("specialist.steps=40", "tangent.steps=80")], tmp_path_factory.mktemp("live")
    )


def test_run_display_shows_stage_accuracy_loss_and_remaining_time(shown):
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"task 1 of 2, specialist, epoch \d+ of 2", plain)
    assert re.search(r"task 2 of 2, \w+, epoch \d+ of \d+, loss [\d.e-]+\nClass-IL [\d.]+, Task-IL [\d.]+", plain)
    assert re.search(r"\d+ %  \d+:\d\d elapsed, about \d+:\d\d left", plain)
    assert re.search(r"\n1 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ \n", plain)
    assert max(map(len, plain.splitlines())) <= 80
    assert "wrote runs/seq-digits-itl-20-seed0" in plain


def test_run_display_shows_the_accuracy_plot(shown):
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    drawn = re.findall(
        r"Class-IL on the tasks seen so far, %\n100 │([^\n]*)\n(?:    │[^\n]*\n){3}  0 │([^\n]*)\n     ([STP ]+)", plain
    )
    assert drawn
    top, bottom, letters = drawn[-1]
    assert set(top + bottom) <= set(" ▁▂▃▄▅▆▇█")
    assert letters.replace(" ", "").startswith("STPST")


def test_accuracy_plot_draws_one_bar_per_point():
    points = [(1, "specialist", 0.0), (1, "specialist", 50.0), (1, "tangent", 100.0), (2, "specialist", 2.6)]
    lines = accuracy_plot(points, 80).plain.splitlines()
    assert [line[5:] for line in lines] == ["  █ ", "  █ ", " ▄█ ", " ██ ", " ██▁", "S TS"]
    assert max(map(len, accuracy_plot(points * 100, 60).plain.splitlines())) <= 60
    assert downsample(points * 100, 7)[-1] == points[-1]


def test_run_display_restores_the_cursor_before_the_summary(shown):
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1
    assert shown.index("\x1b[?25h") < shown.index("wrote ")


def test_learn_display_shows_stage_and_remaining_time(fork_server, tmp_path):
    write_images(tmp_path / "monday", "ant", "bee")
    words = ["learn", "m", "monday", "--size", "8", "--buffer", "12", "--device", "cpu"]
    shown = run_on_terminal(
        fork_server, [*words, *as_options({**IMAGE_SETTINGS, "specialist.epochs": 40, "tangent.steps": 80})], tmp_path
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "m: learning monday" in plain
    assert re.search(r"learning the new images, epoch \d+ of 40", plain)
    assert re.search(r"\d+ %  \d+:\d\d elapsed, about \d+:\d\d left", plain)
    assert max(map(len, plain.splitlines())) <= 80
    assert "wrote m (2 classes, 12 of 12 images in memory)" in plain


class StepCounter(Callback):
    def __init__(self):
        self.steps = []

    def on_stage_start(self, learner, stage):
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
def test_estimated_steps_equal_the_steps_taken(tmp_path, method, own):
    from itl.experiments.run import Config, run

    small = {"net.width": 2, "specialist.epochs": 1, "tangent.epochs": 2, "projection.epochs": 1, **own}
    config = Config(method=method, tasks=2, settings=small)
    stream, counts = config.load_stream("data"), StepCounter()
    result = run(config, stream, tmp_path / "run", device="cpu", callbacks=[counts], save=False)
    from itl.settings import build

    estimated = estimate_run(build(result["settings"]), [len(task.train) for task in stream], config.buffer)
    stages = {"full": "generalist", "tangent": "generalist"}
    assert [(stage.task, stage.stage, stage.steps) for stage in estimated] == [
        (task, stages.get(name, name), steps) for task, name, steps in counts.steps
    ]


def test_remaining_time_follows_from_the_speed_so_far():
    eta = EtaEstimator(
        [
            StageEstimate(1, "specialist", 10, 32),
            StageEstimate(1, "generalist", 4, 32),
            StageEstimate(2, "specialist", 10, 64),
        ]
    )
    assert eta.remaining() is None
    eta.start_stage(1, "specialist", 0)
    eta.update(5, 10.0)  # two seconds per step of 32 images
    assert eta.remaining() == pytest.approx(5 * 2 + 4 * 2 + 10 * 4)
    eta.update(10, 10.0)
    eta.start_stage(1, "tangent", 0)
    eta.update(4, 4.0)  # the generalist is twice as fast
    eta.start_stage(2, "specialist", 5)  # half of the second task was done before
    assert eta.remaining() == pytest.approx(5 * 4)
    eta.update(10, 20.0)
    assert eta.remaining() == 0


def test_format_duration_shows_minutes_or_hours():
    assert [format_duration(s) for s in (0, 59.6, 61, 3599, 3725)] == ["0:00", "1:00", "1:01", "59:59", "1:02:05"]
