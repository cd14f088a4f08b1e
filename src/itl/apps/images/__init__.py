"""Image files of any kind as pixels of one size, and folders of them as classes."""

from itl.apps.images.decoded_cache import clear_cache
from itl.apps.images.parallel_read import read_images
from itl.apps.images.read import KINDS, MAX_PIXELS, Problem, UnreadableImage, dimensions, read_image, shown
from itl.apps.images.scan import Scan, find_images, is_model, scan
from itl.apps.images.split import hold_out

__all__ = [
    "KINDS",
    "MAX_PIXELS",
    "Problem",
    "Scan",
    "UnreadableImage",
    "clear_cache",
    "dimensions",
    "find_images",
    "hold_out",
    "is_model",
    "read_image",
    "read_images",
    "scan",
    "shown",
]
