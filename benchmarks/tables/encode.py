"""Features as the peers take them: a matrix of numbers and codes, names as texts, or one-hot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .data import Frame


def is_name(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def names(X: Frame) -> list[int]:
    """Places of the columns of texts. Whole numbers count as numbers, for everybody."""
    if not isinstance(X, pa.Table):
        return []
    return [place for place, field in enumerate(X.schema) if is_name(field.type)]


def number_column(values: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers, with NaN for what is missing."""
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class Codes:
    """The names of each column of texts among the training rows."""

    known: dict[int, pa.Array]

    @classmethod
    def learn(cls, X: Frame) -> Codes:
        return cls({place: pc.unique(X.column(place)).drop_null() for place in names(X)})

    def matrix(self, X: Frame) -> np.ndarray:
        """(n, d) float64: numbers, and for names their codes; NaN where missing or new."""
        if not isinstance(X, pa.Table):
            return X.astype(np.float64)
        return np.stack([self._column(X.column(j), j) for j in range(X.num_columns)], axis=1)

    def _column(self, values: pa.ChunkedArray, place: int) -> np.ndarray:
        if place in self.known:
            values = pc.index_in(values, value_set=self.known[place], skip_nulls=True)
        return number_column(values)


@dataclass(frozen=True)
class OneHot:
    """Standardised numbers beside one-hot names, as xRFM's own page asks for.

    A missing number is the mean, and a column of its own says so; a missing or new name is zeros.
    """

    codes: Codes
    mean: np.ndarray
    deviation: np.ndarray
    gaps: np.ndarray  # numbers of which some are missing

    @classmethod
    def learn(cls, X: Frame) -> OneHot:
        codes = Codes.learn(X)
        numbers = np.delete(codes.matrix(X), list(codes.known), axis=1)
        deviation = np.nanstd(numbers, axis=0)
        return cls(
            codes,
            np.nanmean(numbers, axis=0),
            np.where(deviation > 0, deviation, 1.0),
            np.isnan(numbers).any(axis=0),
        )

    def blocks(self, X: Frame) -> list[np.ndarray]:
        """The numbers, then one block for each column of names."""
        matrix = self.codes.matrix(X)
        numbers = (np.delete(matrix, list(self.codes.known), axis=1) - self.mean) / self.deviation
        missing = np.isnan(numbers)
        hot = [
            (matrix[:, [j]] == np.arange(len(known))).astype(np.float32)
            for j, known in self.codes.known.items()
        ]
        first = np.hstack([np.where(missing, 0.0, numbers), missing[:, self.gaps]])
        return [first.astype(np.float32), *hot]


def texts(X: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, ·) as float32 and names (n, ·) as bytes, as CatBoost takes them."""
    places = names(X)
    if not places:
        return Codes({}).matrix(X).astype(np.float32), np.empty((len(X), 0), object)
    numbers = [number_column(X.column(j)) for j in range(X.num_columns) if j not in places]
    words = [
        np.array([(word or "").encode() for word in X.column(j).to_pylist()], object)
        for j in places
    ]
    return np.stack(numbers, axis=1).astype(np.float32), np.stack(words, axis=1)
