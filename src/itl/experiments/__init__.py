"""Experiments: run a method on a stream and record it (`run`), refine it (`refine`), search and sweep (`search`)."""

from itl.experiments.config import Config

__all__ = ["Config"]
