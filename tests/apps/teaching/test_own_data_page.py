"""The page about one's own images: its Python runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from itl.apps.model import Model

PAGE = Path(__file__).parents[3] / "docs" / "own-data.md"
CLASSES = ["digit 0", "digit 1", "digit 2"]


def test_the_pages_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    digits, as_itl_learn, from_anywhere = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(digits, {})
    assert {path.name for path in tmp_path.iterdir()} == {"monday", "tuesday"}
    pictures = sorted(tmp_path.glob("*/*/*.png"))
    assert len(pictures) == 5 * 80
    for picture in pictures:
        if int(picture.stem) >= 6:  # a few are enough
            picture.unlink()
    names: dict[str, Any] = {}
    exec(as_itl_learn, names)
    assert names["model"].classes == CLASSES
    assert names["model"].image["flip"] is False
    exec(from_anywhere, names)
    assert names["problems"] == []
    assert names["probabilities"].shape == (len(names["files"]), 3)
    mine = Model.open("mine", device="cpu")
    assert (mine.classes, mine.image["flip"]) == (CLASSES, False)
