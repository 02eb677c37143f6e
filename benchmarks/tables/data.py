"""The 23 tables: which file, which target, which rows train and which are held out.

KERNELMILL_DATA has five .npz files, and tables/NAME.train.parquet and tables/NAME.test.parquet of
the others. pyarrow reads them; pandas is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..tasks import data_folder, table

Frame = pa.Table | np.ndarray  # features as they are: a table of named columns, or an array
HELD = 10  # one row of so many is held out of a peer's training


@dataclass(frozen=True)
class Rows:
    """Features as they are, and targets: class numbers where `labels` is not None."""

    X: Frame
    y: np.ndarray
    labels: np.ndarray | None  # the labels of the classes among the training rows

    def __len__(self) -> int:
        return len(self.y)

    def some(self, places: np.ndarray) -> Rows:
        return Rows(take(self.X, places), self.y[places], self.labels)

    @property
    def columns(self) -> int:
        return len(self.X.column_names) if isinstance(self.X, pa.Table) else self.X.shape[1]

    @property
    def classes(self) -> int:
        """How many classes there are; 0 for numbers."""
        return 0 if self.labels is None else len(self.labels)


@dataclass(frozen=True)
class Table:
    """A table of the data folder. Nothing is read before `train` or `test` is called."""

    name: str
    classes: bool
    target: str | None = None  # None: an .npz file

    def train(self, fraction: float = 1.0) -> Rows:
        """That share of the training rows; the rows of a smaller share are among a larger's."""
        X, y = self._read("train")
        if fraction < 1:
            order = np.random.default_rng(0).permutation(len(y))
            some = np.sort(order[: round(fraction * len(y))])
            X, y = take(X, some), y[some]
        if not self.classes:
            return Rows(X, y.astype(np.float64), None)
        labels, y = np.unique(y, return_inverse=True)
        return Rows(X, y, labels)

    def test(self, labels: np.ndarray | None) -> Rows:
        """The test rows. A class that was not among the training rows has the number −1."""
        X, y = self._read("test")
        if labels is None:
            return Rows(X, y.astype(np.float64), None)
        place = np.searchsorted(labels, y).clip(max=len(labels) - 1)
        return Rows(X, np.where(labels[place] == y, place, -1), labels)

    def _read(self, part: str) -> tuple[Frame, np.ndarray]:
        if self.target is None:
            X, y, X_test, y_test = table(self.name)
            return (X, y) if part == "train" else (X_test, y_test)
        whole = pq.read_table(data_folder() / "tables" / f"{self.name}.{part}.parquet")
        return whole.drop_columns([self.target]), whole[self.target].to_numpy()


# From the quickest to fit to the slowest.
TABLES = {
    each.name: each
    for each in (
        Table("factors", True, "target"),
        Table("waveform", True, "target"),
        Table("texture", True, "target"),
        Table("optdigits", True, "target"),
        Table("satimage", True, "target"),
        Table("ring", True, "target"),
        Table("mushroom", True, "target"),
        Table("shoppers", True, "Revenue"),
        Table("nursery", True, "target"),
        Table("echo", False, "target"),
        Table("elevators", False),
        Table("cards", True, "Default"),
        Table("steel", False, "Usage_kWh"),
        Table("turbine", False, "Nitrogen oxides"),
        Table("planes", False, "target"),
        Table("kin40k", False),
        Table("protein", False),
        Table("diamonds", False, "price"),
        Table("keggdirected", False),
        Table("hotel", True, "is_canceled"),
        Table("credit", True, "SeriousDlqin2yrs"),
        Table("sgemm", False, "log_ms"),
        Table("covertype", True),
    )
}


@dataclass(frozen=True)
class Split(Table):
    """An .npz table cut in another way: `trains` gives, of all its rows, which are trained on; and
    `tests`, which are tested on.
    """

    of: str = ""
    trains: Callable[[np.ndarray], np.ndarray] = field(default=lambda X: np.ones(len(X), bool))
    tests: Callable[[np.ndarray], np.ndarray] = field(default=lambda X: np.ones(len(X), bool))

    def _read(self, part: str) -> tuple[Frame, np.ndarray]:
        X, y, X_test, y_test = table(self.of)
        X, y = np.concatenate([X, X_test]), np.concatenate([y, y_test])
        rows = (self.trains if part == "train" else self.tests)(X)
        return X[rows], y[rows]


def between(low: float, high: float) -> Callable[[np.ndarray], np.ndarray]:
    """Of rows in random order, those from one share to another."""

    def rows(X: np.ndarray) -> np.ndarray:
        place = np.random.default_rng(2).permutation(len(X)) / len(X)
        return (low <= place) & (place < high)

    return rows


def area(number: int, inside: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Rows of covertype in that wilderness area, or outside of it."""

    def rows(X: np.ndarray) -> np.ndarray:
        there = X[:, AREAS + number] > X[:, AREAS + number].mean()
        return there if inside else ~there

    return rows


AREAS = 10  # the first column of covertype that says in which of four areas a row is
# Published results are on 64 % of the rows, with 16 % to tune on, which are not used here.
SPLITS = {
    each.name: each
    for each in (
        Split("protein-64", False, None, "protein", between(0, 0.64), between(0.8, 1)),
        Split("covertype-64", True, None, "covertype", between(0, 0.64), between(0.8, 1)),
        *(
            Split(f"covertype-area-{i}", True, None, "covertype", area(i, False), area(i, True))
            for i in range(4)
        ),
    )
}


def take(X: Frame, rows: np.ndarray) -> Frame:
    return X.take(rows) if isinstance(X, pa.Table) else X[rows]


def hold_out(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to train on, and every tenth, to validate on.

    Each class gives its tenth; one of a few rows gives none.
    """
    tie = np.random.default_rng(1).permutation(len(rows))
    groups = np.zeros(len(rows), int) if rows.labels is None else rows.y
    order = np.lexsort((tie, groups))
    starts = np.searchsorted(groups[order], groups[order])
    held = np.zeros(len(rows), bool)
    held[order] = (np.arange(len(rows)) - starts) % HELD == HELD // 2
    return rows.some(np.flatnonzero(~held)), rows.some(np.flatnonzero(held))
