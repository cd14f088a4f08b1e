"""seq-cifar10 and seq-cifar100, from the official archives (binary or Python version) or from their unpacked folders.

Every file is checked against its official md5 before it is parsed. Files in an archive are read in memory by their
expected names; nothing is unpacked to the disk. There is one exception: for CIFAR-100's binary version only the
archive's md5 is published, so an unpacked folder is checked by file sizes and label ranges.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from itl.errors import UserError
from itl.streams import download as downloads
from itl.streams.base import Dataset, DatasetSource, Images, Progress
from itl.streams.checked_files import check_md5, md5_of, md5_of_file, missing_error, read_bytes, read_error
from itl.streams.cifar_files import CLASS_NAMES, DISTRIBUTIONS, TRAITS, Distribution, Member
from itl.streams.unpickle import load_dict

Bytes = npt.NDArray[np.uint8]
_BYTES_PER_IMAGE = 3 * 32 * 32
_BASE_URL = "https://www.cs.toronto.edu/~kriz/"


def read(stream: str, root: Path, download: bool, progress: Progress | None) -> Dataset:
    """Read the dataset of `stream` from `root`, which may be the data folder, the dataset's folder or its archive."""
    distributions, names, traits = DISTRIBUTIONS[stream], CLASS_NAMES[stream], TRAITS[stream]
    found = locate(distributions, root)
    if found is None and download:
        form = distributions[0]
        found = form, downloads.fetch(_BASE_URL + form.archive, root / form.archive, form.md5, progress)
    if found is None:
        raise _missing_files_error(stream, root)
    form, path = found
    parsed = {member.name: parse(form, member, data, len(names)) for member, data in _contents(form, path)}
    return Dataset(_join(form.train, parsed), _join(form.test, parsed), names, traits)


def locate(distributions: tuple[Distribution, ...], root: Path) -> tuple[Distribution, Path] | None:
    """The first distribution that is complete, with its folder or archive; folders first, because they are faster."""
    for form in distributions:
        for folder in (root / form.folder, root):
            if all((folder / member.name).is_file() for member in form.members):
                return form, folder
    for form in distributions:
        for archive in (root / form.archive, root):
            if archive.name == form.archive and archive.is_file():
                return form, archive
    return None


def _missing_files_error(stream: str, root: Path) -> UserError:
    for form in DISTRIBUTIONS[stream]:
        for folder in (root / form.folder, root):
            absent = [member.name for member in form.members if not (folder / member.name).is_file()]
            if folder.name == form.folder and folder.is_dir():
                return UserError(f"{folder} lacks {', '.join(absent)}; put it there, or use --download")
    return missing_error(stream, root, _files(stream))


def parse(form: Distribution, member: Member, data: bytes, classes: int) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Parse a file whose md5, if it is known, was checked: pixels uint8 `[n, 3, 32, 32]` and labels int64 `[n]`."""
    if isinstance(form.label, str):
        batch = load_dict(data, member.name)
        pixels, labels = batch.get("data"), np.asarray(batch.get(form.label), dtype=object)
    else:
        # A record is one or two label bytes, then the red, green and blue planes of the image.
        width = form.label + 1 + _BYTES_PER_IMAGE
        if len(data) != member.images * width:
            raise UserError(
                f"{member.name} has {len(data):,} bytes, not {member.images * width:,}; put the official one there"
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, width)
        pixels, labels = records[:, form.label + 1 :], records[:, form.label]
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape != (member.images, _BYTES_PER_IMAGE)
    ):
        raise UserError(f"{member.name} does not hold {member.images:,} images of 32x32; put the official file there")
    if labels.shape != (member.images,) or not all(k in range(classes) for k in np.unique(labels).tolist()):
        raise UserError(
            f"{member.name} does not hold {member.images:,} labels in 0..{classes - 1}; put the official file there"
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _contents(form: Distribution, path: Path) -> Iterator[tuple[Member, bytes]]:
    """The files of a distribution with their contents, from a folder or an archive, after the md5 check."""
    for member, data in _from_folder(form, path) if path.is_dir() else _from_archive(form, path):
        if member.md5 is not None:
            check_md5(path / member.name, md5_of(data), member.md5)
        yield member, data


def _from_folder(form: Distribution, folder: Path) -> Iterator[tuple[Member, bytes]]:
    for member in form.members:
        yield member, read_bytes(folder / member.name)


def _from_archive(form: Distribution, path: Path) -> Iterator[tuple[Member, bytes]]:
    if any(member.md5 is None for member in form.members):
        check_md5(path, md5_of_file(path), form.md5)
    wanted = {f"{form.folder}/{member.name}": member for member in form.members}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                if entry.isfile() and entry.name in wanted:
                    file = archive.extractfile(entry)
                    assert file is not None  # because it is a plain file
                    # A damaged header may claim any size.
                    limit = 2 * (_BYTES_PER_IMAGE + 64) * wanted[entry.name].images
                    yield wanted.pop(entry.name), file.read(limit)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is truncated or damaged ({error}); delete it and download it again") from error
    except OSError as error:
        raise read_error(path, error) from error
    if wanted:
        raise UserError(f"{path} lacks {', '.join(wanted)}; delete it and download it again")


def _join(members: tuple[Member, ...], parsed: dict[str, tuple[Bytes, npt.NDArray[np.int64]]]) -> Images:
    pixels, labels = zip(*(parsed[member.name] for member in members), strict=True)
    return Images.from_numpy(np.concatenate(pixels), np.concatenate(labels))


def _files(stream: str) -> str:
    return " or ".join(form.archive for form in DISTRIBUTIONS[stream]) + f" (or {DISTRIBUTIONS[stream][0].folder}/)"


def _source(stream: str) -> DatasetSource:
    classes, files = len(CLASS_NAMES[stream]), f"{_files(stream)} in the data folder"
    return DatasetSource(stream, classes, (3, 32, 32), 50_000, 10_000, files, TRAITS[stream], partial(read, stream))


CIFAR10 = _source("seq-cifar10")
CIFAR100 = _source("seq-cifar100")
