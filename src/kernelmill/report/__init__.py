"""The report of a model: one HTML file that needs no network and no script."""

from .report import METRICS, kernel_line, page, score_line, spectrum

__all__ = ["METRICS", "kernel_line", "page", "score_line", "spectrum"]
