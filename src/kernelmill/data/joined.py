"""Tables one below the other."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataFileError, require_package
from . import kinds
from .prints import Files
from .tables import Table

if TYPE_CHECKING:
    from .tables import ArrowColumns


class Joined(Table):
    """Tables one below the other: shards of one dataset."""

    def __init__(self, tables: list[Table], where: str):
        self.where, self.unused = where, tables[0].unused
        found = {
            name: kinds.unify(t.fields[name].kind for t in tables if name in t.fields)
            for name in tables[0].fields
        }
        self._tables = tables = [table.of_kinds(found) for table in tables]
        self.fields = tables[0].fields
        for table in tables[1:]:
            if table.fields != self.fields:
                odd = {*table.fields.values()} ^ {*self.fields.values()}
                listed = ", ".join(sorted({f"{f.name} ({f.kind})" for f in odd})[:5])
                raise DataFileError(
                    f"{table.where} has other columns than {tables[0].where} ({listed}); shards"
                    " need the same."
                )
        self.files = sum((table.files for table in tables), Files())
        self._starts = [0, *itertools.accumulate(table.n for table in tables)]
        self.n = self._starts[-1]
        self.cuts = [0]
        for start, table in zip(self._starts, tables, strict=False):
            self.cuts += [start + cut for cut in table.cuts if cut]

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        parts = [table.read(names, a, b) for table, a, b in self._parts(start, stop)]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def column(self, name: str) -> np.ndarray:
        self.field(name)
        return np.concatenate([table.column(name) for table in self._tables])

    def raw(self, names: list[str]) -> ArrowColumns:
        pa = require_package("pyarrow", "data")
        parts = [table.raw(names) for table in self._tables]
        found: ArrowColumns = {}
        for name in names:
            chunks = [part[name] for part in parts]
            if any(chunk.type != chunks[0].type for chunk in chunks):
                chunks = [chunk.cast(pa.string()) for chunk in chunks]
            arrays = [getattr(chunk, "chunks", [chunk]) for chunk in chunks]
            found[name] = pa.concat_arrays(list(itertools.chain.from_iterable(arrays)))
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
