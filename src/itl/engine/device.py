"""Device, precision and PyTorch switches of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from itl.cpu import available_cores
from itl.errors import UserError
from itl.triton_support import device_guard, supports_triton

Module = TypeVar("Module", bound=nn.Module)
# A captured step has two branches; with the driver's default of 8 queues, those of concurrent runs wait for each other
# (docs/performance.md). CUDA reads the variable when it starts. A value set by the user wins.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

PRECISIONS = ("bf16", "tf32", "fp32")
MIN_INPUT_BYTES = 256 << 20  # bytes of step inputs in memory at once; more on devices with more memory
INPUT_SHARE = 128  # a device may use 1 / INPUT_SHARE of its memory for step inputs
MAX_THREADS = 1024  # a larger number of CPU threads is a mistake
INFERENCE_BATCH = 1024  # images per forward pass of a frozen model, so that its activations fit the device


@dataclass(frozen=True)
class Engine:
    """Device, precision, graph capture and exact mode of a run.

    Attributes:
        device: The device that trains.
        precision: "bf16" (autocast with float32 master weights and batch-norm statistics), "tf32" or "fp32". The
            tangent model always runs in float32; tf32 kernels are allowed unless the precision is "fp32".
        capture: Whether steps are captured as CUDA graphs.
        exact: Whether to use deterministic kernels: the same device and threads give the same bits.
        input_bytes: Bytes of augmented inputs in memory at once.
        resident_bytes: Bytes of images kept on the device; None: as much as its memory allows.
    """

    device: torch.device
    precision: str = "fp32"
    capture: bool = False
    exact: bool = False
    input_bytes: int = MIN_INPUT_BYTES
    resident_bytes: int | None = None

    def __post_init__(self) -> None:
        """Set the process-wide switches that this engine relies on."""
        self._switch()
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = not self.exact and not self.capture  # otherwise see `cudnn_search`

    def _switch(self) -> None:
        """Set the switches for precision and determinism, which another engine may have changed."""
        if self.device.type == "cuda":
            tf32 = self.precision != "fp32"
            torch.backends.cuda.matmul.allow_tf32 = tf32
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.deterministic = self.exact

    def activate(self) -> contextlib.AbstractContextManager[object]:
        """Make the device current for kernels that are not PyTorch's own.

        Also sets this engine's switches, which are process-wide: concurrent runs must agree on them.
        """
        self._switch()
        return device_guard(self.device)

    @contextlib.contextmanager
    def cudnn_search(self) -> Iterator[None]:
        """Let cuDNN time its algorithms for each new shape; worthwhile for a step that is repeated many times.

        Each trial waits for everything queued on the device, so work between steps (evaluation, features of a frozen
        network) uses cuDNN's heuristics instead.
        """
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = not self.exact
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Autocast context of a forward pass; does nothing unless the precision is bf16."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        return contextlib.nullcontext()

    @property
    def uses_triton(self) -> bool:
        """Whether the device runs the package's Triton kernels."""
        return supports_triton(self.device)

    @property
    def layout(self) -> torch.memory_format:
        """The fastest memory layout for convolutions on the device."""
        return torch.channels_last if self.uses_triton else torch.contiguous_format

    def to_device(self, net: Module) -> Module:
        """Move `net` to the device and its memory layout."""
        net.to(self.device)
        net.to(memory_format=self.layout)  # type: ignore[call-overload]
        return net

    def to_storage(self, x: Tensor) -> Tensor:
        """Rearrange `[n, c, h, w]` so that slices of it have the device's layout; other shapes stay as they are."""
        return x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 and self.layout is torch.channels_last else x

    def from_storage(self, rows: Tensor) -> Tensor:
        """Undo `to_storage` for a batch."""
        return rows.permute(0, 3, 1, 2) if rows.ndim == 4 and self.layout is torch.channels_last else rows

    def send(self, tensor: Tensor) -> Tensor:
        """Copy `tensor` to the device without waiting for it."""
        if self.device.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def choose_engine(
    device: str = "auto", precision: str | None = None, *, exact: bool = False, capture: bool | None = None
) -> Engine:
    """Build the engine for a device.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: One of `PRECISIONS`; default bf16 on CUDA and fp32 on a CPU.
        exact: Use deterministic kernels.
        capture: Capture steps as CUDA graphs; default: on CUDA.

    Raises:
        UserError: The device or precision is unknown or not available.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch_device = torch.device(device)
    except RuntimeError:
        raise UserError(f"Unknown device '{device}'. Use auto, cpu or cuda.") from None
    if torch_device.type not in ("cpu", "cuda"):
        raise UserError(f"Device '{device}' is not supported. Use auto, cpu or cuda.")
    if torch_device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("No CUDA device is available. Use --device cpu.")
    if precision is None:
        precision = "bf16" if torch_device.type == "cuda" else "fp32"
    if precision not in PRECISIONS:
        raise UserError(f"Unknown precision '{precision}'. Use one of {', '.join(PRECISIONS)}.")
    if capture is None:
        capture = torch_device.type == "cuda"
    if torch_device.type == "cpu":
        return Engine(torch_device, precision, exact=exact)
    input_bytes = max(MIN_INPUT_BYTES, torch.cuda.get_device_properties(torch_device).total_memory // INPUT_SHARE)
    return Engine(torch_device, precision, capture, exact, input_bytes)


def use_idle_cores() -> None:
    """Compute with as many CPU threads as there are idle cores, at least half of all; `OMP_NUM_THREADS` has priority.

    More threads than idle cores wait for each other and can slow training down many times.
    """
    if "OMP_NUM_THREADS" in os.environ or not hasattr(os, "getloadavg"):
        return
    cores = available_cores()
    torch.set_num_threads(max((cores + 1) // 2, cores - round(os.getloadavg()[0])))
