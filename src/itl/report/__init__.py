"""Figures from runs' records: a page for people, PNG and PDF for papers."""

from itl.report.drawings import draw_stages, write_figures
from itl.report.page import write_report

__all__ = ["draw_stages", "write_figures", "write_report"]
