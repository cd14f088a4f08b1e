"""Where and how precisely the arithmetic runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from itl.errors import UserError
from itl.triton_support import device_guard, supports_triton

Module = TypeVar("Module", bound=nn.Module)
# A captured step has two branches, and with the driver's usual 8 queues those of several lanes wait for one another
# (docs/performance.md). It is read when CUDA starts; whoever has set it is right.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

PRECISIONS = ("bf16", "tf32", "fp32")
BUDGET = 256 << 20  # bytes of a step's inputs held at once, or more on a device with memory to spare
SPARE = 128  # of a device's memory, one part in so many
AT_ONCE = 1024  # images a frozen model is asked about at once: its activations must not outgrow the device


@dataclass(frozen=True)
class Engine:
    """The machine a run is on: device, precision of the specialist's arithmetic, capture and exact mode.

    `bf16` is autocast with float32 master weights and batch-norm statistics; the tangent part always runs in float32
    (`tf32` kernels are allowed unless the precision is `fp32`). `exact` asks for deterministic kernels: same device,
    same threads, same bits.
    """

    device: torch.device
    precision: str = "fp32"
    capture: bool = False
    exact: bool = False
    budget: int = BUDGET  # bytes of augmented views held at once
    resident: int | None = None  # bytes of images kept on the device; None: what its memory allows

    def __post_init__(self) -> None:
        """Set the process-wide switches this engine relies on."""
        self._switch()
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = not self.exact and not self.capture  # else: see `searching`

    def _switch(self) -> None:
        """Those of its precision and exactness, which another engine may have set otherwise."""
        if self.device.type == "cuda":
            tf32 = self.precision != "fp32"
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.deterministic = self.exact

    def activate(self) -> contextlib.AbstractContextManager[object]:
        """Within, the device is the present one, to which kernels that are not PyTorch's own go.

        The switches are this engine's from here on, for all of the process: lanes side by side must agree on them.
        """
        self._switch()
        return device_guard(self.device)

    @contextlib.contextmanager
    def searching(self) -> Iterator[None]:
        """Within, cuDNN tries its algorithms for every shape that is new, which pays for a step that will be repeated.

        It tries them on the device as it is, and waits for all that is queued there each time: what is done between
        steps (an evaluation, a frozen network's features) takes what cuDNN thinks best instead.
        """
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = not self.exact
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context of a full-precision or bf16 forward pass."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        return contextlib.nullcontext()

    @property
    def uses_triton(self) -> bool:
        """Whether the device runs kernels of our own."""
        return supports_triton(self.device)

    @property
    def layout(self) -> torch.memory_format:
        """The memory layout that the device's convolutions like best."""
        return torch.channels_last if self.uses_triton else torch.contiguous_format

    def to_device(self, net: Module) -> Module:
        """`net` on the device, in its layout."""
        net.to(self.device)
        net.to(memory_format=self.layout)  # type: ignore[call-overload]
        return net

    def to_storage(self, x: Tensor) -> Tensor:
        """`[n, c, h, w]` as rows to take batches from, which then have the device's layout (see `from_storage`)."""
        return x.permute(0, 2, 3, 1).contiguous() if self.layout is torch.channels_last else x

    def from_storage(self, rows: Tensor) -> Tensor:
        """A batch of what `to_storage` gave: `[n, c, h, w]` again."""
        return rows.permute(0, 3, 1, 2) if self.layout is torch.channels_last else rows

    def send(self, tensor: Tensor) -> Tensor:
        """`tensor` on the device, without waiting for it."""
        if self.device.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def choose_engine(
    device: str = "auto", precision: str | None = None, *, exact: bool = False, capture: bool | None = None
) -> Engine:
    """The engine for a device name (`auto`, `cpu`, `cuda`, `cuda:1`), with that device's default precision."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        where = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device '{device}'; use auto, cpu or cuda") from None
    if where.type not in ("cpu", "cuda"):
        raise UserError(f"device '{device}' is not supported; use auto, cpu or cuda")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is available here; use --device cpu")
    if precision is None:
        precision = "bf16" if where.type == "cuda" else "fp32"
    if precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, not '{precision}'")
    if capture is None:
        capture = where.type == "cuda"
    if where.type == "cpu":
        return Engine(where, precision, exact=exact)
    budget = max(BUDGET, torch.cuda.get_device_properties(where).total_memory // SPARE)
    return Engine(where, precision, capture, exact, budget)
