"""Whole numbers that are names: agents, shops, zip codes.

Of a number its neighbours say what to expect; of a name they do not. So a column of whole numbers
is taken for names too where the mean target of a value, drawn towards those beside it, is nearer to
the targets of other rows than their common mean is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .categories import Category

MOST_VALUES, EACH = 10_000, 5  # of a column that may be names; and rows for each of them, at least
CLOSE = 1 << 16  # between the least and the largest, that are quickly counted
EXACT = 2.0**53  # beyond it not every whole number is one of its own
BESIDE = np.ones(5)  # a value, and two on either side
WORTH = 0.01  # of the targets' variance that the values must explain beyond their neighbours


class Wholes:
    """The different values of a column of numbers, while they are whole and few enough."""

    def __init__(self) -> None:
        self._values: np.ndarray | None = np.empty(0)

    def add(self, values: np.ndarray) -> None:
        if self._values is None:
            return
        known = values[~np.isnan(values)].astype(np.float64)
        if (known != np.rint(known)).any() or (np.abs(known) > EXACT).any():
            self._values = None
            return
        self._values = np.union1d(self._values, _different(known))
        if len(self._values) > MOST_VALUES:
            self._values = None

    def more_than(self, few: int) -> np.ndarray | None:
        """The values in order, where they are more than `few`."""
        return None if self._values is None or len(self._values) <= few else self._values


@dataclass
class NumberNames(Category):
    """Numbers as names. `values` are numbers in order, then None for a missing one."""

    @classmethod
    def of(cls, name: str, values: np.ndarray, outputs: int) -> NumberNames:
        return cls(name, "number", outputs, [*values.tolist(), None])

    def codes(self, given: np.ndarray) -> np.ndarray:
        numbers = np.asarray(self.values[:-1], np.float64)
        given = np.asarray(given, np.float64).reshape(-1)
        place = np.searchsorted(numbers, given).clip(max=len(numbers) - 1)
        found = np.where(numbers[place] == given, place, len(self.values))
        return np.where(np.isnan(given), len(numbers), found)

    def called(self, value: str | float | None) -> str:
        return "missing" if value is None else f"{float(value):.0f}"

    @property
    def summary(self) -> str:
        return f"{len(self.values) - 1} numbers, taken for names too"

    def _warn_of_new(self, given: np.ndarray, codes: np.ndarray) -> None:
        """New ones are still numbers."""

    def validate(self) -> None:
        super().validate()
        numbers = self.values[:-1]
        in_order = all(isinstance(value, float) for value in numbers) and self.values[-1] is None
        if not in_order or not (np.diff(np.asarray(numbers, np.float64)) > 0).all():
            raise ValueError("the encoder's categories do not fit each other")


def are_names(sums: np.ndarray, counts: np.ndarray, prior: float, variance: float) -> bool:
    """Whether values in order are better taken for names, by what each fold says of the others.

    sums (folds, values, outputs) of targets in each fold, counts (folds, values, 1) of rows, and
    the variance of all outputs together.
    """
    gains = []
    for s, n in zip(sums, counts, strict=True):
        others, fewer = sums.sum(0) - s, counts.sum(0) - n
        beside = _around(others) / np.maximum(_around(fewer), 1e-300)
        own = (others + prior * beside) / (fewer + prior)
        gains.append((n * (beside**2 - own**2) + 2 * s * (own - beside)).sum())
    return bool(min(gains) > 0 and sum(gains) > WORTH * variance * counts.sum())


def _different(known: np.ndarray) -> np.ndarray:
    """Whole numbers in order, each once; by counting where they lie close together."""
    if len(known) == 0 or known.max() - known.min() >= CLOSE:
        return np.unique(known)
    least = known.min()
    return np.flatnonzero(np.bincount((known - least).astype(np.int64))) + least


def _around(values: np.ndarray) -> np.ndarray:
    """Sums over each value and those beside it."""
    summed = [np.convolve(column, BESIDE, "same") for column in values.T]
    return np.stack(summed, 1)
