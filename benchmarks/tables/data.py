"""The 23 tables: which file, which target, which rows train and which are held out.

KERNELMILL_DATA has five .npz files, and tables/NAME.train.parquet and tables/NAME.test.parquet of
the others. pyarrow reads them; pandas is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

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
