"""A model as one file for other programs: from pixels to probabilities, labels inside, nothing of the memory."""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from itl import __version__
from itl.apps.model.folder import Model
from itl.checkpoint.store import reason
from itl.errors import UserError
from itl.nets import Net

ABOUT = "itl.json"  # the name under which a torch.export program carries its description
INPUT, OUTPUT = "pixels", "probabilities"


class ExportModule(nn.Module):
    """Pixels uint8 `[n, channels, size, size]` to probabilities float32 `[n, classes]`; all that is needed, no more."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        learner = model.learner
        self.net = _plain(learner.net)
        self.specialist = None if learner._is_expert() else copy.copy(learner.specialist)  # what predicts, of the two
        if self.specialist is not None:
            self.specialist.twins = {name: _plain(twin) for name, twin in learner.specialist.twins.items()}
            self.twins = nn.ModuleDict(self.specialist.twins)
        self.scale = nn.Buffer(learner.normalize.scale.cpu().clone())
        self.shift = nn.Buffer(learner.normalize.shift.cpu().clone())
        merged = len(model.classes) < len(model.names)
        self.membership = nn.Buffer(model.membership()) if merged else None

    def forward(self, pixels: Tensor) -> Tensor:
        """What `itl predict` computes."""
        x = pixels.float() * self.scale + self.shift
        logits = self.net(x) if self.specialist is None else self.specialist.logits(self.net, x)
        probabilities = logits.softmax(1)
        return probabilities if self.membership is None else probabilities @ self.membership


def _plain(net: Net) -> Net:
    """A copy of a network to be used alone, on the CPU."""
    out = copy.deepcopy(net).cpu().eval()
    out.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return out.requires_grad_(False)


def describe(model: Model) -> dict[str, Any]:
    """What a program that uses the file must know."""
    size, channels = model.image["size"], model.image["channels"]
    order = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return {
        "made_by": f"itl {__version__}",
        "labels": model.classes,
        "input": {"name": INPUT, "type": "uint8", "shape": ["batch", channels, size, size], "order": order},
        "preprocessing": f"turn upright, cut out the largest central square, resize it to {size} x {size}, 0 to 255",
        "inside": "scaling, mean and deviation, the network, softmax",
        "output": {"name": OUTPUT, "type": "float32", "shape": ["batch", len(model.classes)]},
    }


def to_torch(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a `torch.export` program (.pt2); its description is the extra file itl.json in it."""
    with _quietly(), _whole(path) as draft:
        torch.export.save(_exported(model), draft, extra_files={ABOUT: json.dumps(describe(model))})


def to_onnx(model: Model, path: str | os.PathLike[str]) -> None:
    """Write an ONNX file; its description is among its metadata, under `itl` and, the labels, under `labels`."""
    try:
        import onnx
        import onnxscript  # noqa: F401  # the exporter's own need
    except ImportError:
        raise UserError("ONNX needs the packages onnx and onnxscript: pip install 'itl[onnx]'") from None
    with _quietly(), _whole(path) as draft:
        program = torch.onnx.export(
            _exported(model), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
        assert program is not None
        proto = _labelled(program.model_proto, describe(model))
        onnx.checker.check_model(proto)
        onnx.save_model(proto, os.fspath(draft))


def _labelled(proto: Any, about: dict[str, Any]) -> Any:
    """The ONNX model with its description, the batch called so, and without the names of this machine's files."""
    for key, value in (("itl", json.dumps(about)), ("labels", json.dumps(about["labels"]))):
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


def _exported(model: Model) -> torch.export.ExportedProgram:
    """The program for batches of any size."""
    shape = (model.image["channels"], model.image["size"], model.image["size"])
    example = torch.zeros((3, *shape), dtype=torch.uint8)  # not 1: a size of one would be taken for a constant
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with torch.no_grad():
        program = torch.export.export(
            ExportModule(model), (example,), dynamic_shapes={"pixels": {0: batch}}, strict=False
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names of this machine's files
    return program


@contextmanager
def _whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A draft that becomes the file when it is whole."""
    target = Path(path)
    draft = target.with_name(f".{target.stem}.draft{target.suffix}")
    try:
        draft.touch()  # where that cannot be done, exporters raise whatever they like
        yield draft
        os.replace(draft, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {reason(error)}") from None
    finally:
        with suppress(OSError):  # where nothing can be written, nothing was
            draft.unlink()


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch's exporter says to its own developers."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
