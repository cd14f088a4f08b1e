"""JSON responses of texts that need not be valid UTF-8 and of numbers that need not be finite."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


class SafeJSONResponse(JSONResponse):
    """A JSON response in ASCII: class and file names need not be valid UTF-8."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:  # a model's history may contain any number, but JSON has finite ones only
            text = json.dumps(_without_nan(content), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _without_nan(value: Any) -> Any:
    """A copy with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
