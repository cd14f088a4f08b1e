"""Figures from runs' records: a page for people, PNG and PDF for papers."""

from itl.report.drawings import draw_stages
from itl.report.page import write_report
from itl.report.paper import write_figures

__all__ = ["draw_stages", "write_figures", "write_report"]
