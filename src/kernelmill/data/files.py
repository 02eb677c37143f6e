"""From what a user gives to a Table: .npy, .npz, HDF5, Parquet, Arrow, CSV, folders of them, memmaps, data frames, torch datasets.

Files are only read. A CSV file that is to be streamed is first turned into Arrow, in a temporary file that has no name and goes with the
process.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NO_SPACE, DataFileError, InputError, OutputError, needed
from .prints import Files
from .tables import PIECE_BYTES, ArrayTable, ArrowTable, Joined, Table, even_cuts, readable, unmapped

log = logging.getLogger("kernelmill")

SUFFIXES = [".npy", ".npz", ".h5", ".hdf5", ".parquet", ".pq", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz"]
CSV_BLOCK = 4 << 20
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?"]  # missing values of a CSV file
LARGE_MAP = 16 << 20  # bytes from which a memmap is read piece by piece; smaller ones are arrays like others


def is_table(X: Any) -> bool:
    """Whether X is something to be opened, and not an array."""
    large = isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= LARGE_MAP
    return large or isinstance(X, (str, os.PathLike, Table)) or _is_arrow(X) or _is_torch(X) or _is_hdf5(X)


def opened(X: Any, in_memory: int, texts: Sequence[str] = ()) -> Table:
    """The table that X is or names. Of data that can only be read from front to back, or in large blocks, up to `in_memory` bytes are
    held, more go to a temporary file. `texts`: columns of a CSV file that are texts, whatever they look like."""
    if isinstance(X, Table):
        return X
    if isinstance(X, (str, os.PathLike)):
        return _path(Path(X), in_memory, texts)
    if _is_arrow(X):
        return _arrow(X, in_memory)
    if _is_hdf5(X):
        if hasattr(X, "keys"):
            return _hdf5(X, f"the HDF5 group {X.name!r}")
        return _of(ArrayTable({"X": X}, f"the HDF5 dataset {X.name!r}"), _hdf5_files(X))
    if _is_torch(X):
        return _torch(X, in_memory)
    if isinstance(X, np.ndarray):
        return ArrayTable({"X": unmapped(X) if isinstance(X, np.memmap) else X}, "the array")
    if isinstance(X, dict):
        return ArrayTable({str(name): np.asarray(values) for name, values in X.items()}, "the columns")
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        pa = need("pyarrow")
        with readable("the data frame"):
            table = pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else X.to_arrow()
        return _arrow(table, in_memory)
    raise InputError(f"a {type(X).__name__} was given as data, expected an array, a table, or the path of a file or folder.")


def shuffled(X: Any) -> bool:
    """Whether a torch loader gives its rows in another order than its dataset's, or not all of them."""
    from torch.utils.data import DataLoader, RandomSampler

    return isinstance(X, DataLoader) and (isinstance(X.sampler, RandomSampler) or bool(X.drop_last))


def need(package: str) -> Any:
    return needed(package, "data")


def _is_arrow(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "pyarrow"


def _is_hdf5(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "h5py"


def _is_torch(X: Any) -> bool:
    from torch.utils.data import DataLoader, Dataset

    return isinstance(X, (Dataset, DataLoader))


def _path(path: Path, in_memory: int, texts: Sequence[str] = ()) -> Table:
    where = repr(str(path))
    with readable(where):
        if path.is_dir():
            return _folder(path, in_memory, texts)
        if not path.exists():
            raise FileNotFoundError
        suffix = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
        if suffix == ".npy":
            return ArrayTable({"X": unmapped(np.load(path, mmap_mode="r", allow_pickle=False))}, where)
        if suffix == ".npz":
            return _npz(path, where)
        if suffix in (".h5", ".hdf5"):
            return _hdf5(need("h5py").File(path, "r"), where)
        if suffix in (".parquet", ".pq"):
            return _dataset(need("pyarrow.dataset").dataset(path, format="parquet"), where, in_memory)
        if suffix in (".arrow", ".feather"):
            return _ipc_file(path, where, in_memory)
        if suffix in (".csv", ".tsv", ".csv.gz", ".tsv.gz"):
            return _csv(path, where, in_memory, texts)
    raise InputError(f"{where} has the ending {suffix!r}, expected one of {', '.join(SUFFIXES)}.")


def _folder(path: Path, in_memory: int, texts: Sequence[str]) -> Table:
    """All data files of a folder, one below the other in the order of their names; "year=2020" folders are columns of Parquet."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not any(q.startswith((".", "_")) for q in p.relative_to(path).parts))
    known, where = [p for p in files if p.name.lower().endswith(tuple(SUFFIXES))], repr(str(path))
    if not known:
        raise DataFileError(f"{where} is an empty folder, or has no data files; expected some of {', '.join(SUFFIXES)}.")
    if len(known) < len(files):
        log.warning("%s: %d files that are no data are left out", where, len(files) - len(known))
    if all(p.suffix.lower() in (".parquet", ".pq") for p in known):
        dataset = need("pyarrow.dataset")
        join = partial(dataset.dataset, [str(p) for p in known], format="parquet", partitioning="hive")
        schemas = [join().schema, *(fragment.physical_schema for fragment in join().get_fragments())]
        return _dataset(join(schema=need("pyarrow").unify_schemas(schemas, promote_options="permissive")), where, in_memory)
    tables = [_path(p, in_memory // len(known), texts) for p in known]
    named = {name for table in tables for name, field in table.fields.items() if field.kind == "text"}
    for i, table in enumerate(tables):  # a shard in which a column of texts happens to look like numbers, or to be empty
        if any(table.fields[name].kind != "text" for name in named if name in table.fields):
            tables[i] = _path(known[i], in_memory // len(known), sorted(named))
    return Joined(tables, where)


def _npz(path: Path, where: str) -> Table:
    files = Files([path])
    with readable(where, files), np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return _of(ArrayTable(_alike(arrays, where), where), files.seal())


def _of(table: Table, files: Files) -> Table:
    """The table, which knows its files."""
    table.files = files
    return table


def _hdf5(group: Any, where: str) -> Table:
    table = ArrayTable(_alike({name: item for name, item in group.items() if hasattr(item, "dtype")}, where), where)
    return _of(table, _hdf5_files(group))


def _hdf5_files(item: Any) -> Files:
    return Files([item.file.filename] if os.path.isfile(item.file.filename) else [])


def _alike(arrays: dict[str, Any], where: str) -> dict[str, Any]:
    """Those that are columns or matrices of as many rows as the largest has; others are left out, and said."""
    usable = {name: a for name, a in arrays.items() if a.ndim in (1, 2) and a.dtype.kind in "fiubOSU" and a.size}
    if not usable:
        raise DataFileError(f"{where} holds no columns or matrices.")
    rows = len(max(usable.values(), key=lambda a: a.size))
    found = {name: a for name, a in usable.items() if len(a) == rows}
    if len(found) < len(arrays):
        log.warning("%s: %s left out, having no %d rows", where, ", ".join(sorted({*arrays} - {*found})), rows)
    return found


def _dataset(dataset: Any, where: str, in_memory: int) -> Table:
    """Row groups are read one by one; where some are large against what may be held, all go to a temporary file in smaller batches."""
    local = isinstance(getattr(dataset, "filesystem", None), need("pyarrow.fs").LocalFileSystem)
    files = Files(dataset.files if local else [])
    with readable(where, files):
        return _row_groups(dataset, where, in_memory, files)


def _row_groups(dataset: Any, where: str, in_memory: int, files: Files) -> Table:
    schema, blocks, largest = dataset.schema, [], (0, 1)
    for fragment in dataset.get_fragments():
        for piece in fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment]:
            groups = getattr(piece, "row_groups", None)
            rows = groups[0].num_rows if groups else piece.count_rows()
            largest = max(largest, (groups[0].total_byte_size, rows) if groups else (0, 1))
            blocks.append((rows, lambda names, piece=piece: piece.to_table(schema=schema, columns=names)))
    size, rows = largest
    if size > max(PIECE_BYTES, in_memory // 8):
        spooled = _spooled(schema, _frugally(dataset, schema, max(1, PIECE_BYTES * rows // size)))
        return _of(_ipc(spooled, where, in_memory), files.seal())
    return _of(ArrowTable(schema, blocks, where), files)


def _frugally(dataset: Any, schema: Any, rows: int) -> Iterator[Any]:
    """All rows in small batches, read page by page: dataset.to_batches would hold whole row groups."""
    pa, parquet, keys = need("pyarrow"), need("pyarrow.parquet"), need("pyarrow.dataset").get_partition_keys
    for fragment in dataset.get_fragments():
        same = keys(fragment.partition_expression)
        with parquet.ParquetFile(fragment.path, filesystem=fragment.filesystem, buffer_size=1 << 20, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=rows, use_threads=False):
                columns = []
                for entry in schema:
                    if entry.name in batch.schema.names:
                        columns.append(batch.column(entry.name).cast(entry.type))
                    else:
                        columns.append(pa.array([same.get(entry.name)] * len(batch), entry.type))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _ipc_file(path: Path, where: str, in_memory: int) -> Table:
    """Record batches are read one by one; where they are large against what may be held, from a copy in a temporary file. The file itself
    is not mapped: one that shrinks would end the process."""
    pa, files = need("pyarrow"), Files([path])
    with readable(where, files):
        file = pa.OSFile(str(path))
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:  # a stream, which can only be read from front to back
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            return _of(_ipc(_spooled(stream.schema, stream), where, in_memory), files.seal())
        few = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=[0]))  # counts rows for little reading
        rows = [few.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        limit = max(PIECE_BYTES, in_memory // 8)
        large = file.size() > limit * len(rows)
        if rows and not large:
            first = reader.get_batch(0)
            large = first.nbytes * max(rows) > limit * max(1, len(first))
        if large:
            return _of(_ipc(_copied(path), where, in_memory, check=True), files.seal())

        def batch(names: list[str], i: int) -> Any:
            found = reader.get_batch(i)
            found.validate(full=True)  # a damaged file could otherwise point anywhere
            return pa.Table.from_batches([found]).select(names)

        blocks = [(count, partial(batch, i=i)) for i, count in enumerate(rows)]
        return _of(ArrowTable(reader.schema, blocks, where), files)


def _ipc(file: Any, where: str, in_memory: int, check: bool = False) -> ArrowTable:
    """Of a file that is this process's own."""
    pa = need("pyarrow")
    reader = pa.ipc.open_file(file)

    def batch(i: int) -> Any:
        found = reader.get_batch(i)
        if check:
            found.validate(full=True)  # a damaged file could otherwise point anywhere
        return found

    schema, blocks = reader.schema, []
    for i in range(reader.num_record_batches):
        first = reader.get_batch(i)
        rows = max(1, PIECE_BYTES * first.num_rows // max(1, first.nbytes))
        blocks += [
            (b - a, lambda names, i=i, a=a, b=b: pa.Table.from_batches([batch(i).slice(a, b - a)]).select(names))
            for a, b in itertools.pairwise(even_cuts(first.num_rows, rows))
        ]
    return ArrowTable(schema, blocks, where)


def _arrow(X: Any, in_memory: int) -> Table:
    pa = need("pyarrow")
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        X = X.unify_dictionaries()
        starts = even_cuts(len(X), max(1, PIECE_BYTES * len(X) // max(1, X.nbytes)))
        blocks = [(b - a, lambda names, a=a, b=b: X.select(names).slice(a, b - a)) for a, b in itertools.pairwise(starts)]
        return ArrowTable(X.schema, blocks, "the Arrow table")
    if hasattr(X, "get_fragments"):
        return _dataset(X, "the Arrow dataset", in_memory)
    raise InputError(f"a {type(X).__module__}.{type(X).__name__} was given as data, expected a Table, a RecordBatch or a Dataset.")


def _csv(path: Path, where: str, in_memory: int, texts: Sequence[str]) -> Table:
    """Types are those of the first block; a column that breaks its type later is read again, as numbers and then as text."""
    pa, csv = need("pyarrow"), need("pyarrow.csv")
    delimiter = _delimiter(path)
    types: dict[str, Any] = dict.fromkeys(texts, pa.string())
    held, files = path.stat().st_size <= in_memory and path.suffix != ".gz", Files([path])
    for _ in range(10_000):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=MISSING)
        parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        try:
            reader = csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK), parse, convert)
            names = reader.schema.names
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataFileError(f"{where} has two columns called {twice!r}; rename one.")
            if held:
                return _renamed(_arrow(reader.read_all(), in_memory), where, files.seal())
            return _renamed(_ipc(_spooled(reader.schema, reader), where, in_memory), where, files.seal())
        except pa.ArrowInvalid as error:
            files.check()
            column = _culprit(str(error), reader.schema.names if "reader" in locals() else [])
            now = types.get(column or "")
            if column is None or now == pa.string():
                raise
            was = reader.schema.field(column).type
            types[column] = pa.string() if now is not None or not (pa.types.is_integer(was) or pa.types.is_null(was)) else pa.float64()
            del reader
    raise DataFileError(f"{where} has columns of no one type.")


def _renamed(table: Table, where: str, files: Files) -> Table:
    table.where, table.files = where, files
    return table


def _culprit(said: str, names: list[str]) -> str | None:
    """The column that Arrow's message "In CSV column #3: …" is about."""
    if "CSV column #" not in said:
        return None
    number = said.split("CSV column #", 1)[1].split(":", 1)[0]
    return names[int(number)] if number.isdigit() and int(number) < len(names) else None


def _delimiter(path: Path) -> str:
    import gzip

    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        header = file.readline(1 << 20).decode("utf-8", "replace")
    return max(",\t;|", key=header.count)


def _spooled(schema: Any, batches: Iterable[Any]) -> Any:
    """Record batches written to a temporary file without a name, opened for reading."""
    pa = need("pyarrow")
    file = _temporary_file()
    with _room(), pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return _mapped(file)


def _copied(path: Path) -> Any:
    """A file's bytes in a temporary file without a name, opened for reading."""
    file = _temporary_file()
    with open(path, "rb") as given, _room():
        shutil.copyfileobj(given, file, CSV_BLOCK)
    return _mapped(file)


def _mapped(file: Any) -> Any:
    pa = need("pyarrow")
    with _room():
        file.flush()
    try:  # mapped, a column is read without the others
        return pa.memory_map(f"/proc/self/fd/{file.fileno()}")
    except OSError:
        file.seek(0)
        return pa.PythonFile(file, "r")


def _temporary_file() -> Any:
    """A file without a name, open as long as its table is."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise OutputError(error.errno, f"no temporary file can be made ({error.strerror}); set TMPDIR to a folder with space.") from None


@contextmanager
def _room() -> Iterator[None]:
    """Says so where the temporary folder is full: it is no fault of the file that is read."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        full = f"the temporary folder {tempfile.gettempdir()!r} is full, and the data do not fit into memory"
        raise OutputError(error.errno, f"{full}; free some space there, or set TMPDIR to a folder with more.") from None


def _torch(X: Any, in_memory: int) -> Table:
    """Items (x, y) of a torch dataset, or batches of them from a loader, read once: into memory, or into a temporary file."""
    import torch
    from torch.utils.data import DataLoader

    X = X if isinstance(X, DataLoader) else DataLoader(X, batch_size=256)
    if X.batch_size is None and X.batch_sampler is None:
        raise DataFileError("the torch loader has batch_size=None, expected batches of rows.")
    file, held, targets, size, kind = None, [], [], 0, None
    with readable("the torch dataset"):
        for batch in X:
            pair = batch if isinstance(batch, (list, tuple)) else [batch]
            if not 1 <= len(pair) <= 2 or not all(hasattr(part, "__array__") or isinstance(part, (list, tuple)) for part in pair):
                raise DataFileError(f"the torch dataset gave a {type(batch).__name__}, expected rows x, or pairs (x, y).")
            x = np.asarray(pair[0].float() if getattr(pair[0], "dtype", None) == torch.bfloat16 else pair[0])
            y = np.asarray(pair[1]) if len(pair) == 2 else np.zeros(len(x))
            x = x.reshape(len(x), -1)
            x = np.ascontiguousarray(x, dtype=x.dtype if x.dtype.kind == "f" else np.float32)
            kind = kind or (x.dtype, x.shape[1])
            if (x.dtype, x.shape[1]) != kind:
                raise DataFileError(f"the torch dataset gave rows of {x.shape[1]} features after rows of {kind[1]}; they need one length.")
            targets.append(y)
            size += x.nbytes
            held.append(x)
            if size > in_memory:
                file = file or _temporary_file()
                with _room():
                    for part in held:
                        file.write(part.tobytes())
                held = []
    if kind is None:
        raise DataFileError("the torch dataset is empty.")
    y = np.concatenate(targets)
    if file is None:
        return ArrayTable({"X": np.concatenate(held), "y": y}, "the torch dataset")
    with _room():
        for part in held:
            file.write(part.tobytes())
        file.flush()
    return ArrayTable({"X": np.memmap(file, kind[0], "r", shape=(len(y), kind[1])), "y": y}, "the torch dataset")
