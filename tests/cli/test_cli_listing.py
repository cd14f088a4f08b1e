"""`itl methods`, `itl streams`, `itl --help`: what there is, quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from itl.presets import METHODS


def test_methods_are_a_line_each(itl):
    lines = itl("methods").out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    by_name = {line.split()[0]: line for line in lines}
    assert "er × hp+tangent+pd" in by_name["itl"]
    assert "derpp × hp+tangent+pd" in by_name["itl-l"]
    assert "reservoir+logits" in by_name["derpp"]
    assert METHODS["sgd"].summary in by_name["sgd"]


def test_methods_as_json_say_what_they_are_made_of(itl):
    rows = {row["name"]: row for row in itl("methods", "--json").json}
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


def test_a_method_tells_its_settings_on_each_stream_and_buffer(itl):
    from itl.presets import settings_for
    from itl.settings import flatten

    told = itl("methods", "derpp", "--json").json["settings"]
    assert set(told["seq-tinyimagenet"]) == {"200", "500", "5120"}
    named = flatten(settings_for("derpp", "seq-cifar10", 500).model_dump())
    assert told["seq-cifar10"]["500"] == {**named, "specialist.options.average": 0.0}
    own = itl("methods", "cls-er", "--json").json["settings"]["seq-cifar10"]["500"]
    assert (own["specialist.options.plastic_rate"], own["specialist.options.stable_alpha"]) == (0.9, 0.999)
    assert "note        published for seq-cifar100" in itl("methods", "x-der").out
    text = itl("methods", "derpp").out
    assert "NeurIPS 2020" in text
    assert "specialist  derpp (its step is captured on a GPU)\n" in text
    assert "er (its step is captured on a GPU); er-apart on seq-digits and seq-cifar10\n" in itl("methods", "itl").out
    assert "seq-cifar10, buffer 500:" in text
    assert "memory.policy              reservoir" in text


@pytest.mark.parametrize("name", METHODS)
def test_every_method_tells_each_of_its_settings_once_a_stream(itl, name):
    told = itl("methods", name, "--json").json["settings"]
    common, _, own = itl("methods", name).out.partition("\nand on\n")
    shown = {line.split()[0] for line in common.partition("settings on every stream")[2].splitlines()[1:]}
    for line in own.splitlines():
        where, _, pairs = line.strip().partition(": ")
        stream, _, size = where.partition(", buffer ")
        differ = set() if pairs == "the same" else {pair.partition("=")[0] for pair in pairs.split(" ")}
        assert not shown & differ
        assert shown | differ == set(told[stream][size or "any"])
    assert len(own.splitlines()) == sum(map(len, told.values()))


def test_streams_are_a_line_each_with_what_goes_where(itl):
    from itl.streams import names

    lines = itl("streams").out.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert any("cifar-10-binary.tar.gz" in line for line in lines)
    rows = {row["name"]: row for row in itl("streams", "--json").json}
    assert (rows["seq-tinyimagenet"]["classes"], rows["seq-tinyimagenet"]["tasks"]) == (200, 10)


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["refine", "-h"], []])
def test_help_is_help(itl, args):
    done = itl(*args)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: itl")


def test_version(itl):
    import itl as package

    assert itl("--version").out == f"itl {package.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["run", "--method", "nothing"]])
def test_what_needs_no_torch_does_not_wait_for_it(args):
    program = f"import sys; from itl.cli.app import cli; sys.argv = ['itl', *{args!r}]\n"
    program += "try: cli(standalone_mode=False)\nexcept Exception: pass\n"
    program += "assert 'torch' not in sys.modules and 'itl' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
