"""From what a user gives to a Table: .npy, .npz, HDF5, Parquet, Arrow, CSV, folders of them, memmaps, data frames, torch datasets.

Files are only read. A CSV file that is to be streamed is first turned into Arrow, in a temporary file that has no name and goes with the
process.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataFileError, InputError
from .tables import PIECE_BYTES, ArrayTable, ArrowTable, Joined, Table, even_cuts, readable

SUFFIXES = [".npy", ".npz", ".h5", ".hdf5", ".parquet", ".pq", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz"]
CSV_BLOCK = 16 << 20
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]  # what stands for a missing value in a CSV file
LARGE_MAP = 16 << 20  # bytes from which a memmap is read piece by piece; smaller ones are arrays like others


def is_table(X: Any) -> bool:
    """Whether X is something to be opened, and not an array."""
    large = isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= LARGE_MAP
    return large or isinstance(X, (str, os.PathLike, Table)) or _is_arrow(X) or _is_torch(X) or _is_hdf5(X)


def opened(X: Any, in_memory: int) -> Table:
    """The table that X is or names. Of data that can only be read from front to back, up to `in_memory` bytes are held, more go to a
    temporary file."""
    if isinstance(X, Table):
        return X
    if isinstance(X, (str, os.PathLike)):
        return _path(Path(X), in_memory)
    if _is_arrow(X):
        return _arrow(X)
    if _is_hdf5(X):
        return _hdf5(X, f"the HDF5 group {X.name!r}") if hasattr(X, "keys") else ArrayTable({"X": X}, f"the HDF5 dataset {X.name!r}")
    if _is_torch(X):
        return _torch(X, in_memory)
    if isinstance(X, np.ndarray):
        return ArrayTable({"X": X}, "the array")
    if isinstance(X, dict):
        return ArrayTable({str(name): np.asarray(values) for name, values in X.items()}, "the columns")
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        pa = need("pyarrow")
        with readable("the data frame"):
            table = pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else X.to_arrow()
        return _arrow(table)
    raise InputError(f"a {type(X).__name__} was given as data, expected an array, a table, or the path of a file or folder.")


def need(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(f"this kind of data needs {package}: pip install 'kernelmill[data]'.") from None


def _is_arrow(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "pyarrow"


def _is_hdf5(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "h5py"


def _is_torch(X: Any) -> bool:
    from torch.utils.data import DataLoader, Dataset

    return isinstance(X, (Dataset, DataLoader))


def _path(path: Path, in_memory: int) -> Table:
    where = repr(str(path))
    with readable(where):
        if path.is_dir():
            return _folder(path, in_memory)
        if not path.exists():
            raise FileNotFoundError
        suffix = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
        if suffix == ".npy":
            return ArrayTable({"X": np.load(path, mmap_mode="r", allow_pickle=False)}, where)
        if suffix == ".npz":
            return _npz(path, where)
        if suffix in (".h5", ".hdf5"):
            return _hdf5(need("h5py").File(path, "r"), where)
        if suffix in (".parquet", ".pq"):
            need("pyarrow.dataset")
            return _dataset(need("pyarrow.dataset").dataset(path, format="parquet"), where)
        if suffix in (".arrow", ".feather"):
            return _ipc(need("pyarrow").memory_map(str(path)), where)
        if suffix in (".csv", ".tsv", ".csv.gz", ".tsv.gz"):
            return _csv(path, where, in_memory)
    raise InputError(f"{where} has the ending {suffix!r}, expected one of {', '.join(SUFFIXES)}.")


def _folder(path: Path, in_memory: int) -> Table:
    """All files of a folder, one below the other in the order of their names; folders named like "year=2020" are columns of Parquet."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not any(q.startswith((".", "_")) for q in p.relative_to(path).parts))
    where = repr(str(path))
    if not files:
        raise DataFileError(f"{where} is an empty folder; give one with data files.")
    if all(p.suffix.lower() in (".parquet", ".pq") for p in files):
        return _dataset(need("pyarrow.dataset").dataset([str(p) for p in files], format="parquet", partitioning="hive"), where)
    unknown = [p.name for p in files if not p.name.lower().endswith(tuple(SUFFIXES))]
    if unknown:
        raise DataFileError(f"{where} holds {unknown[0]!r} among its files, expected only {', '.join(SUFFIXES)}; move it elsewhere.")
    return Joined([_path(p, in_memory // len(files)) for p in files], where)


def _npz(path: Path, where: str) -> Table:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if not arrays:
        raise DataFileError(f"{where} holds no arrays.")
    return ArrayTable(arrays, where)


def _hdf5(group: Any, where: str) -> Table:
    arrays = {name: item for name, item in group.items() if hasattr(item, "dtype") and item.ndim in (1, 2) and item.dtype.kind in "fiubOSU"}
    if not arrays:
        raise DataFileError(f"{where} holds no columns or matrices.")
    return ArrayTable(arrays, where)


def _dataset(dataset: Any, where: str) -> ArrowTable:
    schema, blocks = dataset.schema, []
    for fragment in dataset.get_fragments():
        for piece in fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment]:
            rows = piece.row_groups[0].num_rows if getattr(piece, "row_groups", None) else piece.count_rows()
            blocks.append((rows, lambda names, piece=piece: piece.to_table(schema=schema, columns=names)))
    return ArrowTable(schema, blocks, where)


def _ipc(file: Any, where: str) -> ArrowTable:
    pa = need("pyarrow")
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return _arrow(pa.ipc.open_stream(file).read_all())
    schema = reader.schema
    counts = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    blocks = [(n, lambda names, i=i: pa.Table.from_batches([reader.get_batch(i)]).select(names)) for i, n in enumerate(counts)]
    return ArrowTable(schema, blocks, where)


def _arrow(X: Any) -> ArrowTable:
    pa = need("pyarrow")
    if isinstance(X, pa.RecordBatch):
        X = pa.Table.from_batches([X])
    if isinstance(X, pa.Table):
        X = X.unify_dictionaries()
        starts = even_cuts(len(X), max(1, PIECE_BYTES * len(X) // max(1, X.nbytes)))
        blocks = [(b - a, lambda names, a=a, b=b: X.select(names).slice(a, b - a)) for a, b in itertools.pairwise(starts)]
        return ArrowTable(X.schema, blocks, "the Arrow table")
    if hasattr(X, "get_fragments"):
        return _dataset(X, "the Arrow dataset")
    raise InputError(f"a {type(X).__module__}.{type(X).__name__} was given as data, expected a Table, a RecordBatch or a Dataset.")


def _csv(path: Path, where: str, in_memory: int) -> Table:
    """Types are those of the first block; a column that breaks its type later is read again, as numbers and then as text."""
    pa, csv = need("pyarrow"), need("pyarrow.csv")
    delimiter = _delimiter(path)
    types: dict[str, Any] = {}
    held = path.stat().st_size <= in_memory and path.suffix != ".gz"
    for _ in range(10_000):
        convert = csv.ConvertOptions(
            column_types=types, strings_can_be_null=True, null_values=["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
        )
        parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        try:
            reader = csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK), parse, convert)
            names = reader.schema.names
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataFileError(f"{where} has two columns called {twice!r}; rename one.")
            if held:
                return _renamed(_arrow(reader.read_all()), where)
            return _renamed(_ipc(_spooled(reader.schema, reader), where), where)
        except pa.ArrowInvalid as error:
            column = _culprit(str(error), reader.schema.names if "reader" in locals() else [])
            now = types.get(column or "")
            if column is None or now == pa.string():
                raise
            was = reader.schema.field(column).type
            types[column] = pa.string() if now is not None or not (pa.types.is_integer(was) or pa.types.is_null(was)) else pa.float64()
            del reader
    raise DataFileError(f"{where} has columns of no one type.")


def _renamed(table: ArrowTable, where: str) -> ArrowTable:
    table.where = where
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
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the table is)
    with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    file.seek(0)
    return pa.PythonFile(file, "r")


def _torch(X: Any, in_memory: int) -> Table:
    """Items (x, y) of a torch dataset, or batches of them from a loader, read once: into memory, or into a temporary file."""
    from torch.utils.data import DataLoader

    X = X if isinstance(X, DataLoader) else DataLoader(X, batch_size=256)
    file, held, targets, size, kind = None, [], [], 0, None
    with readable("the torch dataset"):
        for batch in X:
            if not isinstance(batch, (list, tuple)) or len(batch) != 2:
                raise DataFileError(f"the torch dataset gave a {type(batch).__name__}, expected pairs (x, y).")
            x, y = (np.asarray(part) for part in batch)
            x = x.reshape(len(x), -1)
            x = np.ascontiguousarray(x, dtype=x.dtype if x.dtype.kind == "f" else np.float32)
            kind = kind or (x.dtype, x.shape[1])
            if (x.dtype, x.shape[1]) != kind:
                raise DataFileError(f"the torch dataset gave rows of {x.shape[1]} features after rows of {kind[1]}; they need one length.")
            targets.append(y)
            size += x.nbytes
            held.append(x)
            if size > in_memory:
                file = file or tempfile.TemporaryFile()  # noqa: SIM115
                for part in held:
                    file.write(part.tobytes())
                held = []
    if kind is None:
        raise DataFileError("the torch dataset is empty.")
    y = np.concatenate(targets)
    if file is None:
        return ArrayTable({"X": np.concatenate(held), "y": y}, "the torch dataset")
    for part in held:
        file.write(part.tobytes())
    file.flush()
    return ArrayTable({"X": np.memmap(file, kind[0], "r", shape=(len(y), kind[1])), "y": y}, "the torch dataset")
