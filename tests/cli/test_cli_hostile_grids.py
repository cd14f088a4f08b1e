"""Grids that are damaged, or written to take long to read, are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import assert_refused
from support.fuzzing import time_limit

NESTED_ANCHORS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 9)
)
GRIDS = {
    "nested anchors": f"{NESTED_ANCHORS}about: *a8\n",
    "nested anchors in a setting": "settings:\n  x: {}\nabout: &b [*c]\nvary: &c {a: *b}\n",
    "a grid that contains itself": "vary: &v {a: *v}\n",
    "a malformed tag": "methods: !!int er\n",
    "a tag of Python": "methods: !!python/object/apply:os.system [true]\n",
    "a timestamp that does not exist": "seeds: [2026-13-45]\n",
    "a date": "seeds: [2026-01-01]\n",
    "a long number": f"seeds: [{'9' * 5000}]\n",
    "a long hexadecimal number": f"seeds: [0x{'f' * 5000}]\n",
    "a long hexadecimal description": f"about: 0x{'f' * 5000}\n",
    "a long number in base 60": f"seeds: [1{':1' * 20_000}]\n",
    "a large file": f"seeds: [{', '.join(map(str, range(50_000)))}]\n",
    "deep nesting": f"seeds: {'[' * 600}{']' * 600}\n",  # exceeds the recursion limit
    "binary": "seeds: !!binary x\n",
    "a merge of nothing": "<<: 3\n",
    "a set": "seeds: !!set {1, 2}\n",
    "many combinations": "vary: {" + ", ".join(f"k{k}: [1, 2, 3, 4]" for k in range(20)) + "}\n",
    "many equal cells": f"vary: {{tangent.epochs: &a {[1] * 300}, projection.epochs: *a}}\n",
}


@pytest.mark.parametrize("name", list(GRIDS))
def test_hostile_grid_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "grid.yaml").write_text(GRIDS[name])
    with time_limit():
        assert_refused("sweep", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out"), word="grid")
    assert not (tmp_path / "out").exists()


def test_key_that_occurs_twice_in_a_large_grid_is_found_quickly(tmp_path: Path) -> None:
    keys = [f'"{number}": 1' for number in range(60_000)]
    (tmp_path / "grid.json").write_text(f'{{"settings": {{{", ".join([*keys, keys[-1]])}}}}}')
    with time_limit():
        assert_refused("sweep", str(tmp_path / "grid.json"), word="59999 twice")
