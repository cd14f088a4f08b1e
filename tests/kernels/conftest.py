"""Where kernels run: on the GPU there is, else on the CPU in Triton's interpreter, past the gates that ask for one."""

from __future__ import annotations

import pytest
import torch

from itl.augment import fused
from itl.kernels import kernels_of
from itl.nets import columns, dual, norm


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which kernels are launched."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda")
    for room in (norm, dual):
        monkeypatch.setattr(room, "fused_kernels", lambda x, *dtypes: kernels_of("nets"))
    monkeypatch.setattr(fused, "fits", lambda images, steps: True)
    monkeypatch.setattr(columns, "fits", lambda x, conv: conv.kernel_size == (3, 3))
    return torch.device("cpu")
