"""Tables of what Arrow reads: row groups of Parquet, record batches, tables in memory."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataFileError, require_package
from . import arrow_kinds
from .tables import PIECE_BYTES, Field, Table, even_cuts, readable

if TYPE_CHECKING:
    import pyarrow as pa

    from .tables import ArrowColumns

    ReadColumns = Callable[[list[str]], pa.Table]  # these columns of a block


class ArrowTable(Table):
    """Blocks of columns as Arrow holds them: row groups of Parquet, record batches, a table in
    memory."""

    def __init__(self, schema: pa.Schema, blocks: Sequence[tuple[int, ReadColumns]], where: str):
        """blocks: the number of rows of each, and a function that reads some columns of it."""
        self.where, self._declared = where, {}
        self._blocks = [read for rows, read in blocks if rows]
        self.cuts = [0, *itertools.accumulate(rows for rows, _ in blocks if rows)]
        self.n, self.fields, self.unused = self.cuts[-1], {}, []
        for entry in schema:
            kind, width = arrow_kinds.of_arrow(entry.type), 1
            if kind == "list":
                kind, width = "number", self._width(entry)
            if kind is None or not width:
                self.unused.append(entry.name)
            else:
                named = arrow_kinds.is_category(entry.type)
                self.fields[entry.name] = Field(entry.name, kind, width, named)
                self._declared[entry.name] = kind

    def _width(self, entry: pa.Field) -> int:
        import pyarrow as pa

        if pa.types.is_fixed_size_list(entry.type):
            return entry.type.list_size
        if not self._blocks:
            return 1
        first = self._blocks[0]([entry.name])[entry.name].slice(0, 1).to_pylist()
        return len(first[0] or []) if first else 0

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        with readable(self.where, self.files):
            i = bisect_right(self.cuts, start) - 1
            while start < stop:
                block = self._blocks[i](list(dict.fromkeys(names)))
                low, high = start - self.cuts[i], min(stop, self.cuts[i + 1]) - self.cuts[i]
                if len(block) != self.cuts[i + 1] - self.cuts[i]:
                    raise DataFileError(
                        f"{self.where} has {len(block)} rows where it declares another number; it"
                        " is damaged."
                    )
                for name, found in parts.items():
                    rows = block[name].slice(low, high - low).combine_chunks()
                    found.append(self._values(name, rows))
                start, i = self.cuts[i] + high, i + 1
        return {
            name: found[0] if len(found) == 1 else np.concatenate(found)
            for name, found in parts.items()
        }

    def column(self, name: str) -> np.ndarray:
        import pyarrow as pa

        same = self.field(name).kind == self._declared[name]
        with readable(self.where, self.files):
            if same and self._blocks and pa.types.is_integer(self._blocks[0]([name])[name].type):
                whole = self._whole_numbers(name)
                if whole is not None:
                    return whole
        return super().column(name)

    def _whole_numbers(self, name: str) -> np.ndarray | None:
        """A column that stays whole; None where a value is missing."""
        parts = []
        for read in self._blocks:
            part = read([name])[name]
            if part.null_count:
                return None
            parts.append(np.array(part.to_numpy()))  # copied, so that its block can go
        return np.concatenate(parts)

    def _values(self, name: str, column: pa.Array) -> np.ndarray:
        declared, field = self._declared[name], self.fields[name]
        if arrow_kinds.of_arrow(column.type) == "list":
            return _matrix(column, field.width, self.where, name)
        if field.kind == "text" and declared != "text":
            return arrow_kinds.names_from_arrow(column, declared)
        return self._converted(arrow_kinds.from_arrow(column, declared), name)

    def raw(self, names: list[str]) -> ArrowColumns:
        pa = require_package("pyarrow", "data")
        with readable(self.where, self.files):
            blocks = [read(names) for read in self._blocks]
        return {
            name: pa.chunked_array([chunk for block in blocks for chunk in block[name].chunks])
            for name in names
        }


def _matrix(column: pa.Array, width: int, where: str, name: str) -> np.ndarray:
    import pyarrow.compute as pc

    lengths = set(pc.unique(pc.list_value_length(column)).to_pylist())
    if column.null_count or not lengths <= {width}:
        raise DataFileError(
            f"{where} has lists of different lengths, or none, in {name!r}, expected {width}"
            " numbers in each row."
        )
    return arrow_kinds.from_arrow(column.flatten(), "number").reshape(-1, width)


def in_memory(X: pa.Table, where: str = "the Arrow table") -> ArrowTable:
    """Of a table that Arrow holds."""
    X = X.unify_dictionaries()
    cuts = even_cuts(len(X), max(1, PIECE_BYTES * len(X) // max(1, X.nbytes)))

    def block(names: list[str], a: int, b: int) -> pa.Table:
        return X.select(names).slice(a, b - a)

    blocks = [(b - a, partial(block, a=a, b=b)) for a, b in itertools.pairwise(cuts)]
    return ArrowTable(X.schema, blocks, where)


def in_own_file(file: pa.NativeFile, where: str, check: bool = False) -> ArrowTable:
    """Of an Arrow file that is this process's own, in pieces of its record batches."""
    import pyarrow as pa

    reader = pa.ipc.open_file(file)

    def block(names: list[str], i: int, a: int, b: int) -> pa.Table:
        batch = reader.get_batch(i)
        if check:
            batch.validate(full=True)  # a damaged file could otherwise point anywhere
        return pa.Table.from_batches([batch.slice(a, b - a)]).select(names)

    blocks = []
    for i in range(reader.num_record_batches):
        batch = reader.get_batch(i)
        cuts = even_cuts(batch.num_rows, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
        pieces = itertools.pairwise(cuts)
        blocks += [(b - a, partial(block, i=i, a=a, b=b)) for a, b in pieces]
    return ArrowTable(reader.schema, blocks, where)
