"""Configuration of all tests: one thread, a fixed random seed, no flushing to disk, no warnings from inside torch.

Without a GPU, Triton kernels run in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # threads only add overhead to tensors this small
    os.fsync = lambda handle: None  # slow, and needed only if the machine loses power
    # The first call of jvp makes torch use its own deprecated torch.jit.script.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def fixed_random_seed() -> None:
    """Seed torch's global generator before every test."""
    torch.manual_seed(0)
