"""Grids are cross products, the paper's come with the package, and mistakes give one-line errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from itl.errors import UserError
from itl.presets import METHODS
from itl.results.published import published

pytest.importorskip("yaml")
from itl.experiments.search.grid import build_grid, load_grid, packaged_grids

SMALL = {"methods": ["er", "itl"], "buffers": [20, 50], "seeds": [0, 1, 2]}


def test_grid_has_every_combination_once():
    grid = build_grid({**SMALL, "vary": {"specialist.lr": [0.1, 0.03], "specialist.batch": [16]}}, "mine")
    assert len(grid.cells) == len({config.name for config in grid.cells}) == 2 * 2 * 3 * 2
    seen = {(c.method, c.buffer, c.seed, c.settings["specialist.lr"]) for c in grid.cells}
    assert len(seen) == 24
    assert {c.variant for c in grid.cells} == {
        "specialist.lr-0.1-specialist.batch-16",
        "specialist.lr-0.03-specialist.batch-16",
    }


def test_cells_inherit_the_other_keys_and_may_override_them():
    values = {
        "buffers": [20, 50],
        "seed": 3,
        "settings": {"net.width": 4},
        "cells": [{"method": "er"}, {"methods": ["b"], "buffer": 30, "settings": {"net": {"name": "resnet10"}}}],
    }
    found = [(c.method, c.buffer, c.seed, c.settings) for c in build_grid(values, "mine").cells]
    width = {"net.width": 4}
    assert found == [("er", 20, 3, width), ("er", 50, 3, width), ("b", 30, 3, {**width, "net.name": "resnet10"})]


def test_equal_cells_are_merged():
    assert len(build_grid({"cells": [{"method": "er"}, {"methods": ["er", "b"]}]}, "mine").cells) == 2


@pytest.mark.parametrize("name", ["paper-table1", "paper-table2", "paper-ablation"])
def test_paper_grid_has_every_published_cell_of_an_available_method(name):
    source = {"paper-table1": "table 1", "paper-table2": "table 2"}.get(name, "ablation")
    rows = {(c.stream, c.method, c.buffer or 0) for c in published() if c.source == source}
    grid = load_grid(name)
    assert {(c.stream, c.method, c.buffer) for c in grid.cells} == {row for row in rows if row[1] in METHODS}
    assert set(grid.missing) == {row[1] for row in rows} - METHODS.keys()
    assert {c.seed for c in grid.cells} == {0, 1, 2}


def test_packaged_grids_are_valid_and_have_a_description():
    assert {"paper-table1", "paper-table2", "paper-ablation", "paper-memory", "paper-stages"} <= packaged_grids().keys()
    for name, about in packaged_grids().items():
        assert load_grid(name).cells
        assert about
    fractions = {c.settings.get("memory.fraction") for c in load_grid("paper-memory").cells}
    assert {0.1, 0.2, 0.3, 0.4, 0.5} <= fractions  # the appendix's


def test_docs_list_the_packaged_grids():
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text()
    assert dict(re.findall(r"^\| `(paper-[\w-]+)` \| (.+) \|$", page, re.MULTILINE)) == packaged_grids()


def test_json_and_yaml_give_the_same_grid(tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(SMALL))
    (tmp_path / "h.yaml").write_text("methods: [er, itl]\nbuffers: [20, 50]\nseeds: [0, 1, 2]\n")
    assert load_grid(str(tmp_path / "g.json")).cells == load_grid(str(tmp_path / "h.yaml")).cells


def test_yaml_anchors_are_resolved(tmp_path):
    (tmp_path / "g.yaml").write_text("cells:\n- &a {seed: 2, buffer: 30}\n- {<<: *a, buffer: 40}\n")
    assert [(c.seed, c.buffer) for c in load_grid(str(tmp_path / "g.yaml")).cells] == [(2, 30), (2, 40)]


def test_size_and_depth_of_a_grid_are_limited(tmp_path, monkeypatch):
    def refused(text, message):
        (tmp_path / "g.yaml").write_text(text)
        with pytest.raises(UserError, match=message):
            load_grid(str(tmp_path / "g.yaml"))

    monkeypatch.setattr("yaml.load", lambda *_: pytest.fail("it was loaded"))
    anchors = [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9 if k else '0' * 9)}]\n" for k in range(7)]
    refused("".join(anchors), "more than 200,000 values once its anchors are replaced")
    refused(f"seeds: {'[' * 101}{']' * 101}", "nested too deeply")
    refused("vary: &v {a: *v}", "nested too deeply, or contains itself")
    refused("#" * (4 << 20) + "\n", "more than 4 MiB")


MISTAKES = {
    "empty": ({"methods": []}, "empty"),
    "no cells": ({"cells": []}, "empty"),
    "a list": ([1], "mapping"),
    "unknown key": ({"method": "er", "bufers": [20]}, "bufers.*buffers"),
    "unknown key of a cell": ({"cells": [{"sed": 1}]}, "'sed'.*seed"),
    "both": ({"method": "er", "methods": ["itl"]}, "both method and methods"),
    "no list": ({"seeds": 3}, "seeds.*must be a list"),
    "unknown method": ({"methods": ["errr"]}, "Unknown method 'errr'"),
    "unknown stream": ({"stream": "seq-digit"}, "Unknown stream.*seq-digits"),
    "unknown split": ({"split": "train"}, "Unknown split"),
    "unknown setting": ({"settings": {"tangent.l": 1}}, "Unknown setting 'tangent.l'"),
    "another specialist's option": (
        {"methods": ["itl", "er"], "settings": {"specialist.options.average": 0.9}},
        "average': the specialist er has no options",
    ),
    "unknown option": ({"method": "itl", "vary": {"specialist.options.averages": [0.9]}}, "options.average"),
    "unknown varied setting": ({"vary": {"tangent.l": [1]}}, "Unknown setting 'tangent.l'"),
    "out of range": ({"vary": {"tangent.momentum": [0.9, 1.5]}}, "tangent.momentum.*less than 1"),
    "wrong type": ({"buffers": ["many"]}, "buffer.*not valid"),
    "negative": ({"seeds": [-1]}, "0 or more"),
    "same names": ({"cells": [{"tasks": 2}, {"tasks": 5}]}, "variant"),
    "too many tasks": ({"tasks": 11}, "11.*10 classes|10 classes.*11"),
    "an order with a class twice": ({"order": [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]}, "order must hold every class number"),
    "settings are no mapping": ({"settings": [1]}, "mapping"),
    "a list of lists": ({"seeds": [[0]]}, "seeds.*single values"),
    "a list of mappings": ({"methods": [{"er": 1}]}, "methods.*single values"),
    "a table that is a list": ({"published": [1]}, "Unknown published table"),
    "settings of a cell are no mapping": ({"cells": [{"settings": [1]}]}, "settings.*mapping"),
    "a setting that is a number": ({"settings": {1: 2}}, "Unknown setting '1'"),
    "a part of settings that is a number": ({"settings": {"specialist": {1: 2}}}, r"Unknown setting 'specialist\.1'"),
    "a variant that is a list": ({"variant": ["a"]}, "variant.*text"),
    "unknown table": ({"published": "table 9"}, "Unknown published table"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_grid_gives_a_one_line_error(name):
    values, words = MISTAKES[name]
    with pytest.raises(UserError, match=words) as error:
        build_grid(values, "mine")
    assert "\n" not in str(error.value)


def test_unreadable_grid_gives_an_error(tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [1")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "twice.yaml").write_text("seeds: [0]\nseeds: [1]\n")
    (tmp_path / "twice.json").write_text('{"settings": {"net.width": 2, "net.width": 4}}')
    (tmp_path / "ring.yaml").write_text("settings: &s {specialist: *s}\n")
    (tmp_path / "rings.yaml").write_text("cells: &c [{cells: *c}]\n")
    expected = {"bad.yaml": "not valid YAML", "bad.json": "not valid JSON", "none.yaml": "No such file"}
    expected |= {"twice.yaml": "has seeds twice", "twice.json": r"has net\.width twice"}
    expected |= {"ring.yaml": "contains itself", "rings.yaml": "contains itself"}
    for path, message in expected.items():
        with pytest.raises(UserError, match=message):
            load_grid(str(tmp_path / path))
    with pytest.raises(UserError, match="paper-table1"):
        load_grid("paper-table")
