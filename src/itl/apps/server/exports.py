"""Files to download: the memory's pictures and all pictures as zip files, the model as ONNX."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from itl.apps.model import Model
from itl.apps.model.export import to_onnx
from itl.apps.model.memory_images import class_folder_names
from itl.apps.server.added_pictures import DRAFT
from itl.apps.server.offered_models import Session
from itl.regular_files import read_regular


def memory_png(model: Model, slot: int) -> bytes | None:
    """Return the picture in a memory slot as a PNG file; None if there is no intact gray or color image in it."""
    memory = model.learner.memory
    if not 0 <= slot < len(memory) or model.image["channels"] not in (1, 3):
        return None
    pixels = model.memory_image(slot)
    if pixels is None:
        return None
    image = Image.fromarray(np.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)))
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


def memory_zip(model: Model) -> Path:
    """Write the memory's pictures into a temporary zip file, one folder per class."""
    folders = class_folder_names(model.output_names)
    names: dict[str, bytes] = {}
    for slot, label in enumerate(model.learner.memory.labels.tolist()):
        data = memory_png(model, slot)
        if data is not None:
            names[f"{folders[label]}/{slot:04d}.png"] = data
    return _write_zip(names)


def pictures_zip(session: Session) -> Path:
    """Write all pictures that were added in the browser into a temporary zip file, one folder per class."""
    classes: dict[str, list[str]] = {}
    for name in [*session.pictures.lessons(), DRAFT]:
        pictures = session.pictures.read(name)
        for part in (pictures.train, pictures.test):
            for label, files in part.items():
                classes.setdefault(label, []).extend(files)
    names = {}
    for folder, files in zip(class_folder_names(list(classes)), classes.values(), strict=True):
        for file in dict.fromkeys(files):
            path = session.pictures.path(Path(file).stem)
            if path is not None:
                names[f"{folder}/{file}"] = path
    return _write_zip(names)


def onnx_file(folder: Path) -> Path:
    """Write the last finished state of a model folder into a temporary ONNX file.

    The export takes seconds. It opens the model again, so that the loaded one can keep predicting.
    """
    model, path = Model.open(folder, device="cpu", last_finished=True, memory=False), Path(_temporary(".onnx"))
    try:
        to_onnx(model, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _write_zip(entries: Mapping[str, bytes | Path]) -> Path:
    target = Path(_temporary(".zip"))
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            for name, content in entries.items():
                archive.writestr(name, content if isinstance(content, bytes) else read_regular(content))
    except BaseException:  # such as a full disk
        target.unlink(missing_ok=True)
        raise
    return target


def _temporary(suffix: str) -> str:
    with tempfile.NamedTemporaryFile(prefix="itl-", suffix=suffix, delete=False) as file:
        return file.name
