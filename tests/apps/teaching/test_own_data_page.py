"""The Python snippets of docs/own-data.md run as printed, with fewer images and epochs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from itl.apps.model import Model
from itl.apps.teaching import default_settings

PAGE = Path(__file__).parents[3] / "docs" / "own-data.md"
CLASSES = ["digit 0", "digit 1", "digit 2"]


def test_python_snippets_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    write_digits, with_teacher, with_model = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(write_digits, {})
    assert {path.name for path in tmp_path.iterdir()} == {"monday", "tuesday"}
    pictures = sorted(tmp_path.glob("*/*/*.png"))
    assert len(pictures) == 5 * 80
    for picture in pictures:
        if int(picture.stem) >= 6:  # six images per class keep the test fast
            picture.unlink()
    for name in ("SPECIALIST_EPOCHS", "MEMORY_EPOCHS"):
        monkeypatch.setattr(default_settings, name, (3, 3))
    with_model, shortened = re.subn(r'(\.epochs": )\d+', r"\g<1>3", with_model)
    assert shortened == 3
    names: dict[str, Any] = {}
    exec(with_teacher, names)
    assert names["model"].classes == CLASSES
    assert names["model"].image["flip"] is False
    exec(with_model, names)
    assert names["skipped"] == []
    assert names["probabilities"].shape == (len(names["files"]), 3)
    mine = Model.open("mine", device="cpu")
    assert (mine.classes, mine.image["flip"]) == (CLASSES, False)
