"""Export a model as one ONNX or `torch.export` file from pixels to probabilities, with labels and without memory."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from itl import __version__
from itl.apps.model import classify_onnx
from itl.apps.model.folder import Model
from itl.apps.model.input_format import interpolation
from itl.atomic import atomic_write
from itl.checkpoint.store import error_summary
from itl.errors import UserError
from itl.nets import Net
from itl.streams import pillow_images

METADATA_FILE = "itl.json"  # extra file with the metadata in a torch.export program
SCRIPT_NAME = "classify_onnx.py"
INPUT_NAME, OUTPUT_NAME = "pixels", "probabilities"


class ExportModule(nn.Module):
    """Maps pixels, uint8 `[n, channels, size, size]`, to probabilities, float32 `[n, classes]`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        learner = model.learner
        self.net = _cpu_copy(learner.net)
        # Before a generalist has changed the network, the specialist predicts, possibly with further model copies.
        self.specialist = None if learner.is_expert else copy.copy(learner.specialist)
        if self.specialist is not None:
            if not self.specialist.exportable:
                raise UserError(f"models of {self.specialist.name} cannot be exported; teach one with ridge or ranpac")
            self.specialist.model_copies = {
                name: _cpu_copy(net) for name, net in learner.specialist.model_copies.items()
            }
            self.model_copies = nn.ModuleDict(self.specialist.model_copies)
        self.normalize = learner.normalize.as_module()  # with a frozen trunk: the features
        self.temperature = model.calibration.temperature
        merged = len(model.classes) < len(model.output_names)
        self.output_class_matrix = nn.Buffer(model.output_class_matrix()) if merged else None

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute what `Model.predict_proba` computes."""
        x = self.normalize(pixels)
        logits = self.net(x) if self.specialist is None else self.specialist.evaluate_logits(self.net, x)
        probabilities = (logits / self.temperature).softmax(1)
        return probabilities if self.output_class_matrix is None else probabilities @ self.output_class_matrix


def _cpu_copy(net: Net) -> Net:
    """Return a frozen copy of a network on the CPU, in evaluation mode and contiguous memory format."""
    net = copy.deepcopy(net).cpu().eval()
    net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return net.requires_grad_(False)


def export_metadata(model: Model) -> dict[str, Any]:
    """Return what a program must know to use the exported file: labels, input, preprocessing and output."""
    size, channels = model.image["size"], model.image["channels"]
    steps = f"rotate upright, crop the largest central square, resize to {size} x {size} ({interpolation(model)})"
    order = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return {
        "made_by": f"itl {__version__}",
        "labels": model.classes,
        "input": {"name": INPUT_NAME, "type": "uint8", "shape": ["batch", channels, size, size], "order": order},
        "preprocessing": f"{steps}, values 0 to 255",
        "interpolation": interpolation(model),
        "inside": "scaling, normalization, network, temperature, softmax",
        "output": {"name": OUTPUT_NAME, "type": "float32", "shape": ["batch", len(model.classes)]},
        "unknown_below": model.calibration.threshold if model.calibration.score == "probability" else None,
    }


def to_torch(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a `torch.export` program (.pt2), with its metadata in the extra file `itl.json`.

    Args:
        model: The model.
        path: The file to write.

    Raises:
        UserError: If the file cannot be written.
    """
    with _silenced(), _draft_of(path) as draft:
        metadata = json.dumps(export_metadata(model))
        torch.export.save(_export_program(model), draft, extra_files={METADATA_FILE: metadata})


def to_onnx(model: Model, path: str | os.PathLike[str]) -> None:
    """Write an ONNX file, with its metadata under the keys `itl` and `labels`.

    Args:
        model: The model.
        path: The file to write.

    Raises:
        UserError: If the file cannot be written, or the packages for ONNX are missing.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # needed by torch's exporter
    except ImportError:
        raise UserError("ONNX export needs the packages onnx and onnxscript: pip install 'itl[onnx]'") from None
    with _silenced(), _draft_of(path) as draft:
        program = torch.onnx.export(
            _export_program(model), dynamo=True, input_names=[INPUT_NAME], output_names=[OUTPUT_NAME], verbose=False
        )
        assert program is not None
        proto = _with_metadata(program.model_proto, export_metadata(model))
        onnx.checker.check_model(proto)
        draft.write(proto.SerializeToString())


def write_script(folder: str | os.PathLike[str]) -> Path:
    """Write a script that classifies pictures with an ONNX file, without itl, and return its path.

    Args:
        folder: The folder to write it into. A script there is replaced.

    Raises:
        UserError: If the file cannot be written.
    """
    future = "from __future__ import annotations\n"
    preparation = inspect.getsource(pillow_images).partition(future)[2]
    script = inspect.getsource(classify_onnx).replace(
        f"from {pillow_images.__name__} import central_square\n", preparation
    )
    path = Path(folder) / SCRIPT_NAME
    with _draft_of(path) as draft:
        draft.write(script.encode())
    return path


def _with_metadata(proto: Any, metadata: dict[str, Any]) -> Any:
    """Add metadata to an ONNX model, name its batch dimension, and remove paths of local source files."""
    for key, value in (("itl", json.dumps(metadata)), ("labels", json.dumps(metadata["labels"]))):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == batch:
                dim.dim_param = "batch"
    return proto


def _export_program(model: Model) -> torch.export.ExportedProgram:
    """Return the program for batches of any size."""
    shape = (model.image["channels"], model.image["size"], model.image["size"])
    example = torch.zeros((3, *shape), dtype=torch.uint8)  # a batch of 1 would become a constant
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with torch.no_grad():
        program = torch.export.export(
            ExportModule(model), (example,), dynamic_shapes={"pixels": {0: batch}}, strict=False
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains paths of local source files
    return program


@contextmanager
def _draft_of(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` when it is complete."""
    try:
        with atomic_write(path) as draft:  # created first: exporters raise all kinds of exceptions if they cannot write
            yield draft
    except OSError as error:
        raise UserError(f"cannot write {path}: {error_summary(error)}") from None


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress log messages and warnings of torch's exporters that are meant for their developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
