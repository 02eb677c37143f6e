"""Parquet files and datasets of Arrow's, through pyarrow.dataset: row groups are read one by
one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..arrow_tables import ArrowTable, in_own_file
from ..files import need, spool
from ..joined import Joined
from ..prints import Files
from ..tables import PIECE_BYTES, Table, readable
from .base import Format, Kinds, Peek, is_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset, Fragment


def _open(X: Path | Dataset, limit: int, kinds: Kinds) -> Table:
    if not isinstance(X, Path):
        return _dataset(X, "the Arrow dataset", limit)
    return _dataset(need("pyarrow.dataset").dataset(X, format="parquet"), repr(str(X)), limit)


def _open_shards(files: list[Path], where: str, limit: int) -> Table:
    """Files as one dataset, in which folders like "year=2020" are columns; where the types of the
    files cannot be united by Arrow, one below the other."""
    pa, dataset = need("pyarrow"), need("pyarrow.dataset")
    join = partial(dataset.dataset, format="parquet", partitioning="hive")
    paths = [str(path) for path in files]
    every = join(paths)
    schemas = [fragment.physical_schema for fragment in every.get_fragments()]
    try:
        schema = pa.unify_schemas([every.schema, *schemas], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return Joined([_dataset(join([path]), repr(path), limit) for path in paths], where)
    return _dataset(join(paths, schema=schema), where, limit)


def _dataset(dataset: Dataset, where: str, limit: int) -> Table:
    """Where some row groups are large against what may be held, all rows go to a temporary file in
    smaller batches."""
    local = need("pyarrow.fs").LocalFileSystem
    files = Files(dataset.files if isinstance(getattr(dataset, "filesystem", None), local) else [])
    with readable(where, files):
        blocks, largest = [], (0, 1)
        for piece in _pieces(dataset):
            groups = getattr(piece, "row_groups", None)
            rows = groups[0].num_rows if groups else piece.count_rows()
            if groups:
                largest = max(largest, (groups[0].total_byte_size, rows))
            blocks.append((rows, _reader(piece, dataset.schema)))
        size, rows = largest
        if size > max(PIECE_BYTES, limit // 8):
            small = _small_batches(dataset, max(1, PIECE_BYTES * rows // size))
            table = in_own_file(spool(dataset.schema, small), where)
            files.seal()
        else:
            table = ArrowTable(dataset.schema, blocks, where)
    table.files = files
    return table


def _pieces(dataset: Dataset) -> Iterator[Fragment]:
    """Row groups of Parquet, whole files of other formats."""
    for fragment in dataset.get_fragments():
        if hasattr(fragment, "split_by_row_group"):
            yield from fragment.split_by_row_group()
        else:
            yield fragment


def _reader(piece: Fragment, schema: pa.Schema) -> Callable[[list[str]], pa.Table]:
    return lambda names: piece.to_table(schema=schema, columns=names)


def _small_batches(dataset: Dataset, rows: int) -> Iterator[pa.RecordBatch]:
    """All rows, read page by page: dataset.to_batches would hold whole row groups."""
    parquet, keys = need("pyarrow.parquet"), need("pyarrow.dataset").get_partition_keys
    frugal = {"buffer_size": 1 << 20, "pre_buffer": False}
    for fragment in dataset.get_fragments():
        same, system = keys(fragment.partition_expression), fragment.filesystem
        with parquet.ParquetFile(fragment.path, filesystem=system, **frugal) as file:
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                yield _with_all_columns(batch, dataset.schema, same)


def _with_all_columns(
    batch: pa.RecordBatch, schema: pa.Schema, same: dict[str, object]
) -> pa.RecordBatch:
    """The batch with the columns of a schema: those that it has itself, and those of its folder."""
    pa, columns = need("pyarrow"), []
    for entry in schema:
        if entry.name in batch.schema.names:
            columns.append(batch.column(entry.name).cast(entry.type))
        else:
            columns.append(pa.array([same.get(entry.name)] * len(batch), entry.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_dataset(X: object) -> bool:
    return is_of(X, "pyarrow") and hasattr(X, "get_fragments")


def _peek(X: Path | Dataset) -> Peek:
    if not isinstance(X, Path):
        return Peek(columns=len(X.schema))
    with need("pyarrow.parquet").ParquetFile(X) as file:
        return Peek(file.metadata.num_rows, file.metadata.num_columns)


FORMAT = Format(
    "Parquet", _open, _peek, (".parquet", ".pq"), takes=_is_dataset, open_shards=_open_shards
)
