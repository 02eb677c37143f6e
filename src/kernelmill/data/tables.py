"""Where rows lie: a Table has fields, and reads any range of rows.

A field is a column of one kind (see kinds.py), or a matrix of numbers (`width` columns, such as an
embedding).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataFileError, KernelmillError, one_of, require_package
from . import dates, kinds
from .mapped import FileRows
from .prints import Files

if TYPE_CHECKING:
    import pyarrow as pa

    ArrowColumns = dict[str, pa.Array | pa.ChunkedArray]  # by name

PIECE_BYTES = 1 << 20  # of rows that are read together from a file without blocks of its own


@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # "number", "boolean", "date", "text", or "empty" of a column without any value
    width: int = 1
    named: bool = field(default=False, compare=False)  # its values are declared to be names


class Table(ABC):
    """Rows somewhere. `cuts` are the row numbers where what is cheap to read at once begins, and n
    at the end.

    `fields` are what `read` gives. What lies there is of the kinds `_declared`: `of_kinds` is the
    same table with fields of other ones.
    """

    n: int
    fields: dict[str, Field]
    _declared: dict[str, str]
    cuts: list[int]
    where: str = "the data"
    unused: list[str]  # names of what can be no feature, such as nested columns
    files: Files = Files()  # that it lies in
    decimal_commas = False  # fields of texts have them, where nothing else tells
    comma_columns: frozenset[str] = frozenset()  # of numbers that are written with decimal commas
    copied: object = None  # the local copy of remote files, which goes with the last table of it

    def __len__(self) -> int:
        return self.n

    @abstractmethod
    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        """These fields of these rows, as their kinds are read: (rows, width) floats, NaN where a
        value is missing; or (rows,) texts."""

    def field(self, name: str) -> Field:
        if name not in self.fields:
            raise one_of(f"column of {self.where}", name, list(self.fields))
        return self.fields[name]

    def of_kinds(self, wanted: Mapping[str, str]) -> Table:
        """The same rows with columns of these kinds: they are converted where they are read.
        Matrices stay numbers."""
        columns = {name: field.kind for name, field in self.fields.items() if field.width == 1}
        other = {name: kind for name, kind in wanted.items() if columns.get(name, kind) != kind}
        if not other:
            return self
        made = self._of_kinds(other)
        made.where, made.copied = self.where, self.copied
        return made

    def _of_kinds(self, other: dict[str, str]) -> Table:
        made = copy(self)
        made.fields = {
            name: replace(field, kind=other.get(name, field.kind))
            for name, field in self.fields.items()
        }
        return made

    def _converted(self, values: np.ndarray, name: str) -> np.ndarray:
        return kinds.convert(values, self._declared[name], self.fields[name].kind, name, self.where)

    def column(self, name: str) -> np.ndarray:
        """A whole field: (n,) of a column, (n, width) of a matrix; booleans and dates as numpy's
        own."""
        self.field(name)
        parts = [
            self.natural(name, self.read([name], a, b)[name].copy())
            for a, b in itertools.pairwise(self.cuts)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def natural(self, name: str, values: np.ndarray) -> np.ndarray:
        """What `read` gave of a field, as numpy has such values: bool where none is missing,
        datetime64."""
        kind = self.fields[name].kind
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if kind == "date":
            return dates.moments(values)
        return values.astype(bool) if kind == "boolean" and not np.isnan(values).any() else values

    def raw(self, names: list[str]) -> ArrowColumns:
        """Whole columns as they stand in the file, as Arrow's."""
        pa = require_package("pyarrow", "data")
        found = {name: self.column(name) for name in names}
        return {
            name: pa.array(values.tolist() if values.dtype == object else values)
            for name, values in found.items()
        }


def spread(n: int, most: int, runs: int = 20) -> list[tuple[int, int]]:
    """Ranges of rows: all of them, or so many runs from all over, `most` rows together."""
    if n <= most:
        return [(0, n)] if n else []
    run = max(1, most // runs)
    return [(start, start + run) for start in np.linspace(0, n - run, runs).astype(int).tolist()]


def even_cuts(n: int, rows: int) -> list[int]:
    return [*range(0, n, max(1, rows)), n] if n else [0]


class ArrayTable(Table):
    """Named arrays of n rows: numpy's own, rows of a file, or datasets of an open HDF5 file."""

    def __init__(self, arrays: Mapping[str, kinds.Array], where: str):
        self.where, self.fields, self.unused, self._declared = where, {}, [], {}
        self._arrays: dict[str, kinds.Array] = {}
        self.files = Files(array.path for array in arrays.values() if isinstance(array, FileRows))
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataFileError(
                f"{where} has arrays of different lengths ({lengths}); each needs one row per"
                " example."
            )
        self.n = next(iter(lengths.values()))
        row_bytes, chunk = 1, 1
        for name, array in arrays.items():
            self._add(name, array)
            row_bytes += self.fields[name].width * self._arrays[name].dtype.itemsize
            chunk = max(chunk, (getattr(array, "chunks", None) or (1,))[0])
        rows = max(1, PIECE_BYTES // row_bytes)
        # Whole chunks of HDF5: a part of one costs as much.
        self.cuts = even_cuts(self.n, -(-rows // chunk) * chunk)

    def _add(self, name: str, array: kinds.Array) -> None:
        given = f"{self.where} has {name!r} of shape {array.shape} and type {array.dtype}"
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiubmMOSU":
            raise DataFileError(f"{given}, expected a column or a matrix.")
        kind = kinds.of_array(array)
        width = 1 if array.ndim == 1 else int(array.shape[1])
        if (kind in ("text", "date") and array.ndim == 2) or width == 0:
            raise DataFileError(f"{given}, expected a matrix of numbers.")
        if isinstance(array, np.ndarray) and array.dtype == object:
            array, kind = kinds.settle(array)
        kind = "number" if array.ndim == 2 else kind
        self._arrays[name], self._declared[name] = array, kind
        self.fields[name] = Field(name, kind, width)

    def column(self, name: str) -> np.ndarray:
        array, wanted = self._arrays[self.field(name).name], self.fields[name].kind
        whole = array.dtype.kind in "iub" and array.ndim == 1 and self._declared[name] == wanted
        with readable(self.where, self.files):
            # Whole numbers stay whole: labels beyond 2**53 would become one.
            return np.asarray(array[:]) if whole else super().column(name)

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        with readable(self.where, self.files):
            return {
                name: self._values(name, np.asarray(self._arrays[name][start:stop]))
                for name in names
            }

    def _values(self, name: str, values: np.ndarray) -> np.ndarray:
        declared, wanted = self._declared[name], self.fields[name].kind
        if wanted == "text" and declared != "text" and values.dtype.kind in "iu":
            return kinds.names(values, declared)  # with all their digits
        return self._converted(kinds.represent(values, declared), name)


@contextmanager
def readable(where: str, files: Files | None = None) -> Iterator[None]:
    """Turn whatever a reader trips over into one sentence about the file; if that changed
    meanwhile, this is the reason."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if files is not None:
            files.check()
        if isinstance(error, KernelmillError):
            raise
        raise DataFileError(f"{where} {_trouble(error)}") from None


def _trouble(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist; check the path."
    if isinstance(error, PermissionError):
        return "may not be read by this user; check its permissions."
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return f"cannot be read ({said}); it may be damaged, or of another format than its name says."
