"""How good a model is on rows with known targets: metrics with intervals, beside those of a guess
without a model, and what a picture of them needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..data.kinds import places
from ..errors import DataFileError, InputError
from ..types import DataLike
from .base import KernelEstimator
from .classifier import KernelClassifier, confusion
from .curves import Bin, ClassCurves, Ranking, reliability
from .inputs import as_numbers
from .intervals import (
    Interval,
    bootstrap,
    effective_rows,
    gain_interval,
    mean_interval,
    share_interval,
)
from .regressor import KernelRegressor

# Of intervals that are compared with the targets, and those of them that are scores.
COVERAGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SCORED, USUAL = (0.5, 0.9, 0.95), 0.9


@dataclass
class Evaluation:
    """Metrics by name, their 95 % intervals where they have one, and the same metrics of a
    guess without a model: `guess`, a class or the mean, for every row. `gain` is the interval of
    what the model gains over it, in accuracy or in mean absolute error, where rows are enough.

    Of classes: the confusion matrix, true classes in rows, the reliability of probabilities (of
    the second of two classes, else of the class predicted) and curves of each class that is among
    the rows; of numbers: all true and predicted values, (rows, outputs), metrics of each output,
    and the shares of targets inside their intervals, by the share that was asked for. `target` is
    the name of what is predicted, where it is known.
    """

    task: str
    rows: int
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    baseline: dict[str, float]
    guess: str
    gain: Interval | None
    classes: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    reliability: list[Bin] = field(default_factory=list)
    curves: list[ClassCurves] = field(default_factory=list)
    true: np.ndarray | None = None
    predicted: np.ndarray | None = None
    outputs: list[dict[str, float]] = field(default_factory=list)
    covered: dict[float, float] = field(default_factory=dict)
    target: str | None = None

    def to_dict(self) -> dict[str, object]:
        confusion = None if self.confusion is None else self.confusion.tolist()
        return {
            "task": self.task,
            "target": self.target,
            "rows": self.rows,
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "baseline": self.baseline,
            "classes": self.classes,
            "confusion": confusion,
        }


def validation_score(model: KernelEstimator) -> float | None:
    """Of rows kept out, for the weights that were kept: the best where early stopping chose them,
    else the last.
    """
    scores = [row["validation_score"] for row in model.history_ if "validation_score" in row]
    return (max(scores) if model._stops_early() else scores[-1]) if scores else None


def evaluate(
    model: KernelClassifier | KernelRegressor,
    X: DataLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
) -> Evaluation:
    """The model's predictions for X against y: metrics, their intervals, and those of a guess.

    Parameters
    ----------
    model : KernelClassifier or KernelRegressor
        A fitted model.
    X : array or table
        Rows, as `predict` takes them.
    y : array
        Known targets, of the model's own labels or numbers.
    sample_weight : array, optional
        Weights of the rows.
    """
    y = np.asarray(y)
    w = _weights(sample_weight, len(y))
    if isinstance(model, KernelClassifier):
        return _of_classes(model, y, np.asarray(model.predict_proba(X)), w)
    y = np.asarray(as_numbers(model.read_targets(y)))
    if y.dtype.kind not in "iufb":
        raise DataFileError(
            f"the target holds texts, such as {str(y.ravel()[0])!r}, and this model predicts"
            " numbers."
        )
    return _of_numbers(y.astype(np.float64), *_predicted(model, X), w)


def _weights(given: ArrayLike | None, n: int) -> np.ndarray:
    """One for each row where none were given."""
    if given is None:
        return np.ones(n)
    w = np.asarray(given, dtype=np.float64)
    if w.shape != (n,):
        raise InputError(f"sample_weight has shape {w.shape}, expected ({n},): one for each row.")
    if not np.isfinite(w).all() or (w < 0).any() or not w.any():
        raise InputError(
            f"sample_weight has {w.min():g} as its smallest value; weights have to be 0 or more,"
            " and not all 0."
        )
    return w


# ---- classes


@dataclass(frozen=True)
class ClassScores:
    """Scores of predicted classes and probabilities, as a function of the rows' weights.

    Of rows whose class the model does not know, codes are negative; they are no class's, and
    predicted wrong.
    """

    codes: np.ndarray
    guess: np.ndarray
    loss: np.ndarray  # −log of the probability of the true class
    rankings: list[Ranking]  # of the second of two classes, or of each that is there
    c: int

    @classmethod
    def of(cls, codes: np.ndarray, guess: np.ndarray, probabilities: np.ndarray) -> ClassScores:
        n, c = probabilities.shape
        least = np.finfo(probabilities.dtype).eps  # as scikit-learn clips them
        own = probabilities[np.arange(n), codes.clip(0)].clip(least, 1 - least)
        rows = np.bincount(codes[codes >= 0], minlength=c)
        there = [i for i in ([1] if c == 2 else range(c)) if 0 < rows[i] < rows.sum()]
        rankings = [Ranking.of(probabilities[:, i], codes == i) for i in there]
        return cls(codes, guess, -np.log(own.astype(np.float64)), rankings, c)

    def __call__(self, w: np.ndarray) -> dict[str, float]:
        known = np.where(self.codes >= 0, w, 0.0)
        counts = self._counts(known)
        shares, _ = _shares(counts)
        found = {
            "accuracy": float(counts.trace() / w.sum()),
            "balanced_accuracy": float(shares.sum() / max(1, len(shares))),
        }
        if self.c > 1:
            found["log_loss"] = float(known @ self.loss / max(known.sum(), 1e-300))
        found["f1"] = _f1(counts)
        if self.rankings:
            scores = np.array([ranking.scores(known) for ranking in self.rankings])
            scores = scores[np.isfinite(scores[:, 0])]
            found["roc_auc"], found["average_precision"] = _means(scores)
        return found

    def intervals(self, w: np.ndarray) -> dict[str, Interval]:
        """Of shares of rows in closed form, of the others by a bootstrap."""
        found = bootstrap(self, w, len(self.rankings))
        counts, squares = (self._counts(np.where(self.codes >= 0, v, 0.0)) for v in (w, w**2))
        shares, there = _shares(counts)
        rows = counts.sum(1)[there] ** 2 / squares.sum(1)[there]
        accuracy = float(counts.trace() / w.sum())
        found["accuracy"] = share_interval(accuracy, effective_rows(w))
        found["balanced_accuracy"] = mean_interval(shares.tolist(), rows.tolist())
        return found

    def _counts(self, w: np.ndarray) -> np.ndarray:
        """(c, c) weights of true classes, in rows, by the class predicted."""
        pairs = self.codes.clip(0) * self.c + self.guess
        return np.bincount(pairs, w, self.c**2).reshape(self.c, self.c)


def _shares(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the classes that are there, how many of their rows are found; and which are."""
    there = counts.sum(1) > 0
    return (counts.diagonal()[there] / counts.sum(1)[there]), there


def _f1(counts: np.ndarray) -> float:
    """Of the second of two classes; the mean over classes, true or predicted, where there are
    more.
    """
    both = counts.sum(0) + counts.sum(1)
    found = 2 * counts.diagonal() / np.where(both > 0, both, 1.0)
    if len(found) == 2:
        return float(found[1])
    return float(found.sum() / max(1, np.count_nonzero(both)))


def _means(scores: np.ndarray) -> tuple[float, float]:
    if not len(scores):
        return float("nan"), float("nan")
    area, precision = scores.mean(0).tolist()
    return area, precision


def _of_classes(
    model: KernelClassifier, y: np.ndarray, probabilities: np.ndarray, w: np.ndarray
) -> Evaluation:
    classes = model.classes_
    codes = places(y, classes)
    known = codes >= 0
    if not (known & (w > 0)).any():
        raise DataFileError(
            f"none of the targets, such as {str(y[0])!r}, is among the model's classes"
            f" {list(map(str, classes[:10]))}."
        )
    names = [str(c) for c in classes]
    decided = model.decided(probabilities)
    scores = ClassScores.of(codes, decided, probabilities)
    found, (guess, baseline) = scores(w), _usual_class(codes, w, len(classes))
    if not known.all():
        found["rows_of_unknown_classes"] = int((~known).sum())
    sums = np.eye(len(classes))[decided[known]]
    counts = confusion(torch.from_numpy(sums), torch.from_numpy(codes[known]), len(classes))
    return Evaluation(
        "classification",
        len(y),
        found,
        scores.intervals(w),
        baseline,
        names[guess],
        gain_interval((scores.guess == codes) - (codes == guess).astype(float), w),
        names,
        counts,
        reliability(codes[known], probabilities[known], w[known]),
        _curves(codes[known], probabilities[known], w[known], names),
    )


def _usual_class(codes: np.ndarray, w: np.ndarray, c: int) -> tuple[int, dict[str, float]]:
    """The most frequent class of these rows, and how good it is to predict it always, with the
    shares of classes for probabilities.
    """
    weights = np.bincount(codes[codes >= 0], w[codes >= 0], c)
    guess, shares = int(weights.argmax()), weights / weights.sum()
    always = np.full(len(codes), guess)
    return guess, ClassScores.of(codes, always, np.broadcast_to(shares, (len(codes), c)))(w)


def _curves(
    codes: np.ndarray, probabilities: np.ndarray, w: np.ndarray, names: list[str]
) -> list[ClassCurves]:
    """Of the second of two classes; of each class against the others where there are more. A class
    that is not among the rows, or alone there, has none.
    """
    c = len(names)
    shares = np.bincount(codes, w, c) / w.sum()
    return [
        Ranking.of(probabilities[:, i], codes == i).curves(names[i], w)
        for i in ([1] if c == 2 else range(c))
        if 0 < shares[i] < 1
    ]


# ---- numbers


@dataclass(frozen=True)
class NumberScores:
    """Scores of predicted numbers, (rows, outputs), as a function of the rows' weights: means over
    outputs.

    terms: of each row, what scores are sums of. Targets are distances from those of the first row,
    which of equal targets are 0 to the bit, in units of the largest: squares of tiny ones would
    vanish.
    """

    terms: np.ndarray  # (4, rows, outputs): squared error, target, its square, absolute error
    unit: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, predicted: np.ndarray) -> NumberScores:
        Y, errors = y - y[:1], y - predicted
        unit = np.abs(Y).max(0)
        unit = np.where(unit > 0, unit, 1.0)
        Y, errors = Y / unit, errors / unit
        return cls(np.stack([errors**2, Y, Y**2, np.abs(errors)]), unit)

    def __call__(self, w: np.ndarray) -> dict[str, float]:
        left, first, second, absolute = w @ self.terms
        total = w.sum()
        spread = second - first**2 / total
        flat = spread <= 1e-14 * second
        # As scikit-learn has it where targets do not differ.
        r2 = np.where(flat, left == 0, 1 - left / np.where(flat, 1.0, spread))
        alone = np.count_nonzero(w) < 2
        return {
            "r2": float("nan") if alone else float(r2.mean()),
            "rmse": float((np.sqrt(left / total) * self.unit).mean()),
            "mae": float((absolute / total * self.unit).mean()),
        }


class ErrorBars(NamedTuple):
    """What a model said beside its predictions: deviations, and intervals by their coverage."""

    deviation: np.ndarray
    limits: dict[float, tuple[np.ndarray, np.ndarray]]

    def inside(self, y: np.ndarray, w: np.ndarray) -> dict[float, float]:
        """The share of targets inside their intervals, by the share that was asked for."""
        return {
            coverage: float(np.average(((y >= low) & (y <= high)).mean(1), weights=w))
            for coverage, (low, high) in self.limits.items()
        }

    def scores(self, y: np.ndarray, predicted: np.ndarray, w: np.ndarray) -> dict[str, float]:
        """Shares of targets inside their intervals, the mean width of the usual ones, and the
        negative log likelihood of normal distributions: means over outputs.
        """
        shares = self.inside(y, w)
        found = {f"coverage_{100 * part:g}": shares[part] for part in SCORED if part in shares}
        if USUAL in self.limits:
            low, high = self.limits[USUAL]
            found["width_90"] = float(np.average((high - low).mean(1), weights=w))
        unit = y.std(0) + 1e-3 * np.abs(y).max(0)  # a likelihood of no deviation has no end
        size = np.maximum(self.deviation, 1e-12 * np.where(unit > 0, unit, 1.0))
        losses = np.log(size) + 0.5 * np.log(2 * np.pi) + 0.5 * ((y - predicted) / size) ** 2
        found["nll"] = float(np.average(losses.mean(1), weights=w))
        return found


def _predicted(model: KernelRegressor, X: DataLike) -> tuple[np.ndarray, ErrorBars | None]:
    """Predictions, (rows,) or (rows, outputs), and error bars where the model has them."""
    if not model.has_error_bars:
        return np.asarray(model.predict(X), dtype=np.float64), None
    predicted, deviation, limits = model.predict_with_error_bars(X, COVERAGES)
    wide = lambda part: np.asarray(part, dtype=np.float64).reshape(len(part), -1)  # noqa: E731
    shown = {share: (wide(low), wide(high)) for share, (low, high) in limits.items()}
    return np.asarray(predicted, dtype=np.float64), ErrorBars(wide(deviation), shown)


def _of_numbers(
    y: np.ndarray, predicted: np.ndarray, bars: ErrorBars | None, w: np.ndarray
) -> Evaluation:
    if y.shape != predicted.shape:
        raise DataFileError(
            f"the target has shape {y.shape}, and the model's predictions {predicted.shape}."
        )
    if not np.isfinite(y).all():
        raise DataFileError(
            f"the target has {int((~np.isfinite(y)).sum())} values that are not numbers."
        )
    y, predicted = y.reshape(len(y), -1), predicted.reshape(len(y), -1)
    scores = NumberScores.of(y, predicted)
    mean = np.average(y, axis=0, weights=w)
    each = [NumberScores.of(y[:, [i]], predicted[:, [i]])(w) for i in range(y.shape[1])]
    found = scores(w) | {"largest_error": float(np.abs(y - predicted).max())}
    intervals = bootstrap(scores, w, y.shape[1])
    if bars is not None:
        sure = bars.scores(y, predicted, w)
        found |= sure
        rows = effective_rows(w)
        intervals |= {
            name: share_interval(share, rows)
            for name, share in sure.items()
            if name.startswith("coverage_")
        }
    return Evaluation(
        "regression",
        len(y),
        found,
        intervals,
        NumberScores.of(y, np.broadcast_to(mean, y.shape))(w),
        "the mean",
        gain_interval((np.abs(y - mean) - np.abs(y - predicted)).mean(1), w),
        true=y,
        predicted=predicted,
        outputs=each,
        covered={} if bars is None else bars.inside(y, w),
    )
