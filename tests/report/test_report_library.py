"""The charting library inside the page is an unchanged release, with its license."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from itl.report.page import LIBRARY

PLOTLY_4_1_1 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"  # plotly-cartesian.min.js


def test_library_is_the_release_with_its_license() -> None:
    code = gzip.decompress(files("itl.report").joinpath(LIBRARY).read_bytes())
    assert hashlib.sha256(code).hexdigest() == PLOTLY_4_1_1
    assert files("itl.report").joinpath("plotly/LICENSE").read_text().startswith("MIT License")
