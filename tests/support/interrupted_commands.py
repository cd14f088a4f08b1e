"""Commands that are killed while they write to the folder `out` of the current folder."""

from __future__ import annotations

from pathlib import Path

from support.image_folders import write_images


def image_folders(folder: Path) -> Path:
    """Write the images that a killed command learns, as `one` and `two`; return `folder`."""
    write_images(folder / "one", "ant", "bee", each=12)
    write_images(folder / "two", "cat", "dog", each=12)
    return folder


def model_of(folder: Path) -> Path:
    """The saved state of a run or of a model at `folder/out`."""
    return folder / "out" / "model" if (folder / "out" / "config.json").exists() else folder / "out"
