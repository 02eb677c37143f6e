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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import NO_SPACE, DataFileError, InputError, OutputError, needed, warn
from .kinds import Guess, settle
from .prints import Files
from .tables import PIECE_BYTES, ArrayTable, ArrowTable, Joined, Table, even_cuts, readable, unmapped

log = logging.getLogger("kernelmill")

SUFFIXES = [".npy", ".npz", ".h5", ".hdf5", ".parquet", ".pq", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz"]
CSV_BLOCK = 4 << 20
LARGE_MAP = 16 << 20  # bytes from which a memmap is read piece by piece; smaller ones are arrays like others


def is_table(X: Any) -> bool:
    """Whether X is something to be opened, and not an array."""
    large = isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= LARGE_MAP
    return large or isinstance(X, (str, os.PathLike, Table)) or _is_arrow(X) or _is_torch(X) or _is_hdf5(X)


def opened(X: Any, in_memory: int, kinds: Mapping[str, str] | None = None) -> Table:
    """The table that X is or names. Of data that can only be read from front to back, or in large blocks, up to `in_memory` bytes are
    held, more go to a temporary file. `kinds`: of columns, as they will be wanted; a CSV file's texts are then read as such at once."""
    if isinstance(X, Table):
        return X
    if isinstance(X, (str, os.PathLike)):
        return _path(Path(X), in_memory, kinds or {})
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
        return ArrayTable({str(name): _array(values) for name, values in X.items()}, "the columns")
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        pa = need("pyarrow")
        with readable("the data frame"):
            table = _from_pandas(X, pa) if hasattr(X, "iloc") else X.to_arrow()
        return _renamed(_arrow(table, in_memory), "the data frame")
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


def _array(values: Any) -> np.ndarray:
    """A column as an array; a list with texts in it as objects, since numpy would write all others as texts in its own way."""
    mixed = isinstance(values, (list, tuple)) and any(isinstance(value, str) for value in values)
    return np.array([*values, None], dtype=object)[:-1] if mixed else np.asarray(values)


def _from_pandas(X: Any, pa: Any) -> Any:
    """Columns of objects that Arrow knows no one type for become names."""
    mixed = {}
    for place, (name, kind) in enumerate(X.dtypes.items()):
        if str(kind) == "object":
            try:
                pa.array(X.iloc[:, place], from_pandas=True)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                mixed[name] = settle(X.iloc[:, place].to_numpy())[0]
    if mixed:
        X = X.copy(deep=False)
        for name, values in mixed.items():
            X[name] = values
    return pa.Table.from_pandas(X, preserve_index=False)


def _path(path: Path, in_memory: int, kinds: Mapping[str, str]) -> Table:
    where = repr(str(path))
    with readable(where):
        if path.is_dir():
            return _folder(path, in_memory, kinds)
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
            return _csv(path, where, in_memory, kinds)
    raise InputError(f"{where} has the ending {suffix!r}, expected one of {', '.join(SUFFIXES)}.")


def _folder(path: Path, in_memory: int, kinds: Mapping[str, str]) -> Table:
    """All data files of a folder, one below the other in the order of their names; "year=2020" folders are columns of Parquet."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not any(q.startswith((".", "_")) for q in p.relative_to(path).parts))
    known, where = [p for p in files if p.name.lower().endswith(tuple(SUFFIXES))], repr(str(path))
    if not known:
        raise DataFileError(f"{where} is an empty folder, or has no data files; expected some of {', '.join(SUFFIXES)}.")
    if len(known) < len(files):
        log.warning("%s: %d files that are no data are left out", where, len(files) - len(known))
    if all(p.suffix.lower() in (".parquet", ".pq") for p in known):
        return _shards(known, where, in_memory)
    return Joined([_path(p, in_memory // len(known), kinds) for p in known], where)


def _shards(files: list[Path], where: str, in_memory: int) -> Table:
    """Parquet files as one dataset; where their types cannot be united by Arrow, one below the other."""
    pa, dataset = need("pyarrow"), need("pyarrow.dataset")
    join = partial(dataset.dataset, format="parquet", partitioning="hive")
    paths = [str(p) for p in files]
    schemas = [join(paths).schema, *(fragment.physical_schema for fragment in join(paths).get_fragments())]
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return Joined([_dataset(join([p]), repr(p), in_memory) for p in paths], where)
    return _dataset(join(paths, schema=schema), where, in_memory)


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
    usable = {name: a for name, a in arrays.items() if a.ndim in (1, 2) and a.dtype.kind in "fiubmMOSU" and a.size}
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


class _Csv(ArrowTable):
    """A CSV file. What was guessed to be something else is read again where texts are wanted: they are as they are written there."""

    def __init__(self, table: Table, where: str, again: Callable[[Mapping[str, str]], Table]):
        vars(self).update(vars(table))
        self.where, self._again = where, again

    def _of_kinds(self, other: dict[str, str]) -> Table:
        if not any(kind == "text" and self._declared[name] != "text" for name, kind in other.items()):
            return super()._of_kinds(other)
        known = {name: field.kind for name, field in self.fields.items()}
        return self._again({**known, **other}).of_kinds({**known, **other})

    def raw(self, names: list[str]) -> dict[str, Any]:
        if all(self._declared[name] == "text" for name in names):
            return super().raw(names)
        return self._again({**{name: field.kind for name, field in self.fields.items()}, **dict.fromkeys(names, "text")}).raw(names)


def _csv(path: Path, where: str, in_memory: int, kinds: Mapping[str, str]) -> Table:
    """All fields are read as texts, and turned into what they are by now; where a later block changes that, the file is read once more."""
    pa, csv = need("pyarrow"), need("pyarrow.csv")
    delimiter = _delimiter(path)
    parse, read = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True), csv.ReadOptions(block_size=CSV_BLOCK)
    names = csv.open_csv(path, read, parse).schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataFileError(f"{where} has two columns called {twice!r}; rename one.")
    guesses = [Guess(kinds.get(name) == "text", delimiter != ",") for name in names]
    types = dict.fromkeys(names, pa.string())
    held, files = path.stat().st_size <= in_memory and path.suffix != ".gz", Files([path])
    for _ in range(len(names) + 2):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
        try:
            batches = _guessed(csv.open_csv(path, read, parse, convert), guesses)
            first = next(batches, None)
            if first is None:
                return _of(_renamed(_arrow(pa.table({name: pa.nulls(0) for name in names}), in_memory), where), files.seal())
            every = itertools.chain([first], batches)
            file = pa.Table.from_batches(every, first.schema) if held else _spooled(first.schema, every)
        except pa.ArrowInvalid as error:
            files.check()
            column = _culprit(str(error), names)
            if column is None or types[column] != pa.string():
                raise
            types[column], guesses[names.index(column)] = pa.binary(), Guess(text=True)  # not UTF-8
            continue
        if [guess.type for guess in guesses] == [field.type if field.type != pa.binary() else pa.string() for field in first.schema]:
            break
    commas = [name for name, guess in zip(names, guesses, strict=True) if guess.has_commas]
    if commas:
        warn(f"{where}: the numbers in {', '.join(map(repr, commas[:5]))} have decimal commas, and are read so.")
    doubtful = [name for name, guess in zip(names, guesses, strict=True) if guess.doubtful]
    if doubtful:
        text = "look like numbers with commas, and are read as texts: write them with a decimal point and without thousands separators"
        warn(f"{where}: the fields of {', '.join(map(repr, doubtful[:5]))} {text}.")
    table = _arrow(file, in_memory) if held else _ipc(file, where, in_memory)
    files.seal()

    def again(wanted: Mapping[str, str]) -> Table:
        files.unchanged()
        return _csv(path, where, in_memory, wanted)

    return _of(_Csv(table, where, again), files)


def _guessed(reader: Any, guesses: list[Guess]) -> Iterator[Any]:
    """Batches as the guesses have it after the first. The others still narrow the guesses, but are not given where a type has changed."""
    pa, types = need("pyarrow"), None
    for batch in reader:
        columns = [guess.take(column) for guess, column in zip(guesses, batch.columns, strict=True)]
        found = [column.type for column in columns]
        types = types or found
        if found == types:
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _renamed(table: Table, where: str) -> Table:
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
