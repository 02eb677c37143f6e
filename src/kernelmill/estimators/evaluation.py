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
BINS = 10  # of probabilities, in which they are compared with what came
MOST_CURVES = 6  # classes that have a ROC curve each; of more there is the mean
CURVE_POINTS = 120  # of a ROC curve


@dataclass(frozen=True)
class Bin:
    """Rows whose probabilities are from `low` to `high`: their mean, and how many came true."""

    low: float
    high: float
    rows: int
    probability: float
    share: float


@dataclass(frozen=True)
class Roc:
    """Rates of false and of true positives at every threshold, and the area below them."""

    name: str
    area: float
    points: np.ndarray


@dataclass
class Evaluation:
    """Metrics by name.

    Of classes: the confusion matrix, true classes in rows, the reliability of probabilities (of
    the second of two classes, else of the class predicted) and ROC curves; of numbers: (true,
    predicted) of some rows.
    """

    task: str
    rows: int
    metrics: dict[str, float]
    classes: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    points: np.ndarray | None = None
    reliability: list[Bin] = field(default_factory=list)
    roc: list[Roc] = field(default_factory=list)

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
    with np.errstate(divide="ignore"):
        sums = np.log(probabilities) + model.decision_bias_
    guess = sums.argmax(1)
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
    found["f1"] = _f1(codes[known], guess[known], len(classes))
    curves = _roc_curves(codes[known], probabilities[known], [str(c) for c in classes])
    if curves:
        found["roc_auc"] = float(np.mean([curve.area for curve in curves]))
    if strange.any():
        found["rows_of_unknown_classes"] = int(strange.sum())
    counts = confusion(torch.from_numpy(sums[known]), torch.from_numpy(codes[known]), len(classes))
    return Evaluation(
        "classification",
        len(y),
        found,
        [str(c) for c in classes],
        counts,
        reliability=_reliability(codes[known], probabilities[known]),
        roc=_drawn(curves),
    )


def _f1(codes: np.ndarray, guess: np.ndarray, c: int) -> float:
    """Of the second of two classes; the mean over classes where there are more."""
    if c == 2:
        return float(metrics.f1_score(codes == 1, guess == 1, zero_division=0.0))
    return float(metrics.f1_score(codes, guess, average="macro", zero_division=0.0))


def _reliability(codes: np.ndarray, probabilities: np.ndarray) -> list[Bin]:
    """How often what has a probability comes true, by bins of equal width."""
    if probabilities.shape[1] < 2:
        return []
    if probabilities.shape[1] == 2:
        given, true = probabilities[:, 1], codes == 1
    else:
        given, true = probabilities.max(1), codes == probabilities.argmax(1)
    place = (given * BINS).astype(int).clip(0, BINS - 1)
    return [
        Bin(i / BINS, (i + 1) / BINS, int(own.sum()), given[own].mean(), true[own].mean())
        for i in range(BINS)
        if (own := place == i).any()
    ]


def _roc_curves(codes: np.ndarray, probabilities: np.ndarray, names: list[str]) -> list[Roc]:
    """Of the second of two classes; of each class against the others where there are more. A class
    that is not among the rows, or alone there, has none.
    """
    c = len(names)
    numbers = [1] if c == 2 else list(range(c))
    shares = np.bincount(codes, minlength=c) / len(codes)
    return [_roc(names[i], codes == i, probabilities[:, i]) for i in numbers if 0 < shares[i] < 1]


def _roc(name: str, true: np.ndarray, probability: np.ndarray) -> Roc:
    false_rate, true_rate, _ = metrics.roc_curve(true, probability)
    area = float(metrics.auc(false_rate, true_rate))
    points = np.stack([false_rate, true_rate], 1)
    some = np.linspace(0, len(points) - 1, min(len(points), CURVE_POINTS)).astype(int)
    return Roc(name, area, points[some])


def _drawn(curves: list[Roc]) -> list[Roc]:
    """The curves themselves; of many, their mean."""
    if len(curves) <= MOST_CURVES:
        return curves
    at = np.linspace(0, 1, CURVE_POINTS)
    mean = np.mean([np.interp(at, *curve.points.T) for curve in curves], 0)
    area = float(np.mean([curve.area for curve in curves]))
    points = np.concatenate([[(0.0, 0.0)], np.stack([at, mean], 1)])
    return [Roc(f"mean of {len(curves)} classes", area, points)]


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
