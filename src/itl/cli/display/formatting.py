"""Format numbers, durations, sizes and names for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itl.engine.stage import Stage
    from itl.experiments.config import Config

MAX_NAME_LENGTH = 40  # characters


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


def shorten(name: str) -> str:
    """A name cut to a length that fits a table."""
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def run_label(config: Config, with_buffer: bool = False) -> str:
    """The label of one run among several, such as `my-variant, buffer 200, seed 0`."""
    words = [config.variant] if config.variant else []
    if with_buffer:
        words.append(f"buffer {config.buffer}")
    return ", ".join([*words, f"seed {config.seed}"])


def total_epochs(stage: Stage) -> int:
    """Number of epochs of a training stage."""
    return stage.planner.epochs_done(stage.planner.num_rounds - 1)
