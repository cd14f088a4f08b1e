"""JSON answers for texts that may come from anybody."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class JSONAnswer(JSONResponse):
    """A JSON response in ASCII: class and file names need not be valid UTF-8."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
