"""What turns rows of a table into features.

It is learned from the training rows (fitting.py), and belongs to the model: prediction takes the
raw table. It is plain data, so that it can be stored without running code on loading.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from . import dates
from .account import Account
from .amounts import Amounts, Forms
from .bounds import check_bounds, clipped
from .categories import Category, checksums, fold_of, meanings
from .checks import check_finite, is_clean, refuse
from .number_names import NumberNames
from .tables import Table
from .writing import Reading, as_written

KINDS = {"number", "boolean", "date", "text", "empty"}


@dataclass
class Encoder:
    """What turns rows of a table into d features."""

    numbers: list[str]  # fields that become numbers, in order; a date has several parts
    widths: list[int]
    shift: np.ndarray  # (their columns,) what is taken off, and what a missing value becomes
    scale: np.ndarray  # what is divided by
    flagged: np.ndarray  # columns that had missing values: each gets a column that says where
    categories: list[Category | Amounts]
    kind: str  # of the features: "float32", or the matrix's own
    kinds: dict[str, str]  # of the fields, by name, as they stood in the table
    missing: str = "impute"
    reading: Reading = field(default_factory=Reading)  # how they are written
    account: Account = field(default_factory=Account)  # of the columns
    rows: int = 0  # that it was learned from
    by_content: bool = False  # a training row's fold follows from the row, not its number; unstored
    constant: list[int] = field(default_factory=list)  # features that are 0 in training; unstored
    bounds: np.ndarray | None = None  # (2, their columns) the least and most that values count as
    # How a kernel that is chosen is to see features, by number; unstored: the kernel has it.
    seen_as: dict[int, str] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.kind)

    @property
    def plain(self) -> bool:
        """A matrix that is used as it is."""
        if self.categories or len(self.flagged):
            return False
        return bool((self.scale == 1).all() and (self.shift == 0).all())

    @property
    def inputs(self) -> list[str]:
        """Names of the fields it reads."""
        return list(self.kinds)

    @property
    def dates(self) -> set[str]:
        return {name for name in self.numbers if self.kinds[name] == "date"}

    @property
    def days(self) -> list[int]:
        """The features that say when a date is."""
        return [
            i for i, (name, part) in enumerate(self.sources) if name in self.dates and part == 0
        ]

    @property
    def d(self) -> int:
        widths = [category.width for category in self.categories]
        return len(self.shift) + len(self.flagged) + sum(widths)

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        columns = numbered(self.numbers, self.widths, self.dates)
        flags = [f"{columns[i].removesuffix(': days')} is missing" for i in self.flagged]
        made = [f"{each.name}: {label}" for each in self.categories for label in each.labels]
        return [*columns, *flags, *made]

    @property
    def sources(self) -> list[tuple[str, int]]:
        """The field that each feature was made of, and the place in it where it is a matrix, or
        which of its parts that have a bandwidth each."""
        of_numbers = [
            (name, i)
            for name, width in zip(self.numbers, self.widths, strict=True)
            for i in (range(width) if name not in self.dates else dates.GROUPS)
        ]
        of_flags = [of_numbers[i] for i in self.flagged]
        of_names = [(each.name, part) for each in self.categories for part in each.parts]
        return [*of_numbers, *of_flags, *of_names]

    @property
    def columns(self) -> list[int]:
        """A number for each feature's source, in the order in which they come."""
        known = {source: i for i, source in enumerate(dict.fromkeys(self.sources))}
        return [known[source] for source in self.sources]

    @property
    def percents(self) -> dict[str, int]:
        """What a percent sign divides by in columns of numbers: 100 where they are shares, of which
        the training rows had none beyond 1. Zeros say nothing."""
        largest = {
            column.name: max(map(abs, column.range))
            for column in self.account
            if column.range is not None
        }
        return {name: 100 if value <= 1 else 1 for name, value in largest.items() if value}

    def over(self, table: Table) -> Table:
        """A table with fields of the kinds that were learned, whatever it holds itself."""
        left = [name for name in table.fields if name not in self.kinds]
        written = as_written(table, self.reading, self.kinds, left=left, percents=self.percents)
        return written.of_kinds(self.kinds)

    def encode(
        self,
        table: Table,
        start: int,
        stop: int,
        training: bool = False,
        held_out: np.ndarray | None = None,
    ) -> np.ndarray:
        """(rows, d). In training, categories are encoded without the targets of the row's own fold;
        rows of `held_out` as new ones."""
        table = self.over(table)
        block = table.read(self.inputs, start, stop)
        if self.plain and len(self.numbers) == 1:
            values = block[self.numbers[0]].astype(self.dtype, copy=False)
            if not is_clean(values):
                check_finite(values, numbered(self.numbers, self.widths), table.where)
            return np.ascontiguousarray(clipped(values, self.bounds))
        out = np.empty((stop - start, self.d), self.dtype)
        if self.numbers:
            self._encode_numbers(table, block, out)
        fold = None
        if training and any(category.folds is not None for category in self.categories):
            rows = np.arange(start, stop)
            fold = fold_of(checksums(block, self.inputs) if self.by_content else rows)
            fold = fold if held_out is None else np.where(held_out, -1, fold)
        self._encode_categories(block, fold, out, training)
        return out

    def _encode_numbers(self, table: Table, block: dict[str, np.ndarray], out: np.ndarray) -> None:
        """The first columns of `out`: numbers, and which of them were missing."""
        values = in_parts(block, self.numbers, self.dates)
        lost = None if is_clean(values) else np.isnan(values)
        if lost is not None:
            columns = numbered(self.numbers, self.widths, self.dates)
            if self.missing == "refuse" and lost.any():
                first = date_columns(self.numbers, self.widths, self.dates)[2]
                refuse(lost.sum(0) * first, columns, table.where)
            check_finite(np.where(lost, 0, values), columns, table.where)
        centered = clipped(values, self.bounds) - self.shift
        np.divide(centered, self.scale, out=centered)
        k, flags = len(self.shift), len(self.flagged)
        out[:, :k] = centered if lost is None else np.where(lost, 0, centered)
        out[:, k : k + flags] = 0 if lost is None else lost[:, self.flagged]

    def _encode_categories(
        self,
        block: dict[str, np.ndarray],
        fold: np.ndarray | None,
        out: np.ndarray,
        training: bool,
    ) -> None:
        """The last columns of `out`."""
        k = len(self.shift) + len(self.flagged)
        for category in self.categories:
            texts, columns = block[category.name], slice(k, k + category.width)
            k += category.width
            if isinstance(category, Amounts):
                out[:, columns] = category.encode(texts, training)
                continue
            if category.how == "hash":
                texts = meanings(texts)
            out[:, columns] = category.encode(texts, fold)

    def to_dict(self) -> dict[str, object]:
        left_out = ("categories", "by_content", "constant", "seen_as", "reading", "account")
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        made = [asdict(category) for category in self.categories]
        made = [{name: each[name] for name in each if name != "folds"} for each in made]
        more = {"reading": self.reading.to_dict(), "account": self.account.to_list()}
        return {**kept, "categories": made, **more}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Encoder:
        """What `to_dict` gave. ValueError where its parts do not fit each other."""
        made = [_text_column(category) for category in values["categories"]]
        reading = Reading.from_dict(values["reading"])
        account = Account.from_list(values["account"])
        found = cls(**{**values, "categories": made, "reading": reading, "account": account})
        found._validate()
        for category in found.categories:
            category.validate()
        return found

    def _validate(self) -> None:
        arrays, k = (self.shift, self.scale, self.flagged), len(self.shift)
        if not all(isinstance(a, np.ndarray) and a.ndim == 1 for a in arrays):
            raise ValueError("the encoder's arrays do not fit each other")
        if len(self.scale) != k:
            raise ValueError("the encoder's arrays do not fit each other")
        if sum(self.widths) != k or len(self.numbers) != len(self.widths):
            raise ValueError("the encoder's columns do not fit each other")
        if self.kind not in ("float16", "float32", "float64"):
            raise ValueError("the encoder's columns do not fit each other")
        if ((self.flagged < 0) | (self.flagged >= k)).any():
            raise ValueError("the encoder's columns do not fit each other")
        if self.bounds is not None:
            check_bounds(self.bounds, k)
        if not np.isfinite(self.shift).all() or not np.isfinite(self.scale).all():
            raise ValueError("the encoder's columns have no scale")
        if (self.scale <= 0).any():
            raise ValueError("the encoder's columns have no scale")
        names = {*self.numbers, *(category.name for category in self.categories)}
        if not names <= self.kinds.keys() or not set(self.kinds.values()) <= KINDS:
            raise ValueError("the encoder's kinds do not fit its columns")
        if [column.name for column in self.account] != self.inputs or not self.rows > 0:
            raise ValueError("the encoder's account does not fit its columns")
        widths = dict(zip(self.numbers, self.widths, strict=True))
        if any(widths[name] != len(dates.PARTS) for name in self.dates):
            raise ValueError("the encoder's dates do not fit its columns")


def _text_column(values: dict[str, Any]) -> Category | Amounts:
    """What was stored of a column of names, or texts."""
    if values["how"] == "numbers":
        return Amounts(**{**values, "forms": Forms(**values["forms"])})
    return NumberNames(**values) if values["how"] == "number" else Category(**values)


def matrix(name: str, d: int, kind: str, bounds: np.ndarray | None = None) -> Encoder:
    """The encoder of a matrix that is used as it is, within these bounds."""
    parts = np.zeros(d), np.ones(d), np.empty(0, np.int64)
    return Encoder([name], [d], *parts, [], kind, {name: "number"}, bounds=bounds)


def in_parts(block: dict[str, np.ndarray], numbers: list[str], dated: set[str]) -> np.ndarray:
    """(rows, columns) of the fields that become numbers; dates become their parts."""
    parts = [
        np.concatenate(dates.parts(block[name]), axis=1) if name in dated else block[name]
        for name in numbers
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def numbered(names: list[str], widths: list[int], dated: set[str] | None = None) -> list[str]:
    """A name for each column of these fields: of a part of a date, or of a matrix's column."""
    out: list[str] = []
    for name, width in zip(names, widths, strict=True):
        if name in (dated or ()):
            out += [f"{name}: {part}" for part in dates.PARTS]
        else:
            out += [name] if width == 1 else [f"{name}[{i}]" for i in range(width)]
    return out


def date_columns(
    numbers: list[str], widths: list[int], dated: set[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which columns are parts of a date on a circle, which are other parts, and which stand first
    in their field or in a matrix."""
    circle, scaled, first = [[np.zeros(0, bool)] for _ in range(3)]
    for name, width in zip(numbers, widths, strict=True):
        is_date = name in dated
        circle.append(~dates.SCALED if is_date else np.zeros(width, bool))
        scaled.append(dates.SCALED if is_date else np.zeros(width, bool))
        first.append(np.arange(width) == 0 if is_date else np.ones(width, bool))
    return np.concatenate(circle), np.concatenate(scaled), np.concatenate(first)
