"""Moments of numbers and counts of names, found in one pass over a table."""

from __future__ import annotations

import numpy as np

MOST_VALUES = 100_000  # distinct values of a column that are counted; with more it is hashed
CHUNK = 8_192  # rows whose moments are computed at once: the same bits however the table is cut


class Moments:
    """Mean and deviation of each column, chunk by chunk (Chan's update), without its missing
    values; weights count rows."""

    def __init__(self, d: int):
        self.rows, self.lost = 0, np.zeros(d, np.int64)
        self.mean, self._count, self._squares = np.zeros(d), np.zeros(d), np.zeros(d)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self.dtype: np.dtype | None = None  # of the first values

    def add(self, values: np.ndarray, w: np.ndarray | None) -> None:
        self.dtype = self.dtype or values.dtype
        w = np.ones(len(values)) if w is None else w
        while len(values):
            room = CHUNK - sum(len(part) for part, _ in self._waiting)
            self._waiting.append((values[:room], w[:room]))
            values, w = values[room:], w[room:]
            if sum(len(part) for part, _ in self._waiting) == CHUNK:
                self.add_rest()

    def add_rest(self) -> None:
        """What waits for a whole chunk is added as it is."""
        if not self._waiting:
            return
        values, w = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self.rows = [], self.rows + len(values)
        same = bool((w == w[0]).all())
        mean = values.mean(0, dtype=np.float64)
        if same and np.isfinite(mean).all():
            count = np.full(len(mean), w[0] * len(values))
            squares = w[0] * np.einsum("ij,ij->j", centered := values - mean, centered)
        else:
            lost = np.isnan(values)
            count = np.where(lost, 0, w[:, None]).sum(0)
            total = (np.where(lost, 0, values) * w[:, None]).sum(0, dtype=np.float64)
            mean = total / np.where(count > 0, count, 1)
            squares = (np.where(lost, 0, values - mean) ** 2 * w[:, None]).sum(0)
            self.lost += lost.sum(0)
        total = self._count + count
        shift, share = mean - self.mean, count / np.where(total > 0, total, 1)
        self._squares += squares + shift**2 * self._count * share
        self.mean += shift * share
        self._count = total

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self._squares / np.where(self._count > 0, self._count, 1))


class Counts:
    """How often each value occurs, until there are too many of them."""

    def __init__(self) -> None:
        self.values: dict[str | None, int] | None = {}

    def add(self, texts: np.ndarray) -> None:
        if self.values is None:
            return
        for text in texts.tolist():
            self.values[text] = self.values.get(text, 0) + 1
        if len(self.values) > MOST_VALUES:
            self.values = None
