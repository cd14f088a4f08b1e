"""The page about one's own images: its Python runs."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from itl.model import Model
from picture_folders import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


def test_the_pages_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    small = {**SMALL, "specialist.epochs": 1}
    monkeypatch.setattr(Model, "create", partial(Model.create, buffer=12, settings=small, device="cpu"))
    first, second = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(first, {})
    assert {path.name for path in tmp_path.iterdir()} == {"monday", "tuesday"}
    assert len(list(tmp_path.glob("*/*/*.png"))) == 5 * 80
    names: dict[str, Any] = {}
    exec(second, names)
    assert names["problems"] == []
    assert names["probabilities"].shape == (len(names["files"]), 3)
    assert Model.open("mine", device="cpu").classes == ["digit 0", "digit 1", "digit 2"]
