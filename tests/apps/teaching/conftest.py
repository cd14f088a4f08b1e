from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary cache folder for decoded images."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ITL_CACHE", str(folder))
    return folder
