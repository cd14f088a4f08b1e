"""Run a frozen trunk in ONNX Runtime, which is several times as fast as PyTorch on a CPU."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from itl.atomic import atomic_write

INPUT = "pixels"


def load_onnx_trunk(module: nn.Module, example: Tensor, file: Path) -> Callable[[Tensor], Tensor] | None:
    """Convert a module to ONNX, unless `file` exists, and open it.

    Args:
        module: Maps uint8 images `[n, c, h, w]` to features; in evaluation mode, on the CPU.
        example: Images of the shape that will be given.
        file: Where the ONNX model is kept.

    Returns:
        The function from images to features, or None if ONNX Runtime is missing or cannot run the module: the caller
        then uses PyTorch.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as draft:
                _convert(module, example, draft)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session: Any = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception:  # any operation may be unknown to the converter or to the runtime
        return None

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(session.run(None, {INPUT: images.cpu().numpy()})[0]))

    return run


def _convert(module: nn.Module, example: Tensor, file: BinaryIO) -> None:
    """Write the ONNX model to a file. PyTorch's older converter takes a second where the newer one takes ten."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    converted = io.BytesIO()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (example,),
                converted,  # type: ignore[arg-type]
                dynamo=False,
                input_names=[INPUT],
                output_names=["features"],
                dynamic_axes={INPUT: {0: "batch"}, "features": {0: "batch"}},
            )
    finally:
        logger.setLevel(level)
    file.write(converted.getvalue())
