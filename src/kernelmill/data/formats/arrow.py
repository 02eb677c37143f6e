"""Arrow (IPC) files and feather files, and tables and batches of pyarrow's in memory.

pyarrow.dataset does not serve here: it knows no single record batches, so that a window of rows
would be read with the whole file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ..arrow_tables import ArrowTable, in_memory, in_own_file
from ..files import need, spool, spool_bytes
from ..prints import Files
from ..tables import PIECE_BYTES, Table, readable
from .base import Format, Kinds, Peek, is_of

if TYPE_CHECKING:
    import pyarrow as pa


def _open(X: Path | pa.Table | pa.RecordBatch, limit: int, kinds: Kinds) -> Table:
    if isinstance(X, Path):
        return _open_file(X, limit)
    pa = need("pyarrow")
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        return in_memory(X)
    raise InputError(
        f"a {type(X).__module__}.{type(X).__name__} was given as data, expected a Table, a"
        " RecordBatch or a Dataset."
    )


def _open_file(path: Path, limit: int) -> Table:
    """Record batches are read one by one; where they are large against what may be held, from a
    copy in a temporary file. The file itself is not mapped: one that shrinks would end the
    process."""
    pa, where, files = need("pyarrow"), repr(str(path)), Files([path])
    with readable(where, files):
        file = pa.OSFile(str(path))
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:  # a stream, which can only be read from front to back
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            table = in_own_file(spool(stream.schema, stream), where)
            files.seal()
        else:
            rows = _rows_of_batches(file)
            if _is_large(reader, rows, file.size(), max(PIECE_BYTES, limit // 8)):
                table = in_own_file(spool_bytes(path), where, check=True)
                files.seal()
            else:
                table = _batches(reader, rows, where)
    table.files = files
    return table


def _rows_of_batches(file: pa.NativeFile) -> list[int]:
    """Counted in the first column, for little reading."""
    pa = need("pyarrow")
    first = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=[0]))
    return [first.get_batch(i).num_rows for i in range(first.num_record_batches)]


def _is_large(reader: pa.ipc.RecordBatchFileReader, rows: list[int], size: int, limit: int) -> bool:
    """Whether record batches take more than `limit` bytes, in a file of that size or in memory."""
    if size > limit * len(rows):
        return True
    if not rows:
        return False
    first = reader.get_batch(0)
    return first.nbytes * max(rows) > limit * max(1, len(first))


def _batches(reader: pa.ipc.RecordBatchFileReader, rows: list[int], where: str) -> ArrowTable:
    import pyarrow as pa

    def block(names: list[str], i: int) -> pa.Table:
        batch = reader.get_batch(i)
        batch.validate(full=True)  # a damaged file could otherwise point anywhere
        return pa.Table.from_batches([batch]).select(names)

    blocks = [(count, partial(block, i=i)) for i, count in enumerate(rows)]
    return ArrowTable(reader.schema, blocks, where)


def _is_arrow(X: object) -> bool:
    return is_of(X, "pyarrow")


def _peek(X: Path | pa.Table | pa.RecordBatch) -> Peek:
    if not isinstance(X, Path):
        return Peek(X.num_rows, X.num_columns)
    pa = need("pyarrow")
    with pa.OSFile(str(X)) as file:
        try:
            return Peek(sum(_rows_of_batches(file)), len(pa.ipc.open_file(file).schema))
        except pa.ArrowInvalid:
            file.seek(0)
            return Peek(columns=len(pa.ipc.open_stream(file).schema))


FORMAT = Format("Arrow", _open, _peek, (".arrow", ".feather"), takes=_is_arrow)
