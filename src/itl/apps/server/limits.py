"""Limits on what a request may contain. All uploads are untrusted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on uploads.

    Attributes:
        request_bytes: Size of a request.
        files: Number of files in a request, and of entries in a zip file.
        file_bytes: Size of an image file, also inside a zip file.
        zip_bytes: Size of all files of a zip file after decompression.
        pixels: Width times height of an image, checked before it is decoded.
        pictures: Number of pictures in one lesson.
        tried: Number of tried pictures that are kept for correction.
        body_seconds: Time to receive a request.
    """

    request_bytes: int = 256 << 20
    files: int = 2000
    file_bytes: int = 32 << 20
    zip_bytes: int = 1 << 30
    pixels: int = 50_000_000
    pictures: int = 10_000
    tried: int = 200
    body_seconds: float = 300.0


def parse_number(text: str, digits: int) -> int | None:
    """Return the number that a text of at most `digits` decimal digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None
