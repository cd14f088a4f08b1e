"""Several runs of one command: seeds, buffers, `--vary`, and the live table of concurrent runs."""

from __future__ import annotations

import io

from rich.console import Console

from itl.cli.display.concurrent_runs import RunsDisplay
from itl.experiments.config import Config
from support.cli_process import tiny


def test_every_combination_of_seed_buffer_and_varied_setting_is_run(itl, tmp_path):
    words = ["run", *tiny(), "--method", "b", "--json"]
    done = itl(*words, "--seeds", "0,1", "--buffers", "20,24", "--vary", "specialist.lr=0.01,0.1")
    assert (done.code, done.err) == (0, "")
    assert len(done.json["results"]) == len(set(done.json["folders"])) == 8
    seen = {(r["buffer"], r["variant"], r["seed"]) for r in done.json["results"]}
    variants = ("specialist.lr-0.01", "specialist.lr-0.1")
    assert seen == {(b, v, s) for b in (20, 24) for v in variants for s in (0, 1)}
    assert [cell["runs"] for cell in done.json["cells"]] == [2, 2, 2, 2]
    one = next(r for r in done.json["results"] if r["variant"] == variants[1] and r["buffer"] == 24 and r["seed"] == 1)
    alone = itl(*words, "--set", "specialist.lr=0.1", "--seed", 1, "--buffer", 24, "--variant", variants[1])
    assert alone.json["class_il_matrix"] == one["class_il_matrix"]


def test_duplicate_and_conflicting_values_are_refused(itl):
    for options in (("--buffers", "20,20"), ("--buffers", "20", "--buffer", "30"), ("--seeds", "1,1")):
        done = itl("run", *tiny(), *options)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1


def test_runs_display_has_one_row_per_run():
    configs = [Config(buffer=size, seed=seed) for size in (20, 50) for seed in (0, 1)]
    console = Console(file=io.StringIO(), width=80)
    display = RunsDisplay(console, configs, 4)
    display.runs[2].on_record({"class_il": 61.25, "task_il": 90.5})
    console.print(display.render())
    text = console.file.getvalue()
    assert "4 runs at a time" in text
    for row in ("buffer 20, seed 0", "buffer 20, seed 1", "buffer 50, seed 1"):
        assert row in text
    assert next(line for line in text.splitlines() if "buffer 50, seed 0" in line).split()[-2:] == ["61.2", "90.5"]
