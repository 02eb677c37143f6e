"""How good a model is on rows with known targets: metrics, and what a picture of them needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn import metrics

from ..data.kinds import places
from ..errors import DataFileError
from ..types import DataLike
from .base import KernelEstimator
from .classifier import KernelClassifier, confusion
from .inputs import in_seconds
from .regressor import KernelRegressor

MOST_POINTS = 2000  # of predicted against true that a picture shows


@dataclass
class Evaluation:
    """Metrics by name.

    Of classes: the confusion matrix, true classes in rows; of numbers: (true, predicted) of some
    rows.
    """

    task: str
    rows: int
    metrics: dict[str, float]
    classes: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    points: np.ndarray | None = None

    def to_dict(self) -> dict[str, object]:
        confusion = None if self.confusion is None else self.confusion.tolist()
        return {
            "task": self.task,
            "rows": self.rows,
            "metrics": self.metrics,
            "classes": self.classes,
            "confusion": confusion,
        }


def validation_score(model: KernelEstimator) -> float | None:
    """Of rows kept out, for the weights that were kept: the best where early stopping chose them,
    else the last.
    """
    scores = [row["validation_score"] for row in model.history_ if "validation_score" in row]
    return (max(scores) if model._stops_early() else scores[-1]) if scores else None


def evaluate(model: KernelClassifier | KernelRegressor, X: DataLike, y: np.ndarray) -> Evaluation:
    """The model's predictions for X against y, of its own labels or numbers."""
    if isinstance(model, KernelClassifier):
        return _of_classes(model, np.asarray(y), np.asarray(model.predict_proba(X)))
    y = np.asarray(in_seconds(y))
    if y.dtype.kind not in "iufb":
        raise DataFileError(
            f"the target holds texts, such as {str(y.ravel()[0])!r}, and this model predicts"
            " numbers."
        )
    return _of_numbers(y.astype(np.float64), np.asarray(model.predict(X), dtype=np.float64))


def _of_classes(model: KernelClassifier, y: np.ndarray, probabilities: np.ndarray) -> Evaluation:
    classes = model.classes_
    codes = places(y, classes)
    strange = codes < 0
    if strange.all():
        raise DataFileError(
            f"none of the targets, such as {str(y[0])!r}, is among the model's classes"
            f" {list(map(str, classes[:10]))}."
        )
    guess = probabilities.argmax(1)
    right = (guess == codes) & ~strange
    known = ~strange
    found = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(
            np.mean([right[(codes == c) & known].mean() for c in np.unique(codes[known])])
        ),
    }
    if len(classes) > 1:
        found["log_loss"] = float(
            metrics.log_loss(codes[known], probabilities[known], labels=np.arange(len(classes)))
        )
    if len(classes) == 2 and len(np.unique(codes[known])) == 2:
        found["roc_auc"] = float(metrics.roc_auc_score(codes[known], probabilities[known, 1]))
    if strange.any():
        found["rows_of_unknown_classes"] = int(strange.sum())
    counts = confusion(
        torch.from_numpy(probabilities[known]), torch.from_numpy(codes[known]), len(classes)
    )
    return Evaluation("classification", len(y), found, [str(c) for c in classes], counts)


def _of_numbers(y: np.ndarray, predicted: np.ndarray) -> Evaluation:
    if y.shape != predicted.shape:
        raise DataFileError(
            f"the target has shape {y.shape}, and the model's predictions {predicted.shape}."
        )
    found = {
        "r2": float(metrics.r2_score(y, predicted)) if len(y) > 1 else float("nan"),
        "rmse": float(metrics.root_mean_squared_error(y, predicted)),
        "mae": float(metrics.mean_absolute_error(y, predicted)),
        "largest_error": float(np.abs(y - predicted).max()),
    }
    flat = np.stack([y.ravel(), predicted.ravel()], 1)
    shown = flat[np.linspace(0, len(flat) - 1, min(len(flat), MOST_POINTS)).astype(int)]
    return Evaluation("regression", len(y), found, points=shown)
