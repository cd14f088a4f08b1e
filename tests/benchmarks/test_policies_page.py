"""The tables of docs/memory.md match the records."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "table"), [("policies", "table"), ("reverse", "reverse_table")])
def test_page_shows_the_records(name: str, table: str) -> None:
    study = runpy.run_path(str(HOME / "benchmarks" / "buffer_policies.py"))
    page = (HOME / "docs" / "memory.md").read_text()
    (shown,) = re.findall(rf"<!-- results:{name} -->\n(.*?)\n<!-- /results -->", page, re.DOTALL)
    assert shown == study[table]()
    assert len(shown.splitlines()) > 3
