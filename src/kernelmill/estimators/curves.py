"""What probabilities of classes are worth: ROC and precision-recall curves, and calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .intervals import effective_rows

BINS = 10  # of probabilities, in which they are compared with what came
CURVE_POINTS = 120  # of a curve that is drawn


@dataclass(frozen=True)
class Bin:
    """Rows whose probabilities are from `low` to `high`: their mean, how many came true, and the
    standard error that this share would have if the probabilities were right.
    """

    low: float
    high: float
    rows: int
    probability: float
    share: float
    error: float


@dataclass(frozen=True)
class ClassCurves:
    """A class against the others: `roc` has the rates of false and of true positives at every
    threshold, `precision` the share of the class that is found and of those found that are right.
    """

    name: str
    share: float  # of the rows that are of this class
    area: float
    average_precision: float
    roc: np.ndarray
    precision: np.ndarray


@dataclass(frozen=True)
class Ranking:
    """Rows in the order of a probability: which of its levels each has, and which are positive."""

    level: np.ndarray
    levels: int
    positive: np.ndarray

    @classmethod
    def of(cls, probability: np.ndarray, positive: np.ndarray) -> Ranking:
        values, level = np.unique(-probability, return_inverse=True)  # the likeliest first
        return cls(level, len(values), positive)

    def counts(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of positive rows and of the others, by level."""
        positive = np.bincount(self.level, w * self.positive, self.levels)
        return positive, np.bincount(self.level, w * ~self.positive, self.levels)

    def scores(self, w: np.ndarray) -> tuple[float, float]:
        """Area under the ROC curve and average precision; NaN without rows of both kinds."""
        positive, negative = self.counts(w)
        both = positive.sum(), negative.sum()
        if min(both) <= 0:
            return float("nan"), float("nan")
        below = both[1] - negative.cumsum() + negative / 2  # ties count by half
        found, taken = positive.cumsum(), (positive + negative).cumsum()
        precision = found / np.where(taken > 0, taken, 1.0)
        return float(positive @ below / both[0] / both[1]), float(positive @ precision / both[0])

    def curves(self, name: str, w: np.ndarray) -> ClassCurves:
        """There must be rows of both kinds."""
        positive, negative = self.counts(w)
        found, wrong = positive.cumsum(), negative.cumsum()
        recall, false_rate = found / found[-1], wrong / wrong[-1]
        taken = found + wrong
        precision = np.where(taken > 0, found / np.where(taken > 0, taken, 1.0), 1.0)
        roc = np.stack([np.append(0.0, false_rate), np.append(0.0, recall)], 1)
        # As scikit-learn has it: nothing is found with the precision 1.
        right = np.stack([np.append(0.0, recall), np.append(1.0, precision)], 1)
        area, average = self.scores(w)
        share = float(found[-1] / taken[-1])
        return ClassCurves(name, share, area, average, _thin(roc), _thin(right))


def _thin(points: np.ndarray) -> np.ndarray:
    """Points of a curve, about as far from each other all along it; its ends stay."""
    if len(points) <= CURVE_POINTS:
        return points
    way = np.append(0.0, np.abs(np.diff(points, axis=0)).sum(1).cumsum())
    at = np.searchsorted(way, np.linspace(0, way[-1], CURVE_POINTS))
    return points[np.unique(np.append(at.clip(0, len(points) - 1), [0, len(points) - 1]))]


def reliability(codes: np.ndarray, probabilities: np.ndarray, w: np.ndarray) -> list[Bin]:
    """How often what has a probability comes true, by bins of equal width: of the second of two
    classes, else of the likeliest class.
    """
    if probabilities.shape[1] < 2:
        return []
    if probabilities.shape[1] == 2:
        given, true = probabilities[:, 1], codes == 1
    else:
        given, true = probabilities.max(1), codes == probabilities.argmax(1)
    place = (given * BINS).astype(int).clip(0, BINS - 1)
    found = []
    for i in range(BINS):
        own = (place == i) & (w > 0)
        if own.any():
            mean = float(np.average(given[own], weights=w[own]))
            share = float(np.average(true[own], weights=w[own]))
            error = float(np.sqrt(mean * (1 - mean) / effective_rows(w[own])))
            found.append(Bin(i / BINS, (i + 1) / BINS, int(own.sum()), mean, share, error))
    return found
