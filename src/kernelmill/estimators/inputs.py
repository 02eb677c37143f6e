"""What a user may give instead of arrays: paths, tables, frames with columns of texts; targets and
weights by name.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.utils import check_consistent_length

from ..data import Encoder, Table, is_table, matrix, opened, shuffled
from ..data.categories import checksums
from ..data.dates import seconds
from ..data.kinds import is_lost, settle
from ..data.stream import merge_cuts
from ..data.tables import ArrayTable
from ..data.writing import Reading, Writing, as_written, reading_of
from ..errors import DataFileError, InputError
from ..types import DataLike
from .validation import check_weights, not_numbers

log = logging.getLogger("kernelmill")

TOLD_BY = 1_000  # targets by which it is told whether they are texts
PREDICT_ROWS = 16_384  # encoded at a time where a table is predicted


Ways = Sequence[Writing | None]  # of targets, column by column; None: of numbers as they are


@dataclass
class Given:
    """A table as it was given, and the names of those fields that are no features."""

    table: Table
    skip: list[str]
    ways: Ways = ()  # how its targets are written

    def __len__(self) -> int:
        return self.table.n


@dataclass(frozen=True)
class How:
    """How a table is read: kinds of columns, as wanted; how fields are written; and whether targets
    are numbers, or else labels as they are written. Of a fitted model: marks of targets in an
    array, how those of the training were written, and what percent signs divide by.
    """

    kinds: Mapping[str, str]
    reading: Reading
    numbers: bool
    marks: Reading | None = None
    ways: Ways = ()
    percents: Mapping[str, int] | None = None


def is_frame(X: DataLike) -> bool:
    """Whether X is a data frame."""
    return hasattr(X, "columns") and (hasattr(X, "dtypes") or hasattr(X, "schema"))


def is_table_like(X: DataLike, y: DataLike = None, columns: object = None) -> bool:
    """Whether X is to be read as a table of columns, and not as an array."""
    if is_table(X) or isinstance(X, dict):
        return True
    if not is_frame(X):
        return False
    # A frame whose columns have no names is an array in a frame, as scikit-learn has it.
    named = all(isinstance(name, str) for name in X.columns)
    return named or isinstance(y, str) or columns is not None or bool(not_numbers(X))


def given(
    X: DataLike,
    y: DataLike,
    sample_weight: DataLike,
    in_memory: int,
    how: How,
) -> tuple[Given, DataLike, DataLike]:
    """The table, its targets and its weights: by name, as arrays, or as the path of a .npy file."""
    table = opened(X, in_memory, how.kinds)
    targets = [name for name in _names(y) if how.kinds.get(name) != "text"]
    whole = [*targets, *_names(sample_weight)] if how.numbers else _names(sample_weight)
    left = [] if how.numbers else targets
    columns = ["y"] if y is None else _names(y)
    reading = with_ways(how.reading, columns, how.ways) if how.numbers else how.reading
    table = as_written(table, reading, how.kinds, whole, left, how.percents).of_kinds(how.kinds)
    if table.n == 0:
        raise DataFileError(f"{table.where} has no rows.")
    skip: list[str] = []
    ways: list[Writing | None] = []

    def named(value: DataLike, what: str) -> DataLike:
        several = isinstance(value, (list, tuple)) and 0 < len(value) == len(
            set(map(str, value))
        ) <= len(table.fields)
        if several and all(isinstance(name, str) and name in table.fields for name in value):
            skip.extend(value)
            return np.stack([_column(table, name, what) for name in value], 1)
        if (
            isinstance(value, (str, os.PathLike))
            and str(value) not in table.fields
            and str(value).lower().endswith(".npy")
        ):
            other = opened(Path(value), in_memory)
            return other.column("X")
        if isinstance(value, str):
            skip.append(value)
            return _column(table, value, what)
        if how.numbers and what == "target":
            said, ways[:] = read_targets(value, how.marks or how.reading, how.ways)
            return said
        return as_said(value, how.reading) if how.numbers else value

    if y is None:
        if "y" not in table.fields:
            known = ", ".join(repr(name) for name in list(table.fields)[:12])
            raise InputError(
                f"no target was given for {table.where}; name its column, one of {known}: fit(X,"
                " 'name')."
            )
        y = "y"
    targets, weights = named(y, "target"), named(sample_weight, "weight")
    if how.numbers and all(name in table.fields for name in columns):
        written = reading_of(table, columns).known
        ways = ways or [written.get(name) for name in columns]
    return Given(table, skip, ways), targets, weights


def with_ways(reading: Reading, names: Sequence[str], ways: Ways) -> Reading:
    """One by which targets of these names are read as those of the training were."""
    pairs = zip(names, ways, strict=False) if len(names) == len(ways) else ()
    known = {name: way for name, way in pairs if way is not None}
    return replace(reading, known={**reading.known, **known}) if known else reading


def without_copies(
    table: Table, names: list[str], y: DataLike, sample_weight: DataLike
) -> np.ndarray:
    """Weights of rows, 0 where one is the same as another before it, in the columns of these names
    and the target.
    """
    content = np.concatenate(
        [checksums(table.read(names, a, b), names) for a, b in itertools.pairwise(table.cuts)]
    )
    check_consistent_length(content, y)
    targets = np.asarray(y, dtype=object).reshape(len(content), -1)
    rows = np.stack([content, *(_codes(column) for column in targets.T)], 1)
    w = check_weights(sample_weight, len(rows)).numpy()
    there = np.flatnonzero(w > 0)
    kept = np.zeros(len(rows), bool)
    kept[there[np.unique(rows[there], axis=0, return_index=True)[1]]] = True
    copies = len(there) - int(kept.sum())
    log.info("%s: %d rows are copies of others, and left out", table.where, copies)
    return np.where(kept, w, 0.0)


def _codes(values: np.ndarray) -> np.ndarray:
    """A number for each different value, whatever they are."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values.tolist()], np.uint64)


def _names(value: DataLike) -> list[str]:
    """Columns that are named."""
    if isinstance(value, str):
        return [value]
    listed = isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    return list(value) if listed else []


def _column(table: Table, name: str, what: str) -> np.ndarray:
    values = table.column(name)
    # NaT too.
    lost = (
        np.array([value is None for value in values])
        if values.dtype == object
        else np.isnan(values)
    )
    if lost.any():
        raise DataFileError(
            f"{table.where} has {int(lost.sum())} rows without a {what} in {name!r}; drop those"
            " rows or fill them in."
        )
    if (
        values.dtype.kind == "f"
        and values.ndim == 1
        and len(values)
        and (np.abs(values) < 2**53).all()
        and (values == np.rint(values)).all()
    ):
        return values.astype(np.int64)  # labels as they were written
    return values.astype(str) if values.dtype == object else values


def as_table(
    X: DataLike,
    encoder: Encoder | None,
    d: int,
    name: str | None,
    in_memory: int,
    bounds: np.ndarray | None = None,
) -> tuple[Table, Encoder]:
    """Something to predict as a table, and the encoder for it; an array has the training columns
    in their order. `name` is the matrix that a model without an encoder was trained on, where it
    had one; `bounds` are those of its columns.
    """
    if shuffled(X):
        raise InputError(
            "the torch loader shuffles its rows, or drops some: predictions could not be"
            " matched to rows; set shuffle=False."
        )
    if encoder is None:
        table = opened(X, in_memory)
        fitting = [f.name for f in table.fields.values() if f.kind == "number" and f.width == d]
        if name not in fitting and len(fitting) != 1:
            raise InputError(
                f"{table.where} has {len(fitting)} matrices of {d} features, expected"
                f" {name or 'one'!r}, as in training."
            )
        name = name if name in fitting else fitting[0]
        kind = str(table.read([name], 0, min(1, table.n))[name].dtype)
        return table, matrix(name, d, kind, bounds)
    if isinstance(X, list) or (
        not is_table(X) and not isinstance(X, dict) and not hasattr(X, "columns")
    ):
        X = (
            X.detach().cpu().float().numpy()
            if hasattr(X, "detach")
            else np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)
        )
        table = _positional(X, encoder)
    else:
        table = opened(X, in_memory, encoder.kinds)
    _require(encoder.inputs, table)
    for name, width in [
        *_widths(encoder).items(),
        *((category.name, 1) for category in encoder.categories),
    ]:
        if table.field(name).width != width:
            raise DataFileError(
                f"{table.where} has {table.field(name).width} numbers in {name!r}, {width} when the"
                " model was trained."
            )
    return encoder.over(table), encoder


def _require(names: list[str], table: Table) -> None:
    """Raise where columns that a model was trained on are not there."""
    lacking = [name for name in names if name not in table.fields]
    if lacking:
        more = [name for name in table.fields if name not in names]
        near = [name for name in more if _is_like(name, lacking)]
        other = f", and has {_listed(near)} instead" if near else ""
        raise InputError(
            f"{table.where} lacks the feature names {_listed(lacking)}, which the model was trained"
            f" on{other}; add or rename them."
        )


def _is_like(name: str, others: list[str]) -> bool:
    """Whether a name may stand for one of the others: a target, say, does not."""
    from difflib import get_close_matches

    return bool(get_close_matches(name.lower(), [other.lower() for other in others], n=1))


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")


def _positional(X: np.ndarray, encoder: Encoder) -> Table:
    if X.ndim != 2:
        raise InputError(
            f"an array of shape {X.shape} was given, expected rows of {len(encoder.inputs)}"
            " columns."
        )
    if (
        len(encoder.numbers) == 1
        and not encoder.categories
        and not encoder.dates
        and X.shape[1] == encoder.widths[0]
    ):
        return ArrayTable(
            {encoder.numbers[0]: X.astype(np.float64) if X.dtype == object else X}, "the array"
        )
    if X.shape[1] != len(encoder.inputs) or any(width > 1 for width in _widths(encoder).values()):
        raise InputError(
            f"an array of {X.shape[1]} columns was given, expected"
            f" {', '.join(encoder.inputs[:12])}, in this order."
        )
    return ArrayTable({name: X[:, i] for i, name in enumerate(encoder.inputs)}, "the array")


def _widths(encoder: Encoder) -> dict[str, int]:
    """How many numbers a row has in each field that becomes some."""
    return {
        name: 1 if name in encoder.dates else width
        for name, width in zip(encoder.numbers, encoder.widths, strict=True)
    }


def labels_of(y: DataLike) -> DataLike:
    """Labels as numpy has them, or one sentence where a row has none: among texts it would be one
    more label, or fail to be sorted.
    """
    if isinstance(getattr(y, "dtype", None), np.dtype) and y.dtype != object:
        return y
    values = np.asarray(y, dtype=object)
    if values.ndim != 1:
        return y
    lost = np.flatnonzero([is_lost(value) for value in values])
    if len(lost):
        raise InputError(
            f"y has no label in {len(lost)} of {len(values)} rows, first in row {lost[0]}; drop"
            " those rows, or give them a label of their own."
        )
    extended = hasattr(y, "dtype") and not isinstance(y.dtype, np.dtype)
    return settle(values)[0] if extended else y


def as_said(y: DataLike, reading: Reading) -> DataLike:
    """Targets that are texts as what they say, as in a column of a table; others, and texts that
    say neither numbers nor dates, as they are.
    """
    return read_targets(y, reading)[0]


def read_targets(y: DataLike, reading: Reading, ways: Ways = ()) -> tuple[DataLike, Ways]:
    """See as_said; and how the texts are written. ways: those of the training, where there was
    one.
    """
    declared = getattr(y, "dtype", None)
    if hasattr(y, "detach") or (isinstance(declared, np.dtype) and declared.kind not in "OSU"):
        return y, ()
    values = np.asarray(y, dtype=object)
    some = values.ravel()[:TOLD_BY]
    if values.ndim not in (1, 2) or not any(isinstance(value, (str, bytes)) for value in some):
        return y, ()
    columns = values.reshape(len(values), -1).T
    table: Table = ArrayTable({f"y{i or ''}": each for i, each in enumerate(columns)}, "the target")
    names = list(table.fields)
    # What is known of a table's columns says nothing about these, whatever their names are.
    reading = with_ways(replace(reading, known={}), names, ways)
    table = as_written(table, reading, whole=names)
    if any(field.kind == "text" for field in table.fields.values()):
        return values.astype(str), ()
    found = np.stack([as_numbers(table.column(name)) for name in names], -1).astype(np.float64)
    if reading.known and np.isnan(found).any():  # some are written neither so nor in one other way
        return values.astype(str), ()
    known = reading_of(table, names).known
    return found.reshape(values.shape), [known.get(name) for name in names]


def as_numbers(y: DataLike) -> DataLike:
    """Targets that are dates as seconds since 1970, texts as what they say, others as they are."""
    y = as_said(y, Reading())
    kind = str(getattr(y, "dtype", ""))
    if not kind.startswith("datetime64"):
        return y
    # Pandas gives UTC for those of a zone.
    return seconds(np.asarray(y, dtype=kind.split(",")[0].rstrip("]") + "]"))


def pieces(table: Table) -> Iterator[tuple[int, int]]:
    """Ranges of rows to predict together: whole blocks of the table, since a part of one costs as
    much to read.
    """
    yield from itertools.pairwise(merge_cuts(table.cuts, PREDICT_ROWS))
