"""Moments of numbers and counts of names, found in one pass over a table."""

from __future__ import annotations

import numpy as np

from .amounts import Words, count_forms
from .bounds import sampled

MOST_VALUES = 100_000  # distinct values of a column that are counted; with more it is hashed
CHUNK = 8_192  # rows whose moments are computed at once: the same bits however the table is cut


class Moments:
    """Mean and deviation of each column, chunk by chunk (Chan's update), without its missing
    values; weights count rows. And the largest |x| of each column, and a sample of `n` rows."""

    def __init__(self, d: int, n: int = 0):
        self.rows, self.lost = 0, np.zeros(d, np.int64)
        self.largest, self._every, self._some = np.zeros(d), sampled(n, d), [np.empty((0, d))]
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
        if values.dtype == np.float16:  # numpy converts a whole chunk sooner than number by number
            values = values.astype(np.float32)
        self._some.append(values[-self.rows % self._every :: self._every].copy())
        self.largest = np.fmax(self.largest, np.fmax.reduce(np.abs(values), axis=0))
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
    def sample(self) -> np.ndarray:
        """Some of the rows, evenly spread over them."""
        return np.concatenate(self._some)

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self._squares / np.where(self._count > 0, self._count, 1))


class Counts:
    """How many rows each text of a column has; with too many texts, each form of them (amounts.py).
    A weight of k is k rows."""

    def __init__(self) -> None:
        self.values: dict[str | None, float] | None = {}
        self.missing = 0  # rows without a text
        self._forms: dict[Words, float] | None = None

    def add(self, texts: np.ndarray, w: np.ndarray | None) -> None:
        found: dict[str | None, float] = {}
        self.missing += int((texts == None).sum())  # noqa: E711 (of every element)
        many = [1] * len(texts) if w is None else w.tolist()
        for text, rows in zip(texts.tolist(), many, strict=True):
            found[text] = found.get(text, 0) + rows
        if self.values is not None:
            for text, rows in found.items():
                self.values[text] = self.values.get(text, 0) + rows
            if len(self.values) > MOST_VALUES:
                found, self.values, self._forms = self.values, None, {}
        if self.values is None:
            self._add_forms(found)

    def _add_forms(self, found: dict[str | None, float]) -> None:
        if self._forms is None:
            return
        for words, rows in count_forms(found).items():
            self._forms[words] = self._forms.get(words, 0) + rows
        if len(self._forms) > MOST_VALUES:
            self._forms = None

    @property
    def forms(self) -> dict[Words, float]:
        """How many rows each form has; none where there are too many."""
        return count_forms(self.values) if self.values is not None else self._forms or {}
