"""Columns become features: which ones, and how categories, missing values and scales are dealt with.

`Columns` is what a user may say of it; `Encoder` is what was learned from the training rows, and belongs to the model: prediction takes
the raw table. It is plain data, so that it can be stored without running code on loading.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import DataFileError, InputError, one_of, warn
from ..settings import Settings
from . import dates
from .kinds import MISSING, Names, canonical
from .tables import Table

FOLDS = 5  # a training row's category is encoded by the targets of the other folds: never by its own
PRIOR = 10.0  # rows that a category's mean target is drawn towards the common mean by
MOST_VALUES = 100_000  # distinct values of a column that are counted; with more it is hashed
MOST_OUTPUTS = 16  # columns of targets that a category may be encoded by; with more it is hashed
DIFFERENT = 3  # different rows per value of a category, from which the fold of a row follows from the row itself
MANY_NEW = 50  # values of a column that were never seen in training, and are warned about where they are most of it
CHUNK = 8_192  # rows whose moments are computed at once, however the table is cut: every kind of file gives the same ones to the bit


@dataclass(eq=False)
class Columns(Settings):
    """features: columns to use, None for all but the target; categorical: columns of numbers that are names (codes, zip codes), which a CSV
    file has as they are written there; missing: "impute" (the mean, and a column that says so) or "refuse"; one_hot: the most distinct
    values that get a column each; beyond: "target" (the mean target of the category, never the row's own) or "hash", for columns with more;
    hash_size: columns of a hash; standardise: None for named columns but not for a matrix."""

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

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns of which something was said."""
        return dict.fromkeys(self.categorical or [], "text")

    def named(self, table: Table) -> Table:
        """The table with numbers that are names as texts."""
        return table.of_kinds(self.kinds)


@dataclass
class Category:
    """How one column of names becomes numbers."""

    name: str
    how: str  # "one_hot", "target" or "hash"
    width: int
    values: list[str | None] = field(default_factory=list)  # in the order of their codes; None is a missing value
    table: np.ndarray | None = None  # (values + 1, width) what each code becomes, the last for values never seen
    folds: np.ndarray | None = None  # (FOLDS, values + 1, width) the same without the targets of a fold; not stored

    @cached_property
    def names(self) -> Names:
        return Names(self.values)

    def encode(self, texts: np.ndarray, fold: np.ndarray | None) -> np.ndarray:
        if self.how == "hash":
            return hashed(texts, self.width)
        assert self.table is not None
        codes = self.names.codes(texts)
        self._warn_of_new(texts, codes)
        out = self.table[codes]
        if fold is not None and self.folds is not None:
            inside = fold >= 0
            out[inside] = self.folds[fold[inside], codes[inside]]
        return out


    def _warn_of_new(self, texts: np.ndarray, codes: np.ndarray) -> None:
        new = (codes == len(self.values)) & (texts != None)  # noqa: E711 (of every element)
        if self.width and new.sum() > max(MANY_NEW, len(codes) / 2):
            example = texts[new][0]
            warn(f"most values of {self.name!r}, such as {example!r}, were not in the training data; check that they are written alike.")


@dataclass
class Encoder:
    """What turns rows of a table into d features."""

    numbers: list[str]  # fields that become numbers, in order: numbers, booleans and dates, of which each has several parts
    widths: list[int]
    shift: np.ndarray  # (their columns,) what is taken off, and what a missing value becomes
    scale: np.ndarray  # what is divided by
    flagged: np.ndarray  # places of the columns that had missing values: each gets a column that says where
    categories: list[Category]
    kind: str  # of the features: "float32", or the matrix's own
    missing: str = "impute"
    order: list[str] = field(default_factory=list)  # the fields as they stood in the table
    kinds: list[str] = field(default_factory=list)  # of the fields in their order; models from before they were stored have none
    by_content: bool = False  # whether the fold of a training row follows from the row, or from its number; not stored
    constant: list[int] = field(default_factory=list)  # places of the features that are 0 in every training row; not stored

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
    def dates(self) -> set[str]:
        return {name for name, kind in zip(self.order, self.kinds, strict=False) if kind == "date"} & set(self.numbers)

    @property
    def d(self) -> int:
        return len(self.shift) + len(self.flagged) + sum(category.width for category in self.categories)

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        columns = numbered(self.numbers, self.widths, self.dates)
        made = [f"{category.name}: {value}" for category in self.categories for value in _labels(category)]
        return [*columns, *(f"{columns[i].removesuffix(': days')} is missing" for i in self.flagged), *made]

    def over(self, table: Table) -> Table:
        """A table with fields of the kinds that were learned, whatever it holds itself."""
        if self.kinds:
            return table.of_kinds(dict(zip(self.order, self.kinds, strict=True)))
        numbers = {name: "number" for name in self.numbers if table.field(name).kind != "date"}  # see `_as_before`
        return table.of_kinds({**numbers, **{category.name: "text" for category in self.categories}})

    def encode(self, table: Table, start: int, stop: int, training: bool = False, held_out: np.ndarray | None = None) -> np.ndarray:
        """(rows, d). In training, categories are encoded without the targets of the row's own fold; rows of `held_out` as new ones."""
        table = self.over(table)
        fields_ = table.read(self.inputs, start, stop)
        if self.plain and len(self.numbers) == 1:
            values = fields_[self.numbers[0]].astype(self.dtype, copy=False)
            if not _clean(values):
                _finite(values, numbered(self.numbers, self.widths), table.where)
            return np.ascontiguousarray(values)
        out = np.empty((stop - start, self.d), self.dtype)
        k = len(self.shift)
        if self.numbers:
            if not self.kinds:
                self._as_before(table, fields_)
            values = in_parts(fields_, self.numbers, self.dates)
            columns = numbered(self.numbers, self.widths, self.dates)
            lost = None if _clean(values) else np.isnan(values)
            if lost is not None:
                if self.missing == "refuse" and lost.any():
                    _refuse(lost.sum(0) * _date_columns(self.numbers, self.widths, self.dates)[2], columns, table.where)
                _finite(np.where(lost, 0, values), columns, table.where)
            centered = values - self.shift
            np.divide(centered, self.scale, out=centered)
            out[:, :k] = centered if lost is None else np.where(lost, 0, centered)
            out[:, k : k + len(self.flagged)] = 0 if lost is None else lost[:, self.flagged]
            k += len(self.flagged)
        fold = None
        if training and any(category.folds is not None for category in self.categories):
            fold = fold_of(checksums(fields_, self.inputs) if self.by_content else np.arange(start, stop))
            fold = fold if held_out is None else np.where(held_out, -1, fold)
        for category in self.categories:
            texts = fields_[category.name]
            if not self.kinds:
                texts = _texts_before(texts, category)
            elif category.how == "hash":
                texts = _said(texts)
            out[:, k : k + category.width] = category.encode(texts, fold)
            k += category.width
        return out

    def _as_before(self, table: Table, fields_: dict[str, np.ndarray]) -> None:
        """Models from before kinds were stored took a date for a number in the file's own unit. The mean says which that was."""
        starts = [0, *itertools.accumulate(self.widths)]
        for name, start in zip(self.numbers, starts, strict=False):
            if table.fields[name].kind == "date":
                units = np.array([1 / dates.DAY, 1, 1e3, 1e6, 1e9])
                near = np.abs(np.log(np.maximum(np.abs(self.shift[start]), 1e-9) / (units * 1.5e9))).argmin()
                fields_[name] = fields_[name] * units[near]

    def to_dict(self) -> dict[str, Any]:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("categories", "by_content", "constant")}
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
        if not np.isfinite(found.shift).all() or not (np.isfinite(found.scale) & (found.scale > 0)).all():
            raise ValueError("the encoder's columns have no scale")
        if len(found.kinds) not in (0, len(found.order)) or not set(found.kinds) <= {"number", "boolean", "date", "text", "empty"}:
            raise ValueError("the encoder's kinds do not fit its columns")
        if any(found.widths[found.numbers.index(name)] != len(dates.PARTS) for name in found.dates):
            raise ValueError("the encoder's dates do not fit its columns")
        for c in found.categories:
            if c.how not in ("one_hot", "target", "hash") or (
                c.how != "hash"
                and (c.table is None or c.table.shape != (len(c.values) + 1, c.width) or not np.isfinite(c.table).all())
            ):
                raise ValueError("the encoder's categories do not fit each other")
        return found


def matrix(name: str, d: int, kind: str) -> Encoder:
    """The encoder of a matrix that is used as it is."""
    return Encoder([name], [d], np.zeros(d), np.ones(d), np.empty(0, np.int64), [], kind)


def learn(
    columns: Columns,
    table: Table,
    skip: list[str],
    Y: np.ndarray,
    train: np.ndarray,
    said: bool = True,
    w: np.ndarray | None = None,
) -> Encoder:
    """Fit an encoder on the training rows of a table, by streaming over it.

    skip: fields that are no features (target, weights); Y: (n,) class codes or (n, c) targets; train: (n,) bool; said: `columns` are the
    user's own. Where they are not, missing values of a matrix are refused, as an array's are. w: (n,) weights of the rows, where they
    differ: one of k counts as k rows.
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
    for name in columns.categorical or []:
        if table.field(name).width > 1:
            raise InputError(f"columns: categorical names {name!r}, which is a matrix, expected a column.")
    table = columns.named(table)
    kinds = {name: table.fields[name].kind for name in names}
    texts = [name for name in names if kinds[name] == "text"]
    numbers = [name for name in names if name not in texts]
    dated = {name for name in numbers if kinds[name] == "date"}
    widths = [len(dates.PARTS) if name in dated else table.fields[name].width for name in numbers]
    labels = numbered(numbers, widths, dated)
    moments, counts, kind = _Moments(sum(widths)), {name: _Counts() for name in texts}, None
    lone = len(numbers) == 1 and not texts and not dated and widths[0] > 1
    standardise = not lone if columns.standardise is None else columns.standardise
    for a, b in itertools.pairwise(table.cuts):
        block, inside = table.read(names, a, b), train[a:b]
        if numbers:
            values = in_parts(block, numbers, dated)
            kind = kind or values.dtype
            if not _clean(values):
                _finite(np.where(np.isnan(values), 0, values), labels, table.where)
            moments.add(values if inside.all() else values[inside], None if w is None else w[a:b][inside])
        for name, found in counts.items():
            found.add(block[name][inside])
    moments.add_rest()
    circle, scaled, first = _date_columns(numbers, widths, dated)
    lost = moments.lost * first
    if (columns.missing == "refuse" or (lone and not said)) and lost.any():
        _refuse(lost, labels, table.where)
    empty = moments.lost == moments.rows
    mean, spread = np.where(empty, 0, moments.mean), np.where(empty, 0, moments.deviation)
    varies = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    plain = lone and not standardise and not lost.any()
    encoder = Encoder(
        numbers,
        widths,
        np.zeros_like(mean) if plain else np.where(circle & varies, 0, mean),
        np.ones_like(mean) if plain else np.where(varies & (scaled | (standardise & ~circle)), spread, 1.0),
        np.flatnonzero((lost > 0) & ~empty),
        [],
        str(kind) if plain and kind is not None else "float32",
        columns.missing,
        names,
        list(kinds.values()),
    )
    encoder.constant = [] if plain else np.flatnonzero(~varies).tolist()
    encoder.categories = [_category(columns, name, counts[name], Y) for name in texts]
    encoder.by_content = _by_target([category for category in encoder.categories if category.how == "target"], table, names, Y, train, w)
    if not encoder.d:
        raise InputError(f"{table.where} has no feature that differs between rows.")
    return encoder


def _date_columns(numbers: list[str], widths: list[int], dated: set[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which columns are parts of a date on a circle, which are other parts, and which stand first in their field or in a matrix."""
    wholes = [np.zeros(width, bool) for width in widths]
    circle = [~dates.SCALED if name in dated else none for name, none in zip(numbers, wholes, strict=True)]
    scaled = [dates.SCALED if name in dated else none for name, none in zip(numbers, wholes, strict=True)]
    first = [np.arange(len(dates.PARTS)) == 0 if name in dated else ~none for name, none in zip(numbers, wholes, strict=True)]
    return tuple(np.concatenate([*parts, np.zeros(0, bool)]) for parts in (circle, scaled, first))  # type: ignore[return-value]


class _Moments:
    """Mean and deviation of each column, chunk by chunk (Chan's update), without its missing values; weights count rows."""

    def __init__(self, d: int):
        self.rows, self.lost = 0, np.zeros(d, np.int64)
        self.mean, self._count, self._squares = np.zeros(d), np.zeros(d), np.zeros(d)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, values: np.ndarray, w: np.ndarray | None) -> None:
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
            mean = (np.where(lost, 0, values) * w[:, None]).sum(0, dtype=np.float64) / np.where(count > 0, count, 1)
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
    if len(values) == 1:  # as little as a constant number: what was never seen there must not count either
        return Category(name, "one_hot", 0, values, np.zeros((2, 0), np.float32))
    if len(values) <= columns.one_hot:
        table = np.concatenate([np.eye(len(values), dtype=np.float32), np.zeros((1, len(values)), np.float32)])
        return Category(name, "one_hot", len(values), values, table)
    outputs = int(Y.max()) + 1 if Y.ndim == 1 else Y.shape[1]
    if columns.beyond == "hash" or outputs > MOST_OUTPUTS:
        return Category(name, "hash", columns.hash_size)
    return Category(name, "target", 1 if Y.ndim == 1 and outputs == 2 else outputs, values)


def _by_target(
    categories: list[Category], table: Table, names: list[str], Y: np.ndarray, train: np.ndarray, w: np.ndarray | None
) -> bool:
    """Mean targets of each category, drawn towards the common mean where it has few rows; and the same without each fold.

    Returns whether a row's fold follows from what stands in the row: copies are then in one fold, and a weight of k is k copies. Where few
    different rows share a value that would leave a category without rows, and the fold follows from the row's number.
    """
    if not categories:
        return False
    width, rows = categories[0].width, np.flatnonzero(train)
    codes = {c.name: np.empty(len(train), np.int32) for c in categories}
    content = np.empty(len(train), np.uint64)
    for a, b in itertools.pairwise(table.cuts):
        block = table.read(names, a, b)
        content[a:b] = checksums(block, names)
        for c in categories:
            codes[c.name][a:b] = c.names.codes(block[c.name])
    by_content = len(np.unique(content[rows])) >= DIFFERENT * max(len(c.values) for c in categories)
    sums = {c.name: np.zeros((FOLDS, len(c.values) + 1, width)) for c in categories}
    counts = {c.name: np.zeros((FOLDS, len(c.values) + 1, 1)) for c in categories}
    weight = np.ones(len(train)) if w is None else w
    middle, spread = (0.0, 1.0) if Y.ndim == 1 else _weighted(Y[rows], weight[rows])
    for part in np.array_split(rows, max(1, len(rows) >> 16)):
        y = (Y[part][:, None] == np.arange(width)).astype(float) if Y.ndim == 1 else (Y[part] - middle) / spread
        fold = fold_of(content[part] if by_content else part)
        for c in categories:
            np.add.at(sums[c.name], (fold, codes[c.name][part]), y * weight[part][:, None])
            np.add.at(counts[c.name], (fold, codes[c.name][part]), weight[part][:, None])
    for c in categories:
        total, many = sums[c.name].sum(0), counts[c.name].sum(0)
        mean = total.sum(0) / max(1e-300, many.sum())
        c.table = ((total + PRIOR * mean) / (many + PRIOR)).astype(np.float32)
        c.folds = ((total - sums[c.name] + PRIOR * mean) / (many - counts[c.name] + PRIOR)).astype(np.float32)
    return by_content


def _weighted(Y: np.ndarray, w: np.ndarray) -> tuple[Any, Any]:
    """Mean and deviation of targets."""
    mean = np.average(Y, 0, w)
    return mean, np.maximum(np.sqrt(np.average((Y - mean) ** 2, 0, w)), 1e-300)


def fold_of(rows: np.ndarray) -> np.ndarray:
    """A fold for each row number, or checksum, scattered: rows often come in an order with a period."""
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(FOLDS)).astype(np.int64)


def checksums(block: dict[str, np.ndarray], names: list[str]) -> np.ndarray:
    """(rows,) of what stands in each row: the same for the same row in any file."""
    out = np.zeros(len(block[names[0]]), np.uint64)
    for name in names:
        values = block[name]
        if values.ndim == 1:
            parts = np.array([[zlib.crc32(_bytes(text)) for text in values.tolist()]], np.uint64)
        else:
            parts = np.where(np.isnan(values), 0.1, values + 0.0).astype(np.float64).T.copy().view(np.uint64)
        for part in parts:
            out = (out ^ part) * np.uint64(0xFF51AFD7ED558CCD)
            out ^= out >> np.uint64(33)
    return out


def hashed(texts: np.ndarray, width: int) -> np.ndarray:
    """Each value's place and sign by its checksum: the same everywhere, for values never seen too."""
    sums = np.array([zlib.crc32(_bytes(text)) for text in texts.tolist()], dtype=np.int64)
    out = np.zeros((len(texts), width), np.float32)
    out[np.arange(len(texts)), sums % width] = np.where((sums // width) % 2, 1.0, -1.0)
    return out


def _bytes(text: str | None) -> bytes:
    return ("\0" if text is None else text).encode("utf-8", "surrogatepass")


def in_parts(block: dict[str, np.ndarray], numbers: list[str], dated: set[str]) -> np.ndarray:
    """(rows, columns) of the fields that become numbers; dates become their parts."""
    parts = [np.concatenate(dates.parts(block[name]), axis=1) if name in dated else block[name] for name in numbers]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def numbered(names: list[str], widths: list[int], dated: set[str] | None = None) -> list[str]:
    out: list[str] = []
    for name, width in zip(names, widths, strict=True):
        if name in (dated or ()):
            out += [f"{name}: {part}" for part in dates.PARTS]
        else:
            out += [name] if width == 1 else [f"{name}[{i}]" for i in range(width)]
    return out


def _labels(category: Category) -> list[str]:
    if category.how == "one_hot" and category.width:
        return ["missing" if value is None else value for value in category.values]
    return [f"{category.how} {i}" for i in range(category.width)]


def _said(texts: np.ndarray) -> np.ndarray:
    """What texts say: a hash has no names to compare them with, and 1.0 in one file is 1 in another."""
    known = {text: None if text is None else canonical(text) for text in set(texts.tolist())}
    return np.array([known[text] for text in texts.tolist()], dtype=object)


def _texts_before(texts: np.ndarray, category: Category) -> np.ndarray:
    """Texts as models from before kinds were stored had them: words for a missing value were missing, and an empty text was a name."""
    known = set(category.values)
    if category.how == "hash":
        return np.array([None if text in MISSING else text for text in texts.tolist()], dtype=object)
    empty = "" if "" in known and None not in known else None
    return np.array([empty if text is None or (text in MISSING and text not in known) else text for text in texts.tolist()], dtype=object)


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
