"""JSON from anybody: everything that is wrong with it is a `ValueError`."""

from __future__ import annotations

import pytest

from itl.strict_json import MAX_DEPTH, parse_json


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_limited(left: str, right: str) -> None:
    def nested(depth: int) -> str:
        return f"{left * depth}1{right * depth}"

    parse_json(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(nested(depth))


def test_long_but_flat_text_is_not_too_deep() -> None:
    assert parse_json("[" + ", ".join(["[]"] * 1000) + "]") == [[]] * 1000


@pytest.mark.parametrize("text", ["9" * 5000, b"\xff", "{", ""])
def test_other_mistakes_are_value_errors(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
