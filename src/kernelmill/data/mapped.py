"""Memory maps whose rows are read from their files instead: a mapped file that shrinks ends the
process (SIGBUS)."""

from __future__ import annotations

import math
import os
from io import FileIO

import numpy as np

from ..errors import DataFileError


class FileRows:
    """A .npy file's rows, or another file's that numpy could map. They are read: a mapped file that
    shrinks ends the process (SIGBUS)."""

    def __init__(self, path: str | os.PathLike, mapped: np.ndarray, offset: int):
        self.path, self._offset = os.path.abspath(path), offset
        self.shape, self.dtype, self.ndim = mapped.shape, mapped.dtype, mapped.ndim
        self._by_columns = mapped.ndim == 2 and not mapped.flags.c_contiguous

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        count, width = max(0, stop - start), math.prod(self.shape[1:])
        out = np.empty((count, *self.shape[1:]), self.dtype, order="F" if self._by_columns else "C")
        # Opened each time: a folder may have more shards than a process open files.
        with open(self.path, "rb", buffering=0) as file:
            if not self._by_columns:
                self._fill(file, out, start * width)
            for j in range(width if self._by_columns else 0):
                self._fill(file, out[:, j], j * len(self) + start)
        return out

    def _fill(self, file: FileIO, out: np.ndarray, first: int) -> None:
        """With the values from number `first` on."""
        if not out.size:
            return
        room = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        at = self._offset + first * self.dtype.itemsize
        while len(room):
            file.seek(at)
            read = file.readinto(room)
            if not read:
                raise DataFileError(
                    f"{self.path!r} ends before its last row; it is damaged, or was cut while it"
                    " was read."
                )
            room, at = room[read:], at + read


def unmapped(X: np.memmap) -> FileRows | np.memmap:
    """A memmap's rows as they stand in its file, where that can be read; X itself where not (a copy
    on write, columns of a matrix)."""
    root: np.ndarray = X
    while isinstance(root.base, np.ndarray):
        root = root.base
    contiguous = X.flags.c_contiguous or (X is root and X.flags.f_contiguous)
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":
        return X
    if not contiguous:
        return X
    address = X.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return FileRows(root.filename, X, root.offset + address)
