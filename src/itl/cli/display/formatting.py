"""Format numbers, durations, sizes and names for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itl.experiments.config import Config

MAX_NAME_LENGTH = 40  # columns
MIN_NAME_WIDTH = 12  # columns of a name in a narrow terminal


def format_percent(value: float | None) -> str:
    """A percentage with one decimal, or a dash for None."""
    return "–" if value is None else f"{value:.1f}"


def format_duration(seconds: float) -> str:
    """`2:03` (minutes and seconds) or `1:02:03`."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def format_bytes(count: float) -> str:
    """A size in the largest fitting unit, such as `1.5 KiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """`1 image`, `2 images`, `3 classes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def shorten(name: str, width: int = MAX_NAME_LENGTH) -> str:
    """A name that takes at most `width` columns; a longer one loses its middle, because many differ at the end."""
    if name.isascii() and len(name) <= width:
        return name
    from rich.cells import cell_len, chop_cells, set_cell_size

    if cell_len(name) <= width:
        return name
    end = name[len(name) - width // 3 :]
    while cell_len(end) > width // 3:
        end = end[1:]
    start = width - 1 - cell_len(end)
    return set_cell_size(chop_cells(name, start)[0], start) + "…" + end


def run_label(config: Config, with_buffer: bool = False) -> str:
    """The label of one run among several, such as `my-variant, buffer 200, seed 0`."""
    words = [config.variant] if config.variant else []
    if with_buffer:
        words.append(f"buffer {config.buffer}")
    return ", ".join([*words, f"seed {config.seed}"])
