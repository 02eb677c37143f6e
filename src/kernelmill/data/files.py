"""What readers of files share: packages they need, and temporary files without a name, which go
with the process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

from ..errors import NO_SPACE, OutputError, require_package

if TYPE_CHECKING:
    import pyarrow as pa

COPY_BYTES = 4 << 20  # of a file that are copied at a time


def need(package: str) -> ModuleType:
    """A package of the extra "data"."""
    return require_package(package, "data")


def suffix_of(path: Path) -> str:
    """The ending of a file's name in small letters, with what stands before a .gz."""
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix == ".gz" else suffix


def spool(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.NativeFile:
    """Record batches written to a temporary file, opened for reading."""
    pa = need("pyarrow")
    file = temporary_file()
    with room(), pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return _open_again(file)


def spool_bytes(path: Path) -> pa.NativeFile:
    """A file's bytes in a temporary file, opened for reading."""
    file = temporary_file()
    with open(path, "rb") as given, room():
        shutil.copyfileobj(given, file, COPY_BYTES)
    return _open_again(file)


def _open_again(file: IO[bytes]) -> pa.NativeFile:
    pa = need("pyarrow")
    with room():
        file.flush()
    try:  # mapped, a column is read without the others
        return pa.memory_map(f"/proc/self/fd/{file.fileno()}")
    except OSError:
        file.seek(0)
        return pa.PythonFile(file, "r")


def temporary_file() -> IO[bytes]:
    """A file without a name, there as long as it is open."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        why = (
            f"no temporary file can be made ({error.strerror}); set TMPDIR to a folder with space."
        )
        raise OutputError(error.errno, why) from None


@contextmanager
def room() -> Iterator[None]:
    """Say so where the temporary folder is full: it is no fault of the file that is read."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        full = f"the temporary folder {tempfile.gettempdir()!r} is full"
        raise OutputError(
            error.errno,
            f"{full}, and the data do not fit into memory; free some space there, or set TMPDIR to"
            " a folder with more.",
        ) from None
