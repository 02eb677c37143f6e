"""Bounds of columns that hold fill values: numbers so far from all others of their column that a
mean, a spread or float32 taken over all rows would lose what the others say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..errors import warn

FAR = 1e6  # times the range of a column's middle half, where a fill value begins
GAP = 1e3  # times further out than all other values; without such a gap it is a long tail
TINY = 1e-6  # ranges below it may be the rounding of values near 1
RARE, FEW = 0.01, 3  # share of the rows, or different values, that fill values are at most
NEAR = 1e-9  # of the middle: values nearer to it than that differ from it by rounding
BESIDE = 2.0  # such ranges beyond the other values, where a fill value is put
ROWS, LEAST_ROWS, NUMBERS = 2000, 200, 1 << 20  # of the sample that tells what is usual
NAMED = 5  # columns in a warning
# What is to be done, of columns and of matrices.
MISSING = "name them in columns=Columns(na_values=[...]) if they stand for missing values"
INSTEAD = "drop those rows, or put something else there, if they stand for missing values"


def sampled(n: int, d: int) -> int:
    """Of n rows with d numbers, every how many-th are enough to tell what is usual."""
    most = min(ROWS, max(LEAST_ROWS, NUMBERS // max(1, d)))
    return max(1, -(-n // most))


def clipped(values: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
    """Rows within (2, d) bounds, in the precision they have; as they are where there are none."""
    if bounds is None:
        return values
    low, high = bounds.astype(np.result_type(values.dtype, np.float16))
    return np.minimum(np.maximum(values, low), high)


def inside(values: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
    """Rows with NaN for what is beyond their bounds."""
    return values if bounds is None else np.where(clipped(values, bounds) == values, values, np.nan)


def check_bounds(bounds: np.ndarray, d: int) -> None:
    """ValueError unless these are bounds of d columns."""
    if not isinstance(bounds, np.ndarray) or bounds.shape != (2, d):
        raise ValueError("the bounds do not fit the columns")
    if not (bounds[0] < bounds[1]).all():
        raise ValueError("the bounds do not fit each other")


def find_bounds(
    sample: np.ndarray,
    largest: np.ndarray | float,
    blocks: Callable[[np.ndarray], Iterable[np.ndarray]],
    names: Sequence[str],
    where: str,
    advice: str,
) -> np.ndarray | None:
    """(2, d) the least and the most that values of each column count as; None, without a look at
    all rows, where no column has a fill value.

    sample: (rows, d), NaN where a value is missing; largest: of |x| in each column, or in all;
    blocks: all rows of some columns, by number, some at a time.
    """
    middle, unit = _usual(sample)
    some = np.flatnonzero((unit > TINY) & (largest + np.abs(middle) >= FAR * unit))
    if not len(some):
        return None
    middle, unit = middle[some], unit[some]
    least, most, nearest = middle, middle, np.full(len(some), np.inf)
    n, rows = 0, np.zeros(len(some))
    fills: list[set[float]] = [set() for _ in some]
    for block in blocks(some):
        values = block.astype(np.float64)
        apart = np.abs(values - middle)
        far = apart > FAR * unit
        usual = np.where(far | np.isnan(values), middle, values)
        least = np.minimum(least, usual.min(0, initial=np.inf))
        most = np.maximum(most, usual.max(0, initial=-np.inf))
        nearest = np.minimum(nearest, np.where(far, apart, np.inf).min(0, initial=np.inf))
        rows += far.sum(0)
        n += len(values)
        for j in np.flatnonzero(far.any(0)):
            if len(fills[j]) <= FEW:
                fills[j].update(values[far[:, j], j].tolist())
    few = (rows <= RARE * n) | np.array([len(seen) <= FEW for seen in fills])
    alone = nearest >= GAP * np.maximum(unit, np.maximum(middle - least, most - middle))
    found = np.flatnonzero((rows > 0) & few & alone)
    if not len(found):
        return None
    bounds = np.stack([np.full(sample.shape[1], -np.inf), np.full(sample.shape[1], np.inf)])
    for j in found:
        bounds[:, some[j]] = least[j] - BESIDE * unit[j], most[j] + BESIDE * unit[j]
    said = [
        f"{names[some[j]]} in {rows[j]:.0f} of {n} rows, such as {max(fills[j], key=abs)!r}"
        for j in found[:NAMED]
    ]
    warn(
        f"{where} has values more than {FAR:.0e} times as far out as others of their column, in"
        f" {'; '.join(said)}{'; …' if len(found) > NAMED else ''}: they count as a little beyond"
        f" the others; {advice}."
    )
    return bounds


def _usual(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(d,) middles, and the range of the middle half: of rows, or of different values, where those
    are nearer together. It is 0 where all values are alike."""
    values = np.sort(sample.astype(np.float64), axis=0)
    again = np.zeros(values.shape, bool)
    again[1:] = values[1:] == values[:-1]
    middle, unit = _middle(values)
    other, nearer = _middle(np.sort(np.where(again, np.nan, values), axis=0))
    use = (nearer > 0) & (nearer < unit)
    return np.where(use, other, middle), np.where(use, nearer, unit)


def _middle(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians of columns that are sorted, NaN last, and twice those of the distances to them that
    are not 0."""
    middle = _median(values)
    apart = np.abs(values - middle)
    apart[apart <= NEAR * np.abs(middle)] = np.nan
    return middle, 2 * _median(np.sort(apart, axis=0))


def _median(values: np.ndarray) -> np.ndarray:
    if not len(values):
        return np.zeros(values.shape[1])
    there = (~np.isnan(values)).sum(0)
    found = np.take_along_axis(values, np.maximum(there - 1, 0)[None] // 2, axis=0)[0]
    return np.where(there > 0, found, 0.0)
