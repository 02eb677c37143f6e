"""The report of a model: one HTML file that needs no network and no script."""

from ..kernels import kernel_line
from .quality import METRICS
from .report import held_out_line, kernel_names, page, spectrum

__all__ = [
    "METRICS",
    "held_out_line",
    "kernel_line",
    "kernel_names",
    "page",
    "spectrum",
]
