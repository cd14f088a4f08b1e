"""`itl methods`, `itl streams`, `itl backbones` and `itl --help`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from itl.presets import METHODS


def test_methods_prints_one_line_per_method(quick_itl):
    lines = quick_itl("methods").out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    by_name = {line.split()[0]: line for line in lines}
    assert "er × hp+tangent+pd" in by_name["itl"]
    assert "derpp × hp+tangent+pd" in by_name["itl-l"]
    assert "reservoir+logits" in by_name["derpp"]
    assert METHODS["sgd"].summary in by_name["sgd"]


def test_methods_json_describes_the_parts_of_each_method(quick_itl):
    rows = {row["name"]: row for row in quick_itl("methods", "--json").json}
    assert rows["itl-l"] == {
        "name": "itl-l",
        "about": rows["itl-l"]["about"],
        "specialist": "derpp",
        "generalist": "tangent",
        "half_pipe": True,
        "projection": True,
        "memory": "reservoir",
        "stores": ["image", "label", "logits"],
        "captured": True,
        "reference": rows["itl-l"]["reference"],
        "note": "",
    }
    assert "CVPR 2024" in rows["itl-l"]["reference"]
    assert (rows["b"]["generalist"], rows["b"]["half_pipe"], rows["b"]["projection"]) == ("none", False, False)
    assert (rows["sgd"]["memory"], rows["sgd"]["stores"]) == ("none", [])


def test_methods_name_shows_settings_by_stream_and_buffer(quick_itl):
    from itl.presets import settings_for
    from itl.settings import flatten

    listed = quick_itl("methods", "derpp", "--json").json["settings"]
    assert set(listed["seq-tinyimagenet"]) == {"200", "500", "5120"}
    named = flatten(settings_for("derpp", "seq-cifar10", 500).model_dump())
    assert listed["seq-cifar10"]["500"] == {**named, "specialist.options.average": 0.0}
    own = quick_itl("methods", "cls-er", "--json").json["settings"]["seq-cifar10"]["500"]
    assert (own["specialist.options.plastic_rate"], own["specialist.options.stable_alpha"]) == (0.9, 0.999)
    assert "note        published for seq-cifar100" in quick_itl("methods", "x-der").out
    text = quick_itl("methods", "derpp").out
    assert "NeurIPS 2020" in text
    assert "specialist  derpp\n" in text
    assert "CUDA graph  yes\n" in text
    assert "specialist  er; er-separate on seq-digits and seq-cifar10\n" in quick_itl("methods", "itl").out
    assert re.search(r"settings on seq-cifar10 +buffer 200 +buffer 500", text)
    assert "memory.policy              reservoir" in text


@pytest.mark.parametrize("name", METHODS)
def test_methods_name_shows_every_setting_once_per_stream(quick_itl, name):
    listed = quick_itl("methods", name, "--json").json["settings"]
    common, *own = re.split(r"\nsettings on ", quick_itl("methods", name).out)
    shown = {line.split()[0] for line in common.partition("settings common to all streams")[2].splitlines()[1:] if line}
    assert len(own) == len(listed)
    for section in own:
        heading, *rows = section.splitlines()
        stream = heading.split()[0].rstrip(":")
        sizes = re.findall(r"buffer (\d+)", heading) or ["any"]
        by_key = {row.split()[0]: re.split(r"  +", row.strip())[1:] for row in rows if row.strip()}
        for column, size in enumerate(sizes):
            differ = {key for key, values in by_key.items() if values[column] != "–"}
            assert not shown & differ
            assert shown | differ == set(listed[stream][size])


def test_streams_prints_one_line_per_stream_with_its_files(quick_itl):
    from itl.streams import names

    lines = quick_itl("streams").out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert any("cifar-10-binary.tar.gz" in line for line in lines)
    rows = {row["name"]: row for row in quick_itl("streams", "--json").json}
    assert (rows["seq-tinyimagenet"]["classes"], rows["seq-tinyimagenet"]["tasks"]) == (200, 10)


def test_backbones_prints_one_line_per_network(itl):
    from itl.nets import names, registry

    expected = [name for name in names() if name not in registry.REGISTERED]  # the commands run in another process
    assert [line.split()[0] for line in itl("backbones").out.splitlines()] == expected
    assert [row["name"] for row in itl("backbones", "--json").json] == expected


@pytest.mark.parametrize("command", ["run", "sweep", "search"])
def test_lanes_is_a_hidden_and_deprecated_alias_of_runs_per_gpu(quick_itl, command):
    text = quick_itl(command, "--help").out
    assert "--runs-per-gpu N" in text
    assert "--lanes" not in text
    done = quick_itl(command, "--lanes", "0")
    assert "Invalid value for '--lanes'" in done.err


def test_lanes_sets_runs_per_gpu(capsys):
    from itl.cli.app import cli

    for args, expected in (
        (["--lanes", "3"], 3),
        (["--runs-per-gpu", "2"], 2),
        (["--lanes", "3", "--runs-per-gpu", "2"], 2),
        ([], None),
    ):
        given = cli.commands["run"].make_context("run", list(args)).params
        assert given["runs_per_gpu"] == expected
        assert "lanes" not in given
        deprecated = "itl: --lanes is deprecated. Use --runs-per-gpu instead.\n"
        assert capsys.readouterr().err == (deprecated if "--lanes" in args else "")


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["refine", "-h"], []])
def test_help_is_printed(quick_itl, args):
    done = quick_itl(*args)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: itl")


def test_help_is_printed_after_a_command_was_parsed_on_its_own(quick_itl):
    from itl.cli.app import cli

    cli.commands["undo"].make_context("undo", ["models"])
    assert quick_itl("undo", "-h").out.startswith("Usage: itl undo")


def test_version_is_printed(quick_itl):
    import itl as package

    assert quick_itl("--version").out == f"itl {package.__version__}\n"


PRINTING = ["--help"], ["run", "--help"], ["methods"], ["methods", "x-der"], ["methods", "itl", "--json"], ["streams"]
FAILING = ["run", "--method", "nothing"], ["learn", "m", "missing", "--dry-run"]
WITHOUT_TORCH = f"""
import io, sys
from contextlib import redirect_stdout
from itl import UserError
from itl.cli.app import cli

for args in {PRINTING}:
    with redirect_stdout(io.StringIO()) as out:
        cli(args, standalone_mode=False)
    assert len(out.getvalue().splitlines()) > 5, args
    assert "torch" not in sys.modules, args
for args in {FAILING}:
    try:
        cli(args, standalone_mode=False)
    except UserError:
        pass
    else:
        raise AssertionError(args)
    assert "torch" not in sys.modules, args
"""


def test_help_lists_and_option_errors_do_not_import_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
