"""Columns become features: which ones, and how categories, missing values and scales are dealt with.

`Columns` is what a user may say of it; `Encoder` is what was learned from the training rows, and belongs to the model: prediction takes
the raw table. It is plain data, so that it can be stored without running code on loading.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from ..errors import DataFileError, InputError, one_of, warn
from ..settings import Settings
from .tables import Table

FOLDS = 5  # a training row's category is encoded by the targets of the other folds: never by its own
PRIOR = 10.0  # rows that a category's mean target is drawn towards the common mean by
MOST_VALUES = 100_000  # distinct values of a column that are counted; with more it is hashed
MOST_OUTPUTS = 16  # columns of targets that a category may be encoded by; with more it is hashed


@dataclass(eq=False)
class Columns(Settings):
    """features: columns to use, None for all but the target; categorical: columns of numbers that are names (codes, zip codes); missing:
    "impute" (the mean, and a column that says so) or "refuse"; one_hot: the most distinct values that get a column each; beyond: "target"
    (the mean target of the category, never the row's own) or "hash", for columns with more; hash_size: columns of a hash; standardise:
    None for named columns but not for a matrix."""

    features: list[str] | None = None
    categorical: list[str] | None = None
    missing: str = "impute"
    one_hot: int = 32
    beyond: str = "target"
    hash_size: int = 16
    standardise: bool | None = None

    def check(self) -> None:
        for name, value, allowed in (("missing", self.missing, ["impute", "refuse"]), ("beyond", self.beyond, ["target", "hash"])):
            if value not in allowed:
                raise one_of(f"columns: {name}", value, allowed)
        for name in ("one_hot", "hash_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"columns: {name}={value!r} was given, expected a whole number of 1 or more.")
        for name in ("features", "categorical"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value)):
                raise InputError(f"columns: {name}={value!r} was given, expected a list of column names.")


@dataclass
class Category:
    """How one column of names becomes numbers."""

    name: str
    how: str  # "one_hot", "target" or "hash"
    width: int
    values: list[str | None] = field(default_factory=list)  # in the order of their codes; None is a missing value
    table: np.ndarray | None = None  # (values + 1, width) what each code becomes, the last for values never seen
    folds: np.ndarray | None = None  # (FOLDS, values + 1, width) the same without the targets of a fold; not stored

    def codes(self, texts: np.ndarray) -> np.ndarray:
        known = {value: code for code, value in enumerate(self.values)}
        return np.array([known.get(text, len(known)) for text in texts.tolist()], dtype=np.int64)

    def encode(self, texts: np.ndarray, fold: np.ndarray | None) -> np.ndarray:
        if self.how == "hash":
            return hashed(texts, self.width)
        assert self.table is not None
        codes = self.codes(texts)
        out = self.table[codes]
        if fold is not None and self.folds is not None:
            inside = fold >= 0
            out[inside] = self.folds[fold[inside], codes[inside]]
        return out


@dataclass
class Encoder:
    """What turns rows of a table into d features."""

    numbers: list[str]  # fields of numbers, in order
    widths: list[int]
    shift: np.ndarray  # (their columns,) what is taken off, and what a missing value becomes
    scale: np.ndarray  # what is divided by
    flagged: np.ndarray  # places of the columns that had missing values: each gets a column that says where
    categories: list[Category]
    kind: str  # of the features: "float32", or the matrix's own
    missing: str = "impute"
    order: list[str] = field(default_factory=list)  # the fields as they stood in the table

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.kind)

    @property
    def plain(self) -> bool:
        """A matrix that is used as it is."""
        return not self.categories and not len(self.flagged) and bool((self.scale == 1).all() and (self.shift == 0).all())

    @property
    def inputs(self) -> list[str]:
        """Names of the fields it reads."""
        return self.order or [*self.numbers, *(category.name for category in self.categories)]

    @property
    def d(self) -> int:
        return len(self.shift) + len(self.flagged) + sum(category.width for category in self.categories)

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        columns = numbered(self.numbers, self.widths)
        made = [f"{category.name}: {value}" for category in self.categories for value in _labels(category)]
        return [*columns, *(f"{columns[i]} is missing" for i in self.flagged), *made]

    def encode(self, table: Table, start: int, stop: int, training: bool = False, held_out: np.ndarray | None = None) -> np.ndarray:
        """(rows, d). In training, categories are encoded without the targets of the row's own fold; rows of `held_out` as new ones."""
        fields_ = table.read(self.inputs, start, stop)
        if self.plain and len(self.numbers) == 1:
            values = fields_[self.numbers[0]].astype(self.dtype, copy=False)
            if not _clean(values):
                _finite(values, numbered(self.numbers, self.widths), table.where)
            return np.ascontiguousarray(values)
        out = np.empty((stop - start, self.d), self.dtype)
        k = len(self.shift)
        if self.numbers:
            values = joined([fields_[name] for name in self.numbers])
            columns = numbered(self.numbers, self.widths)
            lost = None if _clean(values) else np.isnan(values)
            if lost is not None:
                if self.missing == "refuse" and lost.any():
                    _refuse(lost.sum(0), columns, table.where)
                _finite(np.where(lost, 0, values), columns, table.where)
            centered = values - self.shift
            np.divide(centered, self.scale, out=centered)
            out[:, :k] = centered if lost is None else np.where(lost, 0, centered)
            out[:, k : k + len(self.flagged)] = 0 if lost is None else lost[:, self.flagged]
            k += len(self.flagged)
        fold = None
        if training:
            fold = fold_of(np.arange(start, stop))
            fold = fold if held_out is None else np.where(held_out, -1, fold)
        for category in self.categories:
            out[:, k : k + category.width] = category.encode(_texts(fields_[category.name]), fold)
            k += category.width
        return out

    def to_dict(self) -> dict[str, Any]:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "categories"}
        return {**kept, "categories": [{**asdict(category), "folds": None} for category in self.categories]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Encoder:
        values = {**values, "categories": [Category(**category) for category in values["categories"]]}
        found = cls(**values)
        arrays = (found.shift, found.scale, found.flagged)
        if not all(isinstance(a, np.ndarray) and a.ndim == 1 for a in arrays) or len(found.shift) != len(found.scale):
            raise ValueError("the encoder's arrays do not fit each other")
        if (
            sum(found.widths) != len(found.shift)
            or len(found.numbers) != len(found.widths)
            or found.kind not in ("float16", "float32", "float64")
        ):
            raise ValueError("the encoder's columns do not fit each other")
        if len(found.flagged) and (found.flagged.min() < 0 or found.flagged.max() >= len(found.shift)):
            raise ValueError("the encoder's columns do not fit each other")
        for c in found.categories:
            if c.how not in ("one_hot", "target", "hash") or (
                c.how != "hash" and (c.table is None or c.table.shape != (len(c.values) + 1, c.width))
            ):
                raise ValueError("the encoder's categories do not fit each other")
        return found


def matrix(name: str, d: int, kind: str) -> Encoder:
    """The encoder of a matrix that is used as it is."""
    return Encoder([name], [d], np.zeros(d), np.ones(d), np.empty(0, np.int64), [], kind)


def learn(columns: Columns, table: Table, skip: list[str], Y: np.ndarray, train: np.ndarray, said: bool = True) -> Encoder:
    """Fit an encoder on the training rows of a table, by streaming over it.

    skip: fields that are no features (target, weights); Y: (n,) class codes or (n, c) targets; train: (n,) bool; said: `columns` are the
    user's own. Where they are not, missing values of a matrix are refused, as an array's are.
    """
    columns.check()
    if columns.features is None and table.unused:
        warn(f"{table.where}: {', '.join(map(repr, table.unused[:5]))} cannot be features (nested, or of another kind) and are not used.")
    names = [name for name in table.fields if name not in skip] if columns.features is None else list(columns.features)
    for name in [*names, *(columns.categorical or [])]:
        table.field(name)
    clash = [name for name in names if name in skip]
    if clash:
        raise InputError(f"columns: features name {clash[0]!r}, which is the target or the weight; leave it out.")
    if not names:
        raise InputError(f"{table.where} has no columns left to be features.")
    named = set(columns.categorical or [])
    for name in named:
        if table.field(name).width > 1:
            raise InputError(f"columns: categorical names {name!r}, which is a matrix, expected a column.")
    texts = [name for name in names if table.fields[name].kind == "text" or name in named]
    numbers = [name for name in names if name not in texts]
    widths = [table.fields[name].width for name in numbers]
    moments, counts, kind = _Moments(sum(widths)), {name: _Counts() for name in texts}, None
    lone = len(numbers) == 1 and not texts and widths[0] > 1
    standardise = not lone if columns.standardise is None else columns.standardise
    for a, b in itertools.pairwise(table.cuts):
        block, inside = table.read(names, a, b), train[a:b]
        if numbers:
            values = joined([block[name] for name in numbers])
            kind = kind or values.dtype
            if not _clean(values):
                _finite(np.where(np.isnan(values), 0, values), numbered(numbers, widths), table.where)
            moments.add(values if inside.all() else values[inside])
        for name, found in counts.items():
            found.add(_texts(block[name])[inside])
    lost = moments.rows - moments.count
    if (columns.missing == "refuse" or (lone and not said)) and lost.any():
        _refuse(lost, numbered(numbers, widths), table.where)
    empty = moments.count == 0
    mean, spread = np.where(empty, 0, moments.mean), np.where(empty, 0, moments.deviation)
    usual = np.where(spread > 1e-12 * np.maximum(np.abs(mean), 1e-300), spread, 1.0)
    flagged = np.flatnonzero((lost > 0) & ~empty)
    plain = lone and not standardise and not lost.any()
    encoder = Encoder(
        numbers,
        widths,
        np.zeros_like(mean) if plain else mean,
        usual if standardise else np.ones_like(mean),
        flagged,
        [],
        str(kind) if plain and kind is not None else "float32",
        columns.missing,
        names,
    )
    encoder.categories = [_category(columns, name, counts[name], Y) for name in texts]
    _by_target([category for category in encoder.categories if category.how == "target"], table, Y, train)
    if not encoder.d:
        raise InputError(f"{table.where} has no feature that differs between rows.")
    return encoder


class _Moments:
    """Mean and deviation of each column, block by block (Chan's update), without its missing values."""

    def __init__(self, d: int):
        self.rows, self.count, self.mean, self._squares = 0, np.zeros(d), np.zeros(d), np.zeros(d)

    def add(self, values: np.ndarray) -> None:
        mean = values.mean(0, dtype=np.float64) if len(values) else self.mean
        if np.isfinite(mean).all():
            count = np.full(len(mean), float(len(values)))
            squares = np.einsum("ij,ij->j", centered := values - mean, centered)
        else:
            lost = np.isnan(values)
            count = len(values) - lost.sum(0)
            mean = np.where(lost, 0, values).sum(0, dtype=np.float64) / np.maximum(count, 1)
            squares = (np.where(lost, 0, values - mean) ** 2).sum(0)
        total = np.maximum(self.count + count, 1)
        shift = mean - self.mean
        self._squares += squares + shift**2 * self.count * count / total
        self.mean += shift * count / total
        self.count, self.rows = self.count + count, self.rows + len(values)

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self._squares / np.maximum(self.count, 1))


class _Counts:
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


def _category(columns: Columns, name: str, counts: _Counts, Y: np.ndarray) -> Category:
    if counts.values is None:
        return Category(name, "hash", columns.hash_size)
    values = sorted(counts.values, key=lambda value: (value is None, value or ""))
    if len(values) <= columns.one_hot:
        table = np.concatenate([np.eye(len(values), dtype=np.float32), np.zeros((1, len(values)), np.float32)])
        return Category(name, "one_hot", len(values), values, table)
    outputs = int(Y.max()) + 1 if Y.ndim == 1 else Y.shape[1]
    if columns.beyond == "hash" or outputs > MOST_OUTPUTS:
        return Category(name, "hash", columns.hash_size)
    return Category(name, "target", 1 if Y.ndim == 1 and outputs == 2 else outputs, values)


def _by_target(categories: list[Category], table: Table, Y: np.ndarray, train: np.ndarray) -> None:
    """Mean targets of each category, drawn towards the common mean where it has few rows; and the same without each fold."""
    if not categories:
        return
    width = categories[0].width
    sums = {c.name: np.zeros((FOLDS, len(c.values) + 1, width)) for c in categories}
    counts = {c.name: np.zeros((FOLDS, len(c.values) + 1, 1)) for c in categories}
    spread = 1.0 if Y.ndim == 1 else np.maximum(Y[train].std(0), 1e-300)
    middle = 0.0 if Y.ndim == 1 else Y[train].mean(0)
    for a, b in itertools.pairwise(table.cuts):
        inside = np.flatnonzero(train[a:b])
        y = Y[a:b][inside]
        y = (y[:, None] == np.arange(width)).astype(float) if Y.ndim == 1 else (y - middle) / spread
        fold = fold_of(a + inside)
        block = table.read([c.name for c in categories], a, b)
        for c in categories:
            codes = c.codes(_texts(block[c.name])[inside])
            np.add.at(sums[c.name], (fold, codes), y)
            np.add.at(counts[c.name], (fold, codes), 1.0)
    for c in categories:
        total, rows = sums[c.name].sum(0), counts[c.name].sum(0)
        mean = total.sum(0) / max(1.0, rows.sum())
        c.table = ((total + PRIOR * mean) / (rows + PRIOR)).astype(np.float32)
        c.folds = ((total - sums[c.name] + PRIOR * mean) / (rows - counts[c.name] + PRIOR)).astype(np.float32)


def fold_of(rows: np.ndarray) -> np.ndarray:
    """A fold for each row number, scattered: rows often come in an order with a period."""
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(FOLDS)).astype(np.int64)


def hashed(texts: np.ndarray, width: int) -> np.ndarray:
    """Each value's place and sign by its checksum: the same everywhere, for values never seen too."""
    raw = [("\0" if text is None else text).encode("utf-8", "surrogatepass") for text in texts.tolist()]
    sums = np.array([zlib.crc32(text) for text in raw], dtype=np.int64)
    out = np.zeros((len(texts), width), np.float32)
    out[np.arange(len(texts)), sums % width] = np.where((sums // width) % 2, 1.0, -1.0)
    return out


def joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def numbered(names: list[str], widths: list[int]) -> list[str]:
    return [name if width == 1 else f"{name}[{i}]" for name, width in zip(names, widths, strict=True) for i in range(width)]


def _labels(category: Category) -> list[str]:
    if category.how == "one_hot":
        return ["missing" if value is None else value for value in category.values]
    return [f"{category.how} {i}" for i in range(category.width)]


def _texts(values: np.ndarray) -> np.ndarray:
    """Names: texts as they are, numbers as they would be written."""
    if values.ndim == 1:
        return values
    column = [
        None if math.isnan(v) else str(int(v)) if math.isfinite(v) and v == int(v) else repr(v)
        for v in values[:, 0].astype(np.float64).tolist()
    ]
    return np.array(column, dtype=object)


def _largest(values: np.ndarray) -> float:
    return 1e-3 * float(np.finfo(max(values.dtype, np.dtype(np.float32))).max) ** 0.5


def _clean(values: np.ndarray) -> bool:
    """Whether every value is there, finite and of a usable size: two passes, and no copy. Where not, `_finite` says what is wrong."""
    return not values.size or bool(values.max() <= _largest(values) and values.min() >= -_largest(values))


def _finite(values: np.ndarray, names: list[str], where: str) -> None:
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values).all(0))
        what = "infinite values" if not np.isnan(values).any() else "missing or infinite values"
        raise DataFileError(f"{where} has {what} in {_listed(names, bad)}; mend or drop them.")
    limit = _largest(values)
    if values.size and np.abs(values).max() > limit:
        bad = np.flatnonzero(np.abs(values).max(0) > limit)
        raise DataFileError(f"{where} has values above {limit:.0e} in {_listed(names, bad)}, whose squares overflow; rescale them first.")


def _refuse(lost: np.ndarray, names: list[str], where: str) -> None:
    bad = np.flatnonzero(lost)
    raise DataFileError(
        f"{where} has {int(lost.sum())} missing values, in {_listed(names, bad)}; mend them, or say columns=Columns(missing='impute')."
    )


def _listed(names: list[str], places: np.ndarray) -> str:
    return ", ".join(repr(names[i]) for i in places[:5]) + (", …" if len(places) > 5 else "")
