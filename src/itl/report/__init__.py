"""Figures from run records: an HTML page, and PNG and PDF files for papers."""

from itl.report.figure_files import write_figures
from itl.report.matplotlib_figures import draw_stages
from itl.report.model_page import LessonAccuracy, ModelRecord, write_model_report
from itl.report.page import write_report

__all__ = ["LessonAccuracy", "ModelRecord", "draw_stages", "write_figures", "write_model_report", "write_report"]
