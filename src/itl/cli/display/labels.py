"""How a run is called on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from itl.experiments.config import Config


def which(config: Config, cell: bool = False) -> str:
    """`seed 0`, with variant and (where it tells runs apart) the buffer before it."""
    words = [config.variant] if config.variant else []
    if cell:
        words.append(f"buffer {config.buffer}")
    return ", ".join([*words, f"seed {config.seed}"])
