"""A run's record on disk, and the published numbers it is held against."""

from itl.results.record import FORMAT, Folder, environment, reached

__all__ = ["FORMAT", "Folder", "environment", "reached"]
