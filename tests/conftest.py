"""What every test shares: no random state left over from the test before, and torch's own deprecations."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    # torch builds its forward-mode decompositions with its own deprecated torch.jit.script when jvp is first called.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_random_state() -> None:
    torch.manual_seed(0)
