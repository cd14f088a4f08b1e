"""What every test shares: one thread, no random state left over from the test before, torch's own deprecations.

Without a GPU Triton's kernels, where a test launches them, run in its interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # tensors this small only lose by being shared out
    # torch builds its forward-mode decompositions with its own deprecated torch.jit.script when jvp is first called.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_random_state() -> None:
    torch.manual_seed(0)
