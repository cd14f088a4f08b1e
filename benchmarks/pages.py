"""Puts generated tables into the pages that show them, and records into files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def put(page: Path, name: str, text: str) -> None:
    """Replace the text between a page's markers `<!-- results:NAME -->` and `<!-- /results -->`."""
    pattern = rf"(<!-- results:{name} -->\n).*?(<!-- /results -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{text}\n{m[2]}", page.read_text(), flags=re.DOTALL))


def print_record(record: dict[str, Any], file: Path | None) -> None:
    """Print a record as JSON, and write it to a file if one is given."""
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if file is not None:
        file.write_text(text, encoding="utf-8")
