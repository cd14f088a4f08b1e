"""seq-mnist and seq-fmnist, from the four idx files of each dataset, plain or gzipped.

The md5 of the uncompressed content is checked, because mirrors compress the files in different ways. Both datasets use
the same four file names, so a folder named after the dataset (MNIST/raw, FashionMNIST/raw) is tried first.
"""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from itl.errors import UserError
from itl.streams import download as downloads
from itl.streams.base import Dataset, DatasetSource, Images, Progress, Traits
from itl.streams.checked_files import check_md5, md5_of, missing_error, read_bytes, read_error

_MAGIC_NUMBERS = {3: 2051, 1: 2049}  # by the number of dimensions, for arrays of unsigned bytes
MAX_CONTENT_BYTES = 16 + 60_000 * 28 * 28  # of the largest file, the training images
_FILE_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class DatasetFiles:
    """Where to find a dataset.

    Attributes:
        folders: Usual folders, relative to the data folder.
        base_url: Address of the files.
        content_md5: md5 of each uncompressed file, in the order of `_FILE_NAMES`.
        gz_md5: md5 of each gzipped file at `base_url`.
    """

    folders: tuple[str, ...]
    base_url: str
    content_md5: tuple[str, str, str, str]
    gz_md5: tuple[str, str, str, str]


def read(stream: str, root: Path, download: bool, progress: Progress | None) -> Dataset:
    """Read the dataset of `stream` from one of its usual folders under `root`, or from `root` itself."""
    files = FILES[stream]
    folders = [*(root / folder for folder in files.folders), root]
    folder = next((f for f in folders if all(_find(f, name) for name in _FILE_NAMES)), None)
    if folder is None and download:
        folder = folders[0]
        for name, md5 in zip(_FILE_NAMES, files.gz_md5, strict=True):
            if not _find(folder, name):
                downloads.fetch(f"{files.base_url}{name}.gz", folder / f"{name}.gz", md5, progress)
    if folder is None:
        raise _missing_files_error(stream, root, folders)
    paths = [_find(folder, name) for name in _FILE_NAMES]
    x, y, test_x, test_y = (
        load(path, md5) for path, md5 in zip(paths, files.content_md5, strict=True) if path is not None
    )
    return Dataset(_images(x, y, folder), _images(test_x, test_y, folder), CLASS_NAMES[stream], TRAITS[stream])


def load(path: Path, md5: str) -> npt.NDArray[np.uint8]:
    """Read an idx file, after checking its header, its length and its md5."""
    data = read_bytes(path)
    if path.suffix == ".gz":
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(MAX_CONTENT_BYTES + 1)  # a small file can decompress to any size
        except (EOFError, zlib.error) as error:
            raise UserError(f"{path} is truncated or damaged ({error}); put the official file there") from error
        except OSError as error:
            raise read_error(path, error) from error
    if len(data) > MAX_CONTENT_BYTES:
        raise UserError(f"{path} has more than {MAX_CONTENT_BYTES:,} bytes of content; put the official file there")
    dims = 3 if "idx3" in path.name else 1
    header = 4 * (dims + 1)
    magic, *shape = np.frombuffer(data[:header].ljust(header, b"\0"), ">u4").tolist()
    if magic != _MAGIC_NUMBERS[dims]:
        raise UserError(f"{path} is not an idx file of {dims} dimensions (magic {magic}); put the official file there")
    if len(data) != header + int(np.prod(shape, dtype=object)):
        raise UserError(
            f"{path} holds {len(data) - header:,} bytes where its header specifies {shape}; put the official file there"
        )
    check_md5(path, md5_of(data), md5)
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()  # PyTorch needs writable memory


def _images(pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], folder: Path) -> Images:
    if len(pixels) != len(labels):
        raise UserError(
            f"{folder} holds {len(pixels):,} images but {len(labels):,} labels; put the official files there"
        )
    return Images.from_numpy(pixels[:, None], labels)


def _find(folder: Path, name: str) -> Path | None:
    """Path of the plain or the gzipped file, or None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)


def _missing_files_error(stream: str, root: Path, folders: list[Path]) -> UserError:
    for folder in folders:
        absent = [name for name in _FILE_NAMES if not _find(folder, name)]
        if len(absent) < len(_FILE_NAMES):
            return UserError(f"{folder} lacks {', '.join(absent)} (plain or .gz); put it there, or use --download")
    return missing_error(stream, root, _files(stream))


def _files(stream: str) -> str:
    return f"{FILES[stream].folders[0]}/ with {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte (plain or .gz)"


FILES = {
    "seq-mnist": DatasetFiles(
        ("MNIST/raw", "mnist"),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "seq-fmnist": DatasetFiles(
        ("FashionMNIST/raw", "fashion-mnist"),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
CLASS_NAMES = {
    "seq-mnist": tuple("0123456789"),
    "seq-fmnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
}
TRAITS = {
    "seq-mnist": Traits((0.1307,), (0.3081,), flip=False, padding=2, policy=None, tasks=5),
    "seq-fmnist": Traits((0.2860,), (0.3530,), flip=True, padding=2, policy=None, tasks=5),
}


def _source(stream: str) -> DatasetSource:
    files = f"{_files(stream)} in the data folder"
    return DatasetSource(stream, 10, (1, 28, 28), 60_000, 10_000, files, TRAITS[stream], partial(read, stream))


MNIST = _source("seq-mnist")
FASHION = _source("seq-fmnist")
