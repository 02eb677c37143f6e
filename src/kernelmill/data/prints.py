"""Fingerprints: whether data is still what it was.

Arrays are summed whole: a CRC of every 16 MiB, so that the order counts too (4 GB/s a core). Files
are known by their size and their bytes: all of them up to 256 MiB in a table, of more 1,024 blocks
evenly spread over it, first and last of every file, and the footers of Parquet and Arrow, which
hold the offset and size of every block. A time alone proves nothing: a copy of the same bytes is
the same file. Where a file has another time and only blocks of it were compared, it is taken for
the same, with a warning.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataFileError, warn

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 16 << 20  # bytes of one CRC
WHOLE = 256 << 20  # bytes of files that are read to the last one
BLOCK, BLOCKS = 64 << 10, 1024  # of larger ones
# How a file ends, and how many bytes before its end the footer's length stands.
FOOTERS = ((b"PAR1", 8), (b"ARROW1", 10))
THREADS = min(4, os.cpu_count() or 1)

# Of each file: what it holds, its time where only blocks of it were read, and its path.
Account = list[list[str]]


def checksum(*parts: Tensor) -> str:
    """Of all values, their types, shapes and order."""
    return digest([f"{part.dtype} {tuple(part.shape)} {_crcs(part)}" for part in parts])


def digest(sums: Sequence[str | int]) -> str:
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


def _crcs(values: Tensor) -> list[int]:
    import torch  # here, since a first look at a file is to come before torch

    chunks = values.detach().contiguous().reshape(-1).view(torch.uint8).split(CHUNK)
    if len(chunks) == 1:
        return [_crc(chunks[0])]
    with ThreadPoolExecutor(THREADS) as pool:  # zlib works without Python's lock
        return list(pool.map(_crc, chunks))


def _crc(values: Tensor) -> int:
    return zlib.crc32(values.cpu().numpy())  # type: ignore[arg-type]


class Files:
    """The files that a table lies in, as they were when it was opened; none for a table in memory.

    `sealed`: all was read at once, and what becomes of them later does not matter.
    """

    def __init__(self, paths: Iterable[str | os.PathLike] = (), sealed: bool = False):
        self.paths = [Path(os.path.abspath(path)) for path in paths]
        self._stamps = [_stamp(path) for path in self.paths]
        self._marks: list[str] = []
        self.sealed = sealed

    def __add__(self, other: Files) -> Files:
        both = Files(sealed=all(part.sealed for part in (self, other) if part.paths))
        both.paths, both._stamps = self.paths + other.paths, self._stamps + other._stamps
        return both

    def seal(self) -> Files:
        """All was read: raise if they changed meanwhile; what becomes of them from now on does not
        matter.
        """
        self.check()
        self.sealed = True
        return self

    def mark(self) -> None:
        """Note what they hold, so that another time alone is no change."""
        if not self._marks:
            self._marks = [self._mark(i) for i in range(len(self.paths))]
            self.unchanged()  # the marks are of what was opened

    def unchanged(self) -> None:
        """The same check for files that were read whole, and are now read again."""
        sealed, self.sealed = self.sealed, False
        try:
            self.check()
        finally:
            self.sealed = sealed

    def account(self) -> Account:
        """What another process, or a later one, must find to have the same files."""
        self.mark()
        return [
            [f"{size} bytes, checksum {mark}", "" if self._whole() else str(time), str(path)]
            for path, (size, time, _), mark in zip(
                self.paths, self._stamps, self._marks, strict=True
            )
        ]

    def check(self) -> None:
        """Raise if one of them is no longer what it was when it was opened."""
        if self.sealed:
            return
        for i, (path, before) in enumerate(zip(self.paths, self._stamps, strict=True)):
            now = _stamp(path)
            if now == before:
                continue
            how = "was removed" if now == GONE else "changed"
            if now[0] != before[0] or not self._marks or self._mark(i) != self._marks[i]:
                raise DataFileError(
                    f"{str(path)!r} {how} while it was read; the fit is not valid: start again, and"
                    " leave the file alone until it ends."
                )
            if not self._whole():
                warn_of_copy(path)
            self._stamps[i] = now

    def _whole(self) -> bool:
        return sum(size for size, _, _ in self._stamps) <= WHOLE

    def _mark(self, i: int) -> str:
        size = self._stamps[i][0]
        total = sum(each for each, _, _ in self._stamps)
        blocks = None if self._whole() else max(3, BLOCKS * size // total)
        try:
            with open(self.paths[i], "rb", buffering=0) as file:
                sums = [zlib.crc32(part) for part in _parts(file, size, blocks)]
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return digest(sums)


GONE = (-1, 0, 0)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, time of the last change, and number of a file."""
    try:
        found = os.stat(path)
    except OSError:
        return GONE
    return found.st_size, found.st_mtime_ns, found.st_ino


def _parts(file: FileIO, size: int, blocks: int | None) -> Iterator[bytes]:
    """All bytes of a file, or so many blocks of it and its footer."""
    if blocks is None or size <= blocks * BLOCK:
        yield from (_read_at(file, CHUNK, at) for at in range(0, size, CHUNK))
        return
    last = size - BLOCK
    yield from (_read_at(file, BLOCK, last * k // (blocks - 1)) for k in range(blocks))
    for magic, back in FOOTERS:
        end = _read_at(file, back, max(0, size - back))
        if end.endswith(magic):
            length = min(size, back + struct.unpack("<I", end[:4])[0])
            yield from (
                _read_at(file, min(CHUNK, size - at), at)
                for at in range(size - length, size, CHUNK)
            )


def _read_at(file: FileIO, count: int, at: int) -> bytes:
    file.seek(at)
    return file.read(count)


def warn_of_copy(path: Path | str) -> None:
    warn(
        f"{str(path)!r} has a new modification time, but the same size and sampled blocks: it is"
        " taken for the same file."
    )
