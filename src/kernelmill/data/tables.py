"""Where rows lie: a Table has fields, and reads any range of rows.

A field is a column of one kind (see kinds.py), or a matrix of numbers (`width` columns, such as an embedding).
"""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DataFileError, needed, one_of
from . import dates, kinds
from .prints import Files

PIECE_BYTES = 1 << 20  # of rows that are read together from a file without blocks of its own


@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # "number", "boolean", "date", "text", or "empty" of a column without any value
    width: int = 1


class Table(ABC):
    """Rows somewhere. `cuts` are the row numbers where what is cheap to read at once begins, and n at the end.

    `fields` are what `read` gives. What lies there is of the kinds `_declared`: `of_kinds` is the same table with fields of other ones.
    """

    n: int
    fields: dict[str, Field]
    _declared: dict[str, str]
    cuts: list[int]
    where: str = "the data"
    unused: list[str]  # names of what can be no feature, such as nested columns
    files: Files = Files()  # that it lies in

    def __len__(self) -> int:
        return self.n

    @abstractmethod
    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        """These fields of these rows, as their kinds are read: (rows, width) floats, NaN where a value is missing; or (rows,) texts."""

    def field(self, name: str) -> Field:
        if name not in self.fields:
            raise one_of(f"column of {self.where}", name, list(self.fields))
        return self.fields[name]

    def of_kinds(self, wanted: Mapping[str, str]) -> Table:
        """The same rows with columns of these kinds: they are converted where they are read. Matrices stay numbers."""
        columns = {name: field.kind for name, field in self.fields.items() if field.width == 1}
        other = {name: kind for name, kind in wanted.items() if columns.get(name, kind) != kind}
        return self._of_kinds(other) if other else self

    def _of_kinds(self, other: dict[str, str]) -> Table:
        made = copy(self)
        made.fields = {name: replace(field, kind=other.get(name, field.kind)) for name, field in self.fields.items()}
        return made

    def _converted(self, values: np.ndarray, name: str) -> np.ndarray:
        return kinds.convert(values, self._declared[name], self.fields[name].kind, name, self.where)

    def column(self, name: str) -> np.ndarray:
        """A whole field: (n,) of a column, (n, width) of a matrix; booleans and dates as numpy's own."""
        self.field(name)
        parts = [self.natural(name, self.read([name], a, b)[name].copy()) for a, b in itertools.pairwise(self.cuts)]
        return np.concatenate(parts) if parts else np.empty(0)

    def natural(self, name: str, values: np.ndarray) -> np.ndarray:
        """What `read` gave of a field, as numpy has such values: bool where none is missing, datetime64."""
        kind = self.fields[name].kind
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if kind == "date":
            return dates.moments(values)
        return values.astype(bool) if kind == "boolean" and not np.isnan(values).any() else values

    def raw(self, names: list[str]) -> dict[str, Any]:
        """Whole columns as they stand in the file, as Arrow's."""
        pa = needed("pyarrow", "data")
        found = {name: self.column(name) for name in names}
        return {name: pa.array(values.tolist() if values.dtype == object else values) for name, values in found.items()}


def even_cuts(n: int, rows: int) -> list[int]:
    return [*range(0, n, max(1, rows)), n] if n else [0]


class FileRows:
    """A .npy file's rows, or another file's that numpy could map. They are read: a mapped file that shrinks ends the process (SIGBUS)."""

    def __init__(self, path: str | os.PathLike, mapped: np.ndarray, offset: int):
        self.path, self.shape, self.dtype, self.ndim, self._offset = os.path.abspath(path), mapped.shape, mapped.dtype, mapped.ndim, offset
        self._by_columns = mapped.ndim == 2 and not mapped.flags.c_contiguous

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        count, width = max(0, stop - start), math.prod(self.shape[1:])
        out = np.empty((count, *self.shape[1:]), self.dtype, order="F" if self._by_columns else "C")
        with open(self.path, "rb", buffering=0) as file:  # anew each time: a folder may have more shards than a process open files
            if not self._by_columns:
                self._fill(file, out, start * width)
            for j in range(width if self._by_columns else 0):
                self._fill(file, out[:, j], j * len(self) + start)
        return out

    def _fill(self, file: Any, out: np.ndarray, first: int) -> None:
        """With the values from number `first` on."""
        room = memoryview(out.reshape(-1).view(np.uint8)) if out.size else memoryview(b"")  # type: ignore[arg-type]
        at = self._offset + first * self.dtype.itemsize
        while len(room):
            read = os.preadv(file.fileno(), [room], at)
            if not read:
                raise DataFileError(f"{self.path!r} ends before its last row; it is damaged, or was cut while it was read.")
            room, at = room[read:], at + read


def unmapped(X: np.memmap) -> FileRows | np.memmap:
    """A memmap's rows as they stand in its file, where that can be read; X itself where not (a copy on write, columns of a matrix)."""
    root: Any = X
    while isinstance(root.base, np.ndarray):
        root = root.base
    contiguous = X.flags.c_contiguous or (X is root and X.flags.f_contiguous)
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c" or not contiguous:
        return X
    return FileRows(root.filename, X, root.offset + X.__array_interface__["data"][0] - root.__array_interface__["data"][0])


class ArrayTable(Table):
    """Named arrays of n rows: numpy's own, rows of a file, or datasets of an open HDF5 file."""

    def __init__(self, arrays: dict[str, Any], where: str):
        self.where, self.fields, self.unused, self._declared, self._arrays = where, {}, [], {}, {}
        self.files = Files(array.path for array in arrays.values() if isinstance(array, FileRows))
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataFileError(f"{where} has arrays of different lengths ({lengths}); each needs one row per example.")
        self.n = next(iter(lengths.values()))
        row_bytes = 1
        for name, array in arrays.items():
            if array.ndim not in (1, 2) or array.dtype.kind not in "fiubmMOSU":
                raise DataFileError(f"{where} has {name!r} of shape {array.shape} and type {array.dtype}, expected a column or a matrix.")
            kind = kinds.of_array(array)
            width = 1 if array.ndim == 1 else int(array.shape[1])
            if (kind in ("text", "date") and array.ndim == 2) or width == 0:
                raise DataFileError(f"{where} has {name!r} of shape {array.shape} and type {array.dtype}, expected a matrix of numbers.")
            if isinstance(array, np.ndarray) and array.dtype == object:
                array, kind = kinds.settle(array)
            self._arrays[name], self._declared[name] = array, "number" if array.ndim == 2 else kind
            self.fields[name] = Field(name, self._declared[name], width)
            row_bytes += width * array.dtype.itemsize
        rows, chunk = max(1, PIECE_BYTES // row_bytes), max([(getattr(a, "chunks", None) or (1,))[0] for a in arrays.values()])
        self.cuts = even_cuts(self.n, -(-rows // chunk) * chunk)  # whole chunks of HDF5: a part of one costs as much

    def column(self, name: str) -> np.ndarray:
        array, wanted = self._arrays[self.field(name).name], self.fields[name].kind
        whole = array.dtype.kind in "iub" and array.ndim == 1 and self._declared[name] == wanted
        with readable(self.where, self.files):  # whole numbers stay whole: labels beyond 2**53 would become one
            return np.asarray(array[:]) if whole else super().column(name)

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        with readable(self.where, self.files):
            return {name: self._values(name, np.asarray(self._arrays[name][start:stop])) for name in names}

    def _values(self, name: str, values: np.ndarray) -> np.ndarray:
        declared, wanted = self._declared[name], self.fields[name].kind
        if wanted == "text" and declared != "text" and values.dtype.kind in "iu":
            return kinds.names(values, declared)  # with all their digits
        return self._converted(kinds.represent(values, declared), name)


class ArrowTable(Table):
    """Blocks of columns as Arrow holds them: row groups of Parquet, record batches, a table in memory."""

    def __init__(self, schema: Any, blocks: Sequence[tuple[int, Callable[..., Any]]], where: str):
        """blocks: the number of rows of each, and a function that reads some columns of it as a pyarrow.Table."""
        self.where, self._blocks, self._declared = where, [read for rows, read in blocks if rows], {}
        self.cuts = [0, *itertools.accumulate(rows for rows, _ in blocks if rows)]
        self.n, self.fields, self.unused = self.cuts[-1], {}, []
        for entry in schema:
            kind, width = kinds.of_arrow(entry.type), 1
            if kind == "list":
                kind, width = "number", self._width(entry)
            if kind is None or not width:
                self.unused.append(entry.name)
            else:
                self.fields[entry.name], self._declared[entry.name] = Field(entry.name, kind, width), kind

    def _width(self, entry: Any) -> int:
        import pyarrow as pa

        if pa.types.is_fixed_size_list(entry.type):
            return entry.type.list_size
        first = self._blocks[0]([entry.name])[entry.name].slice(0, 1).to_pylist() if self._blocks else [[0]]
        return len(first[0] or []) if first else 0

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        with readable(self.where, self.files):
            i = bisect_right(self.cuts, start) - 1
            while start < stop:
                block = self._blocks[i](list(dict.fromkeys(names)))
                low, high = start - self.cuts[i], min(stop, self.cuts[i + 1]) - self.cuts[i]
                if len(block) != self.cuts[i + 1] - self.cuts[i]:
                    raise DataFileError(f"{self.where} has {len(block)} rows where its own account says otherwise; it is damaged.")
                for name, found in parts.items():
                    found.append(self._values(name, block[name].slice(low, high - low).combine_chunks()))
                start, i = self.cuts[i] + high, i + 1
        return {name: found[0] if len(found) == 1 else np.concatenate(found) for name, found in parts.items()}

    def column(self, name: str) -> np.ndarray:
        import pyarrow as pa

        self.field(name)
        with readable(self.where, self.files):  # whole numbers stay whole; each part is copied, so that its block can go
            same = self.fields[name].kind == self._declared[name]
            if same and self._blocks and pa.types.is_integer(self._blocks[0]([name])[name].type):
                parts = [None if (part := read([name])[name]).null_count else np.array(part.to_numpy()) for read in self._blocks]
                whole = [part for part in parts if part is not None]
                if len(whole) == len(parts):
                    return np.concatenate(whole)
        return super().column(name)

    def _values(self, name: str, column: Any) -> np.ndarray:
        declared, wanted, width = self._declared[name], self.fields[name].kind, self.fields[name].width
        if kinds.of_arrow(column.type) == "list":
            return _matrix(column, width, self.where, name)
        if wanted == "text" and declared != "text":
            return kinds.names_from_arrow(column, declared)
        return self._converted(kinds.from_arrow(column, declared), name)

    def raw(self, names: list[str]) -> dict[str, Any]:
        pa = needed("pyarrow", "data")
        with readable(self.where, self.files):
            blocks = [read(names) for read in self._blocks]
        return {name: pa.chunked_array([chunk for block in blocks for chunk in block[name].chunks]) for name in names}


class Joined(Table):
    """Tables one below the other: shards of one dataset."""

    def __init__(self, tables: list[Table], where: str):
        self.where, self.unused = where, tables[0].unused
        found = {name: kinds.unify(t.fields[name].kind for t in tables if name in t.fields) for name in tables[0].fields}
        self._tables = tables = [table.of_kinds(found) for table in tables]
        self.fields = tables[0].fields
        for table in tables[1:]:
            if table.fields != self.fields:
                odd = sorted({f"{f.name} ({f.kind})" for f in {*table.fields.values()} ^ {*self.fields.values()}})
                raise DataFileError(f"{table.where} has other columns than {tables[0].where} ({', '.join(odd[:5])}); shards need the same.")
        self.files = sum((table.files for table in tables), Files())
        self._starts = [0, *itertools.accumulate(table.n for table in tables)]
        self.n = self._starts[-1]
        self.cuts = [0, *(start + cut for start, table in zip(self._starts, tables, strict=False) for cut in table.cuts if cut)]

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        parts = [table.read(names, a, b) for table, a, b in self._parts(start, stop)]
        return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in names}

    def column(self, name: str) -> np.ndarray:
        self.field(name)
        return np.concatenate([table.column(name) for table in self._tables])

    def raw(self, names: list[str]) -> dict[str, Any]:
        pa = needed("pyarrow", "data")
        parts = [table.raw(names) for table in self._tables]
        found: dict[str, Any] = {}
        for name in names:
            chunks = [part[name] for part in parts]
            if any(chunk.type != chunks[0].type for chunk in chunks):
                chunks = [chunk.cast(pa.string()) for chunk in chunks]
            found[name] = pa.concat_arrays([c for chunk in chunks for c in (chunk.chunks if hasattr(chunk, "chunks") else [chunk])])
        return found

    def _of_kinds(self, other: dict[str, str]) -> Table:
        return Joined([table.of_kinds(other) for table in self._tables], self.where)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Table, int, int]]:
        i = bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[i], min(stop, self._starts[i + 1])
            if end > start:
                yield self._tables[i], start - first, end - first
            start, i = max(start, end), i + 1


class readable:
    """Turns whatever a reader trips over into one sentence about the file; if that changed meanwhile, this is the reason."""

    def __init__(self, where: str, files: Files | None = None):
        self._where, self._files = where, files or Files()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from ..errors import KernelmillError

        if error is None or isinstance(error, MemoryError) or not isinstance(error, Exception):
            return
        self._files.check()
        if isinstance(error, KernelmillError):
            return
        if isinstance(error, FileNotFoundError):
            raise DataFileError(f"{self._where} does not exist; check the path.") from None
        if isinstance(error, PermissionError):
            raise DataFileError(f"{self._where} may not be read by this user; check its permissions.") from None
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataFileError(f"{self._where} cannot be read ({said}); it may be damaged, or of another format than its name says.") from None


def _matrix(column: Any, width: int, where: str, name: str) -> np.ndarray:
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column)
    if column.null_count or (len(column) and pc.min_max(lengths).as_py() != {"min": width, "max": width}):
        raise DataFileError(f"{where} has lists of different lengths, or none, in {name!r}, expected {width} numbers in each row.")
    return kinds.from_arrow(column.flatten(), "number").reshape(-1, width)
