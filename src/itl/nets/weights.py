"""Load initial weights from a safetensors file of this package, torchvision, timm or a user's module."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from itl.errors import UserError
from itl.nets.adapter import ModuleAdapter
from itl.nets.base import Net
from itl.regular_files import open_regular

# Patterns of other libraries' names of a ResNet's layers, and the names here.
RENAMED = (
    (r"^(?:net|module|model|backbone)\.", ""),
    (r"^conv1\.", "stem.conv."),
    (r"^bn1\.", "stem.bn."),
    (r"\.downsample\.0\.", ".shortcut.conv."),
    (r"\.downsample\.1\.", ".shortcut.bn."),
    (r"^(?:fc|head|linear)\.", "classifier."),
)
BATCH_COUNT = "num_batches_tracked"  # unused, and not in every file
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")  # a zip archive of torch.save, and a bare pickle


def load_backbone_weights(net: Net, path: str | os.PathLike[str], sha256: str = "") -> int:
    """Copy the weights in a safetensors file into `net`, except the classifier's.

    Args:
        net: The network. It does not change if the file is refused.
        path: The file. Its layers have the names of the network's state dict; those of a ResNet may also have
            torchvision's or timm's.
        sha256: The expected hash of the file; "" for any.

    Returns:
        The number of tensors copied.

    Raises:
        UserError: If the file cannot be read, has another hash, lacks a tensor, or has one of another shape or with
            non-finite values.
    """
    if sha256 and file_sha256(path) != sha256:
        raise UserError(f"{path} is not the file of weights that was expected (another sha256); get it again")
    copy_weights(net, _read(path), str(path))
    return len(_own_tensors(net))


def copy_weights(net: Net, loaded: Mapping[str, Tensor], source: str) -> None:
    """Copy tensors into `net`, except the classifier's.

    Args:
        net: The network. It does not change if the tensors are refused.
        loaded: Tensors by name.
        source: Where they come from, for error messages.

    Raises:
        UserError: If a tensor is missing, or has another shape or non-finite values.
    """
    own = _own_tensors(net)
    if not own.keys() <= loaded.keys():
        loaded = {_resnet_name(name): tensor for name, tensor in loaded.items()}
    hint = "set net.name, net.width and net.strided to those of the file's network"
    if isinstance(net, ModuleAdapter):
        hint = f"the weights must be those of a {type(net.module).__name__} of the same size"
    missing = [name for name in own if name not in loaded]
    if missing:
        raise UserError(f"{source} has no {missing[0]} ({len(missing)} of {len(own)} tensors are missing); {hint}")
    for name, tensor in own.items():
        if loaded[name].shape != tensor.shape:
            shapes = f"{list(loaded[name].shape)}, the network {list(tensor.shape)}"
            raise UserError(f"{source} has {name} of shape {shapes}; {hint}")
    converted = {name: _converted(loaded[name], tensor.dtype, name, source) for name, tensor in own.items()}
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(converted[name])


def _converted(tensor: Tensor, dtype: torch.dtype, name: str, source: str) -> Tensor:
    """A tensor as the network's type; integers and complex numbers are refused where it has floating-point numbers."""
    try:
        if tensor.is_floating_point() != dtype.is_floating_point or tensor.is_complex():
            raise TypeError
        converted = tensor.to(dtype)
    except (TypeError, RuntimeError):  # the latter for types of which PyTorch converts none
        types = f"{str(tensor.dtype).removeprefix('torch.')}, the network {str(dtype).removeprefix('torch.')}"
        raise UserError(f"{source} has {name} of type {types}; convert the file") from None
    if not bool(torch.isfinite(converted).all()):
        raise UserError(f"{source} has non-finite values in {name}; use another file")
    return converted


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hash of a file, in hexadecimal.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read --weights {path}: {error.strerror}") from None


def tensors_sha256(net: Net) -> str:
    """Hash of a network's weights without the classifier's, for weights that do not come as one file."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_own_tensors(net).items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _own_tensors(net: Net) -> dict[str, Tensor]:
    """The tensors of a network to load, by the names that they have in files."""
    prefix = "module." if isinstance(net, ModuleAdapter) else ""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in net.state_dict().items()
        if not name.startswith(f"{net.classifier_name}.") and not name.endswith(BATCH_COUNT)
    }


def _read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The file's tensors."""
    try:
        open_regular(path).close()
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UserError(f"cannot read --weights {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        if _is_pickle(path):
            raise UserError(
                f"{path} is a pickle, which can run code when it is read; convert it to safetensors: "
                "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')"
            ) from None
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"cannot read --weights {path}: it is not a safetensors file ({reason})") from None


def _is_pickle(path: str | os.PathLike[str]) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(4).startswith(PICKLE_STARTS)
    except OSError:
        return False


def _resnet_name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
