"""Puts generated tables into the pages that show them."""

from __future__ import annotations

import re
from pathlib import Path


def put(page: Path, name: str, text: str) -> None:
    """Replace the text between a page's markers `<!-- results:NAME -->` and `<!-- /results -->`."""
    pattern = rf"(<!-- results:{name} -->\n).*?(<!-- /results -->)"
    page.write_text(re.sub(pattern, lambda m: f"{m[1]}{text}\n{m[2]}", page.read_text(), flags=re.DOTALL))
