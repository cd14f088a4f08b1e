"""seq-cifar10 and seq-cifar100, from the official archives (binary or Python version) or the folders they unpack to.

Every file is checked against its official md5 before a byte of it is parsed. Members of an archive are read in memory
by their expected names: nothing is unpacked to the disk. One exception, for want of published sums: of CIFAR-100's
binary version only the archive's md5 is known, so its unpacked folder is checked by file sizes and label ranges alone.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from itl.errors import UserError
from itl.streams import download as downloads
from itl.streams.base import Dataset, DatasetSource, Images, Progress
from itl.streams.checked_files import cannot_read, check_md5, md5_of, md5_of_file, missing, read_bytes
from itl.streams.cifar_files import CLASS_NAMES, FORMS, TRAITS, Form, Member
from itl.streams.unpickle import load_dict

Bytes = npt.NDArray[np.uint8]
_PIXELS = 3 * 32 * 32
_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


def read(stream: str, root: Path, download: bool, progress: Progress | None) -> Dataset:
    """The dataset of `stream` found in `root`, which may also be the dataset's own folder or its archive."""
    forms, names, traits = FORMS[stream], CLASS_NAMES[stream], TRAITS[stream]
    found = locate(forms, root)
    if found is None and download:
        found = forms[0], downloads.fetch(_ADDRESS + forms[0].archive, root / forms[0].archive, forms[0].md5, progress)
    if found is None:
        raise _not_there(stream, root)
    form, place = found
    parsed = {member.name: parse(form, member, data, len(names)) for member, data in _contents(form, place)}
    return Dataset(_join(form.train, parsed), _join(form.test, parsed), names, traits)


def locate(forms: tuple[Form, ...], root: Path) -> tuple[Form, Path] | None:
    """The first form of which everything is there, and its folder or archive; folders first, they are read faster."""
    for form in forms:
        for folder in (root / form.folder, root):
            if all((folder / member.name).is_file() for member in form.members):
                return form, folder
    for form in forms:
        for archive in (root / form.archive, root):
            if archive.name == form.archive and archive.is_file():
                return form, archive
    return None


def _not_there(stream: str, root: Path) -> UserError:
    for form in FORMS[stream]:
        for folder in (root / form.folder, root):
            lacking = [member.name for member in form.members if not (folder / member.name).is_file()]
            if folder.name == form.folder and folder.is_dir():
                return UserError(f"{folder} lacks {', '.join(lacking)}; put it there, or use --download")
    return missing(stream, root, _files(stream))


def parse(form: Form, member: Member, data: bytes, classes: int) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """One file's (pixels uint8 [n,3,32,32], labels int64 [n]); its md5, where known, has been checked."""
    if isinstance(form.label, str):
        batch = load_dict(data, member.name)
        pixels, labels = batch.get("data"), np.asarray(batch.get(form.label), dtype=object)
    else:
        # Records: one or two label bytes, then the red, green and blue plane of the image.
        width = form.label + 1 + _PIXELS
        if len(data) != member.images * width:
            raise UserError(
                f"{member.name} has {len(data):,} bytes, not {member.images * width:,}; put the official one there"
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, width)
        pixels, labels = records[:, form.label + 1 :], records[:, form.label]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (member.images, _PIXELS):
        raise UserError(f"{member.name} does not hold {member.images:,} images of 32x32; put the official file there")
    if labels.shape != (member.images,) or not all(k in range(classes) for k in np.unique(labels).tolist()):
        raise UserError(
            f"{member.name} does not hold {member.images:,} labels in 0..{classes - 1}; put the official file there"
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _contents(form: Form, place: Path) -> Iterator[tuple[Member, bytes]]:
    """The form's files with their bytes, from a folder or an archive, each already checked."""
    for member, data in _from_folder(form, place) if place.is_dir() else _from_archive(form, place):
        if member.md5 is not None:
            check_md5(place / member.name, md5_of(data), member.md5)
        yield member, data


def _from_folder(form: Form, folder: Path) -> Iterator[tuple[Member, bytes]]:
    for member in form.members:
        yield member, read_bytes(folder / member.name)


def _from_archive(form: Form, path: Path) -> Iterator[tuple[Member, bytes]]:
    if any(member.md5 is None for member in form.members):
        check_md5(path, md5_of_file(path), form.md5)
    wanted = {f"{form.folder}/{member.name}": member for member in form.members}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                if entry.isfile() and entry.name in wanted:
                    file = archive.extractfile(entry)
                    assert file is not None  # it is a plain file
                    limit = 2 * (_PIXELS + 64) * wanted[entry.name].images  # a damaged header may promise any size
                    yield wanted.pop(entry.name), file.read(limit)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); delete it and fetch it again") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    if wanted:
        raise UserError(f"{path} lacks {', '.join(wanted)}; delete it and fetch it again")


def _join(members: tuple[Member, ...], parsed: dict[str, tuple[Bytes, npt.NDArray[np.int64]]]) -> Images:
    pixels, labels = zip(*(parsed[member.name] for member in members), strict=True)
    return Images(torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(labels)))


def _files(stream: str) -> str:
    return " or ".join(form.archive for form in FORMS[stream]) + f" (or {FORMS[stream][0].folder}/)"


def _source(stream: str) -> DatasetSource:
    classes, files = len(CLASS_NAMES[stream]), f"{_files(stream)} in the data folder"
    return DatasetSource(stream, classes, (3, 32, 32), 50_000, 10_000, files, TRAITS[stream], partial(read, stream))


CIFAR10 = _source("seq-cifar10")
CIFAR100 = _source("seq-cifar100")
