"""Compute features of images with a frozen trunk, each image once."""

from __future__ import annotations

import copy
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import numpy as np
import torch
from torch import Tensor, nn

from itl.augment import Augment, Draws
from itl.engine.device import Engine
from itl.engine.image_pool import available
from itl.engine.normalize import Normalize
from itl.features.feature_references import VIEW, is_reference, make_references, split_references
from itl.features.onnx_trunk import load_onnx_trunk
from itl.features.resident import ResidentFeatures
from itl.features.store import FeatureStore, image_key
from itl.streams import Images, Progress
from itl.user_cache import user_cache

BATCH_SIZE = 32  # images per forward pass: larger batches are not faster on a CPU and need more memory
BATCH_PIXELS = 16 * 224 * 224  # of a forward pass on a CPU; twice as many need 0.4 GB more memory
GPU_BATCH_SIZE = 512
SEGMENT = 4096  # images whose features are written as one file; an interruption loses at most so many
MIN_IMAGES_FOR_ONNX = 16  # fewer are computed faster than the trunk is converted


@dataclass(frozen=True)
class MirrorAugment(Augment):
    """Augmentation of references: half of them refer to the mirror image. There is neither crop nor AutoAugment."""

    padding: int = 0

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """References `[n, 9, 1, 1]` to the views that were drawn."""
        views = images.clone()
        views[:, VIEW] = draws.flip.to(images.device, torch.uint8).view(-1, 1, 1)
        return views


class FeatureExtractor:
    """Maps references, or uint8 images, to features of a frozen trunk. It takes the place of `Normalize`.

    Args:
        normalize: Preprocessing in front of the trunk.
        trunk: The frozen layers, in evaluation mode, on the engine's device.
        engine: Device and precision. Features are computed in float32.
        shape: Shape `(c, h, w)` of the images.
        mirrored: Whether the features of each image's mirror image are cached too.

    Attributes:
        resident: The features for captured steps (`keep_on_device`), or None.
    """

    def __init__(
        self, normalize: Normalize, trunk: nn.Module, engine: Engine, shape: tuple[int, int, int], mirrored: bool
    ) -> None:
        self.normalize, self.trunk, self.engine, self.shape = normalize, trunk, engine, shape
        self.views = 2 if mirrored else 1
        self.progress: Progress | None = None
        self._store: FeatureStore | None = None
        self._onnx: Callable[[Tensor], Tensor] | None = None
        self._tried_onnx = False
        self.resident: ResidentFeatures | None = None
        # Image arrays that references point into, the number of the first image of each, and the store's row of each
        # image (-1: not computed yet).
        self._sources: list[Tensor] = []
        self._starts: list[int] = []
        self._rows: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, object]) -> FeatureExtractor:
        """The extractor itself: its trunk is frozen, and its cached features can be shared."""
        return self

    def __getstate__(self) -> dict[str, object]:
        """State for pickles, without session and cached features."""
        without = {"_store": None, "_onnx": None, "_tried_onnx": False, "progress": None, "resident": None}
        return {**self.__dict__, **without, "_rows": [torch.full_like(rows, -1) for rows in self._rows]}

    # ------------------------------------------------------------------ references

    def reference(self, images: Images) -> Tensor:
        """References uint8 `[n, 9, 1, 1]` to images, on the CPU. Their features are computed when they are needed."""
        block = next((k for k, source in enumerate(self._sources) if source is images.source), len(self._sources))
        if block == len(self._sources):
            self._starts.append(self._starts[-1] + len(self._sources[-1]) if self._sources else 0)
            self._sources.append(images.source)
            self._rows.append(torch.full((len(images.source),), -1, dtype=torch.int64))
        rows = torch.arange(len(images.source)) if images.rows is None else images.rows
        return make_references(rows + self._starts[block])

    def add(self, images: Images) -> Tensor:
        """Compute the features of images that are not known yet; returns references to all of them."""
        references = self.reference(images)
        self._stored_rows(split_references(references)[0])
        return references

    def keep_on_device(self, references: Tensor) -> None:
        """Let captured steps find the features of these references; nothing on a CPU, or if they do not fit."""
        self.resident = None
        if self.engine.device.type == "cpu":
            return
        store, numbers = self._features(), split_references(references.cpu())[0].unique()
        if 4 * len(numbers) * math.prod(store.shape) > available(self.engine):
            return
        rows = self._stored_rows(numbers)
        views = [store.gather(rows, torch.full_like(rows, view)) for view in range(self.views)]
        self.resident = ResidentFeatures(numbers, torch.stack(views, 1), self.engine)

    def pixels(self, references: Tensor) -> Tensor:
        """The images `[n, c, h, w]` that references stand for."""
        out = torch.zeros((len(references), *self.shape), dtype=torch.uint8)
        for block, here, rows in self._by_source(split_references(references.cpu())[0]):
            out[here] = self._sources[block].index_select(0, rows)
        return out

    def __call__(self, images: Tensor) -> Tensor:
        """Features `[n, ...]` of references `[n, 9, 1, 1]` or of uint8 images `[n, c, h, w]`, on the device."""
        if self.resident is not None and images.is_cuda and torch.cuda.is_current_stream_capturing():
            return self.resident.gather(images)
        store = self._features()
        if is_reference(images):
            numbers, views = split_references(images.cpu())
            return self.engine.send(store.gather(self._stored_rows(numbers), views))
        index = torch.tensor([store.find(image_key(image)) for image in images.cpu().numpy()])
        known = index >= 0
        if not bool(known.any()):
            return self._compute(images)
        found = store.gather(index[known], torch.zeros(int(known.sum()), dtype=torch.int64))
        out = torch.empty((len(index), *found.shape[1:]))
        out[known] = found
        if not bool(known.all()):
            out[~known] = self._compute(images[(~known).to(images.device)]).cpu()
        return self.engine.send(out)

    def _by_source(self, numbers: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each image array among `numbers` `[n]`: its index, the positions in `numbers`, and the array's rows."""
        block = np.searchsorted(self._starts, numbers.numpy(), "right") - 1
        for k in np.unique(block).tolist():
            here = torch.from_numpy(np.flatnonzero(block == k))
            yield k, here, numbers[here] - self._starts[k]

    def _stored_rows(self, numbers: Tensor) -> Tensor:
        """The store's rows `[n]` of images, whose features are computed unless the store has them."""
        out = torch.empty_like(numbers)
        for block, here, rows in self._by_source(numbers):
            source, known = self._sources[block], self._rows[block]
            missing = rows[known[rows] < 0].unique()
            done = len(rows) - len(missing)
            for part in missing.split(SEGMENT) if len(missing) else ():
                known[part] = self._add_rows(source, part, done, len(rows))
                done += len(part)
            out[here] = known[rows]
        return out

    def as_module(self) -> nn.Module:
        """Preprocessing and trunk as a module on the CPU, for export."""
        trunk = copy.deepcopy(self.trunk).cpu()
        trunk.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return nn.Sequential(self.normalize.as_module(), trunk).eval().requires_grad_(False)

    # ------------------------------------------------------------------ computation

    def _add_rows(self, source: Tensor, rows: Tensor, done: int, total: int) -> Tensor:
        """Rows of the store for the images `rows` of an array, computing those that it does not have."""
        store = self._features()
        keys = [image_key(source[row].numpy()) for row in rows.tolist()]
        new: dict[bytes, int] = {}
        for row, key in zip(rows.tolist(), keys, strict=True):
            if store.find(key) < 0:
                new.setdefault(key, row)
        if new:
            known = done + len(rows) - len(new)
            store.append(list(new), lambda: self._views(source, torch.tensor(list(new.values())), known, total))
        return torch.tensor([store.rows[key] for key in keys])

    def _views(self, source: Tensor, rows: Tensor, done: int, total: int) -> Iterator[Tensor]:
        """Features `[k, views, ...]` of the images `rows` of an array, in chunks."""
        for index in rows.split(self._batch_size):
            part = source.index_select(0, index)
            views = [part, part.flip(3)][: self.views]
            yield torch.stack([self._compute(view).cpu() for view in views], 1)
            done += len(part)
            if self.progress is not None:
                self.progress(done, total)

    @property
    def _batch_size(self) -> int:
        if self.engine.device.type != "cpu":
            return GPU_BATCH_SIZE
        height, width = (self.normalize.size,) * 2 if self.normalize.size else self.shape[1:]
        return max(1, min(BATCH_SIZE, BATCH_PIXELS // (height * width)))

    @torch.no_grad()
    def _compute(self, images: Tensor) -> Tensor:
        """Features float32 `[n, ...]` on the device."""
        if len(images) > self._batch_size:
            return torch.cat([self._compute(part) for part in images.split(self._batch_size)])
        enough = len(images) >= min(MIN_IMAGES_FOR_ONNX, self._batch_size)
        if self.engine.device.type == "cpu" and not self._tried_onnx and enough:
            self._tried_onnx = True
            self._onnx = load_onnx_trunk(self.as_module(), images[:2], self._onnx_file())
        if self._onnx is not None and len(images):
            return self._onnx(images)
        features: Tensor = self.trunk(self.normalize(self.engine.send(images))).float()
        return features

    def _onnx_file(self) -> Path | None:
        folder = user_cache("trunks")
        return None if folder is None else folder / f"{self._name()}.onnx"

    def _features(self) -> FeatureStore:
        """The store, created when the trunk has its final weights."""
        if self._store is None:
            example = torch.zeros((1, *self.shape), dtype=torch.uint8)
            shape = (self.views, *self._compute(example).shape[1:])
            self._store = FeatureStore(self._name(), shape, user_cache("features"))
        return self._store

    def _name(self) -> str:
        """32 hexadecimal digits that identify the trunk's weights and code, the preprocessing and the views."""
        n = self.normalize
        digest = hashlib.blake2b(repr((n.size, n.interpolation, self.shape, self.views)).encode(), digest_size=16)
        for tensor in (n.scale, n.shift, *self.trunk.state_dict().values()):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        digest.update(str(self.trunk).encode())
        for code in _source_code(self.trunk):
            digest.update(code)
        return digest.hexdigest()


def _source_code(module: nn.Module) -> list[bytes]:
    """Content of the files that define the classes of a module's parts, except PyTorch's.

    A user may change what a module computes without changing its weights or its representation. Of classes without a
    file, such as those of a notebook or a zip archive, it is the bytecode.
    """
    classes = {type(part) for part in module.modules() if type(part).__module__.partition(".")[0] != "torch"}
    files: dict[str, bytes] = {}
    bytecodes = []
    for one in sorted(classes, key=lambda one: (one.__module__, one.__qualname__)):
        file = getattr(sys.modules.get(one.__module__), "__file__", None) or ""
        try:
            files[file] = files.get(file) or Path(file if file.endswith(".py") else "").read_bytes()
        except OSError:
            methods = {name: getattr(value, "__code__", None) for name, value in vars(one).items()}
            bytecodes.append(repr([(name, _bytecode(code)) for name, code in methods.items() if code]).encode())
    return [files[file] for file in sorted(files)] + bytecodes


def _bytecode(code: CodeType) -> tuple[object, ...]:
    """What a function computes."""
    constants: list[object] = []
    for part in code.co_consts:
        known = _bytecode(part) if isinstance(part, CodeType) else part
        constants.append(sorted(map(repr, known)) if isinstance(known, frozenset) else known)
    return code.co_code, code.co_names, constants
