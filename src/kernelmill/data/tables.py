"""Where rows lie: a Table has fields, and reads any range of rows.

A field is a column of numbers, a matrix of them (`width` columns, such as an embedding), or a column of texts.
"""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataFileError, one_of
from .prints import Files

PIECE_BYTES = 1 << 20  # of rows that are read together from a file without blocks of its own


@dataclass(frozen=True)
class Field:
    name: str
    kind: str  # "number" or "text"
    width: int = 1


class Table(ABC):
    """Rows somewhere. `cuts` are the row numbers where what is cheap to read at once begins, and n at the end."""

    n: int
    fields: dict[str, Field]
    cuts: list[int]
    where: str = "the data"
    unused: list[str]  # names of what can be no feature, such as nested columns
    files: Files = Files()  # that it lies in

    def __len__(self) -> int:
        return self.n

    @abstractmethod
    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        """These fields of these rows: (rows, width) floats, NaN where a value is missing; texts (rows,) str, None where missing."""

    def field(self, name: str) -> Field:
        if name not in self.fields:
            raise one_of(f"column of {self.where}", name, list(self.fields))
        return self.fields[name]

    def column(self, name: str) -> np.ndarray:
        """A whole field: (n,) of a column, (n, width) of a matrix."""
        found = self.field(name)
        parts = [self.read([name], a, b)[name].copy() for a, b in itertools.pairwise(self.cuts)]
        values = np.concatenate(parts) if parts else np.empty((0, found.width))
        return values[:, 0] if values.ndim == 2 and found.width == 1 else values


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
        self.where, self._arrays, self.fields, self.unused = where, arrays, {}, []
        self.files = Files(array.path for array in arrays.values() if isinstance(array, FileRows))
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataFileError(f"{where} has arrays of different lengths ({lengths}); each needs one row per example.")
        self.n = next(iter(lengths.values()))
        row_bytes = 1
        for name, array in arrays.items():
            if array.ndim not in (1, 2) or array.dtype.kind not in "fiubOSU":
                raise DataFileError(f"{where} has {name!r} of shape {array.shape} and type {array.dtype}, expected a column or a matrix.")
            kind = "number" if array.dtype.kind in "fiub" else "text"
            width = 1 if array.ndim == 1 else int(array.shape[1])
            if (kind == "text" and array.ndim == 2) or width == 0:
                raise DataFileError(f"{where} has {name!r} of shape {array.shape} and type {array.dtype}, expected a matrix of numbers.")
            self.fields[name] = Field(name, kind, width)
            row_bytes += width * array.dtype.itemsize
        rows, chunk = max(1, PIECE_BYTES // row_bytes), max([(getattr(a, "chunks", None) or (1,))[0] for a in arrays.values()])
        self.cuts = even_cuts(self.n, -(-rows // chunk) * chunk)  # whole chunks of HDF5: a part of one costs as much

    def column(self, name: str) -> np.ndarray:
        array = self._arrays[self.field(name).name]
        with readable(self.where, self.files):  # whole numbers stay whole: labels beyond 2**53 would become one
            return np.asarray(array[:]) if array.dtype.kind in "iub" and array.ndim == 1 else super().column(name)

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        with readable(self.where, self.files):
            found = {name: np.asarray(self._arrays[name][start:stop]) for name in names}
            return {name: _texts(v) if self.fields[name].kind == "text" else _floats(v) for name, v in found.items()}


def _floats(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return values.reshape(len(values), -1)


def _texts(values: np.ndarray) -> np.ndarray:
    found = [None if v is None or v != v else v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()]
    return np.array(found, dtype=object)


class ArrowTable(Table):
    """Blocks of columns as Arrow holds them: row groups of Parquet, record batches, a table in memory."""

    def __init__(self, schema: Any, blocks: Sequence[tuple[int, Callable[..., Any]]], where: str):
        """blocks: the number of rows of each, and a function that reads some columns of it as a pyarrow.Table."""
        self.where, self._blocks = where, [read for rows, read in blocks if rows]
        self.cuts = [0, *itertools.accumulate(rows for rows, _ in blocks if rows)]
        self.n, self.fields, self.unused = self.cuts[-1], {}, []
        for entry in schema:
            kind, width = _kind(entry.type), 1
            if kind == "list":
                kind, width = "number", self._width(entry)
            if kind is None or not width:
                self.unused.append(entry.name)
            else:
                self.fields[entry.name] = Field(entry.name, kind, width)

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
            if self._blocks and pa.types.is_integer(self._blocks[0]([name])[name].type):
                parts = [None if (part := read([name])[name]).null_count else np.array(part.to_numpy()) for read in self._blocks]
                whole = [part for part in parts if part is not None]
                if len(whole) == len(parts):
                    return np.concatenate(whole)
        return super().column(name)

    def _values(self, name: str, column: Any) -> np.ndarray:
        import pyarrow as pa

        if self.fields[name].kind == "text":
            values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
                return np.array([None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()], dtype=object)
            return np.array(values.cast(pa.string()).to_pylist(), dtype=object)
        return _numbers(column, self.fields[name].width, self.where, name)


class Joined(Table):
    """Tables one below the other: shards of one dataset."""

    def __init__(self, tables: list[Table], where: str):
        self.where, self._tables, self.fields, self.unused = where, tables, tables[0].fields, tables[0].unused
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


def _kind(kind: Any) -> str | None:
    """ "number", "text", "list" of numbers; None for what cannot be a feature."""
    import pyarrow as pa

    is_ = pa.types
    if (
        is_.is_integer(kind)
        or is_.is_floating(kind)
        or is_.is_boolean(kind)
        or is_.is_decimal(kind)
        or is_.is_temporal(kind)
        or is_.is_null(kind)
    ):
        return "number"
    if is_.is_dictionary(kind):
        return "text"
    if (
        is_.is_binary(kind)
        or is_.is_large_binary(kind)
        or is_.is_string(kind)
        or is_.is_large_string(kind)
        or getattr(is_, "is_string_view", lambda _: False)(kind)
    ):
        return "text"
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return "list" if is_.is_floating(kind.value_type) or is_.is_integer(kind.value_type) else None
    return None


def _numbers(column: Any, width: int, where: str, name: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column)
        if column.null_count or (len(column) and pc.min_max(lengths).as_py() != {"min": width, "max": width}):
            raise DataFileError(f"{where} has lists of different lengths, or none, in {name!r}, expected {width} numbers in each row.")
        return _numbers(column.flatten(), 1, where, name).reshape(-1, width)
    if pa.types.is_temporal(kind):  # seconds, days or whatever its unit is: only differences matter
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if not pa.types.is_floating(kind):
        column = column.cast(pa.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False).reshape(-1, 1)
