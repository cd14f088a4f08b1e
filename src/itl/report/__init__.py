"""Figures from a run's record."""

from itl.report.stages import draw_stages

__all__ = ["draw_stages"]
