"""Weights to start from: a safetensors file of this package's or of torchvision's and timm's ResNets."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from itl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

# What others call the same layers.
ELSEWHERE = (
    (r"^(?:net|module|model|backbone)\.", ""),
    (r"^conv1\.", "stem.conv."),
    (r"^bn1\.", "stem.bn."),
    (r"\.downsample\.0\.", ".shortcut.conv."),
    (r"\.downsample\.1\.", ".shortcut.bn."),
    (r"^(?:fc|head|linear)\.", "classifier."),
)
CLASSIFIER = "classifier."
COUNT = "num_batches_tracked"  # of no consequence, and not in every file


def load_backbone_weights(net: nn.Module, path: str | os.PathLike[str]) -> int:
    """Give `net` the weights in a safetensors file, all but the classifier's; how many tensors were taken.

    A file that lacks a layer or has it in another shape is refused, and the network is as it was.
    """
    own = {n: t for n, t in net.state_dict().items() if not n.startswith(CLASSIFIER) and not n.endswith(COUNT)}
    given = _read(path)
    missing = [name for name in own if name not in given]
    if missing:
        raise UserError(
            f"{path} has no {missing[0]} ({len(missing)} of {len(own)} tensors are missing); "
            "its network is another one: see net.name, net.width and net.strided"
        )
    for name, tensor in own.items():
        if given[name].shape != tensor.shape:
            raise UserError(
                f"{path} has {name} of {list(given[name].shape)}, the network {list(tensor.shape)}; "
                "set net.name, net.width and net.strided to its network's"
            )
        if not bool(torch.isfinite(given[name]).all()):
            raise UserError(f"{path} has values in {name} that are not finite; use another file")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])
    return len(own)


def _read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The file's tensors under this package's names."""
    try:
        with safe_open(path, framework="pt") as file:
            return {_name(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"cannot read --weights {path}: No such file or directory") from None
    except (OSError, SafetensorError, ValueError) as error:
        why = " ".join(str(error).split())[:100]
        raise UserError(f"cannot read --weights {path}: it is no safetensors file ({why})") from None


def _name(name: str) -> str:
    for pattern, ours in ELSEWHERE:
        name = re.sub(pattern, ours, name)
    return name
