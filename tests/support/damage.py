"""Damages files."""

from __future__ import annotations

from pathlib import Path


def flip_bit(path: Path, position: int | None = None, *, share: float = 0.5, bit: int = 0) -> None:
    """Flip one bit of a file in place, so that its hard links are damaged, too.

    Args:
        path: The file.
        position: Position of the byte, from the end if negative; None: the byte at the fraction `share` of the file.
        share: From 0 (the first byte) to 1 (the last one).
        bit: Which bit of the byte, from 0 to 7.
    """
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1)) if position is None else position] ^= 1 << bit
    path.write_bytes(data)
