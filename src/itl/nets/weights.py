"""Load initial weights from a safetensors file of this package, torchvision or timm."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from itl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Patterns of other libraries' layer names, and the names here.
RENAMED = (
    (r"^(?:net|module|model|backbone)\.", ""),
    (r"^conv1\.", "stem.conv."),
    (r"^bn1\.", "stem.bn."),
    (r"\.downsample\.0\.", ".shortcut.conv."),
    (r"\.downsample\.1\.", ".shortcut.bn."),
    (r"^(?:fc|head|linear)\.", "classifier."),
)
CLASSIFIER = "classifier."
BATCH_COUNT = "num_batches_tracked"  # unused, and not in every file


def load_backbone_weights(net: nn.Module, path: str | os.PathLike[str]) -> int:
    """Copy the weights in a safetensors file into `net`, except the classifier's.

    Args:
        net: A network of the ResNet family. It does not change if the file is refused.
        path: The file. Layer names may be this package's, torchvision's or timm's.

    Returns:
        The number of tensors copied.

    Raises:
        UserError: If the file cannot be read, lacks a tensor, or has one of another shape or with non-finite values.
    """
    tensors = {
        n: t for n, t in net.state_dict().items() if not n.startswith(CLASSIFIER) and not n.endswith(BATCH_COUNT)
    }
    loaded = _read(path)
    missing = [name for name in tensors if name not in loaded]
    if missing:
        raise UserError(
            f"{path} has no {missing[0]} ({len(missing)} of {len(tensors)} tensors are missing); "
            "set net.name, net.width and net.strided to those of the file's network"
        )
    for name, tensor in tensors.items():
        if loaded[name].shape != tensor.shape:
            raise UserError(
                f"{path} has {name} of shape {list(loaded[name].shape)}, the network {list(tensor.shape)}; "
                "set net.name, net.width and net.strided to those of the file's network"
            )
        if not bool(torch.isfinite(loaded[name]).all()):
            raise UserError(f"{path} has non-finite values in {name}; use another file")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(loaded[name])
    return len(tensors)


def _read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The file's tensors, by this package's names."""
    try:
        with safe_open(path, framework="pt") as file:
            return {_name(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"cannot read --weights {path}: No such file or directory") from None
    except (OSError, SafetensorError, ValueError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"cannot read --weights {path}: it is not a safetensors file ({reason})") from None


def _name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
