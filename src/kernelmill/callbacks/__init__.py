"""Callbacks: any callable that takes an Event; returning True asks the run to stop."""

from .loggers import MLflow, TensorBoard, WandB
from .progress import ProgressBar

__all__ = ["MLflow", "ProgressBar", "TensorBoard", "WandB"]
