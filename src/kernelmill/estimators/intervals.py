"""95 % intervals of scores: closed forms for shares of rows, a bootstrap over rows for others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Interval = tuple[float, float]
Scores = Callable[[np.ndarray], dict[str, float]]  # of weights of the rows

NORMAL = 1.959964  # standard deviations on each side of the middle 95 %
FEWEST_ROWS = 10  # of which a bootstrap says anything
# Samples that are drawn: as many as this much work allows, in rows times curves.
LEAST, ENOUGH, MOST, WORK = 40, 200, 1000, 40_000_000
KNOWN = 0.9  # of the samples that must have the score at all


def effective_rows(w: np.ndarray) -> float:
    """As many rows of equal weight say as much."""
    return float(w.sum() ** 2 / (w**2).sum())


def share_interval(share: float, rows: float) -> Interval:
    """Wilson's interval of a share of rows: inside 0 and 1, and wide where rows are few even if
    all of them are right.
    """
    square = NORMAL**2 / rows
    middle = (share + square / 2) / (1 + square)
    half = NORMAL * math.sqrt(share * (1 - share) / rows + square / (4 * rows)) / (1 + square)
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def mean_interval(shares: Sequence[float], rows: Sequence[float]) -> Interval:
    """Of the mean of independent shares: the distances to their own limits, added as errors are
    (the method of variance estimates recovery).
    """
    each = [share_interval(share, n) for share, n in zip(shares, rows, strict=True)]
    below = math.hypot(*(share - low for share, (low, _) in zip(shares, each, strict=True)))
    above = math.hypot(*(high - share for share, (_, high) in zip(shares, each, strict=True)))
    mean = math.fsum(shares) / len(shares)
    return mean - below / len(shares), mean + above / len(shares)


def gain_interval(gains: np.ndarray, w: np.ndarray) -> Interval | None:
    """Of the mean of what each row gains: pairs of predictions of the same rows tell small
    differences that intervals of each would hide.
    """
    if np.count_nonzero(w) < FEWEST_ROWS:
        return None
    mean = float(np.average(gains, weights=w))
    half = NORMAL * float(np.linalg.norm(w * (gains - mean))) / float(w.sum())
    return mean - half, mean + half


def bootstrap(scores: Scores, w: np.ndarray, curves: int = 1, seed: int = 0) -> dict[str, Interval]:
    """Between which values scores lie in 95 % of samples of the rows, drawn with replacement.

    w: weights of the rows. A score has no interval where rows are few, where too many samples
    have no such score, and where all samples have the same.
    """
    there, found = np.flatnonzero(w), scores(w)
    n = len(there)
    if n < FEWEST_ROWS:
        return {}
    generator = np.random.default_rng(seed)
    samples = min(MOST, max(LEAST, WORK // (n * max(1, curves))))
    values: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(samples):
        drawn = np.bincount(there[generator.integers(n, size=n)], minlength=len(w))
        for name, value in scores(drawn * w).items():
            values[name].append(value)
    limits = {name: _middle(found[name], np.array(values[name])) for name in found}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _middle(score: float, values: np.ndarray) -> Interval | None:
    """The middle 95 % of the values, and the score itself."""
    known = values[np.isfinite(values)]
    if not math.isfinite(score) or len(known) < KNOWN * len(values):
        return None
    if len(values) < ENOUGH:  # of many rows: few samples tell a deviation, but no quantiles
        low, high = score - 1.96 * known.std(), score + 1.96 * known.std()
    else:
        low, high = np.quantile(known, [0.025, 0.975])
    low, high = min(score, float(low)), max(score, float(high))
    return (low, high) if low < high else None
