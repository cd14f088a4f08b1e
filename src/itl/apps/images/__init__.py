"""Read image files and image folders: scanning, splitting off test images, decoding to one size, caching."""

from itl.apps.images.decoded_cache import clear_cache
from itl.apps.images.holdout import split_held_out
from itl.apps.images.image_folder import ImageFolder, find_images, is_model_folder, scan_folder
from itl.apps.images.parallel_read import ReadResult, read_images
from itl.apps.images.read import (
    FORMAT_NAMES,
    MAX_PIXELS,
    SkippedPath,
    UnreadableImage,
    image_dimensions,
    printable_path,
    read_image,
)
from itl.apps.images.sorted_copies import SortedCopies

__all__ = [
    "FORMAT_NAMES",
    "MAX_PIXELS",
    "ImageFolder",
    "ReadResult",
    "SkippedPath",
    "SortedCopies",
    "UnreadableImage",
    "clear_cache",
    "find_images",
    "image_dimensions",
    "is_model_folder",
    "printable_path",
    "read_image",
    "read_images",
    "scan_folder",
    "split_held_out",
]
