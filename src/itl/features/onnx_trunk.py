"""Run a frozen trunk in ONNX Runtime, which is several times as fast as PyTorch on a CPU."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from itl.user_cache import read_cached, write_cached

INPUT = "pixels"


def load_onnx_trunk(module: nn.Module, example: Tensor, file: Path | None) -> Callable[[Tensor], Tensor] | None:
    """Convert a module to ONNX, unless `file` holds it, and open it.

    Args:
        module: Maps uint8 images `[n, c, h, w]` to features; in evaluation mode, on the CPU.
        example: Images of the shape that will be given.
        file: Where the ONNX model is cached; None for nowhere.

    Returns:
        The function from images to features, or None if ONNX Runtime is missing or cannot run the module: the caller
        then uses PyTorch.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        model = None if file is None else read_cached(file)
        if model is None:
            model = _convert(module, example)
            if file is not None:
                write_cached(file, model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # any operation may be unknown to the converter or to the runtime
        return None

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(session.run(None, {INPUT: images.cpu().numpy()})[0]))

    return run


def _convert(module: nn.Module, example: Tensor) -> bytes:
    """The ONNX model. PyTorch's older converter takes a second where the newer one takes ten."""
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
    return converted.getvalue()
