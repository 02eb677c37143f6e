"""Arrays of numpy's in files: .npy and memory maps, which are read piece by piece, and .npz."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from ...errors import DataFileError
from ..files import suffix_of
from ..mapped import unmapped
from ..prints import Files
from ..tables import ArrayTable, Table, readable
from .base import Format, Kinds, Peek

if TYPE_CHECKING:
    import h5py

log = logging.getLogger("kernelmill")

LARGE_MAP = 16 << 20  # bytes from which a memmap is read piece by piece; smaller ones are arrays

Shape = tuple[int, ...]
Held = TypeVar("Held", bound="np.ndarray | h5py.Dataset")


def _open(X: Path | np.ndarray, limit: int, kinds: Kinds) -> Table:
    if not isinstance(X, Path):
        return table_of_array(X)
    where = repr(str(X))
    if suffix_of(X) == ".npy":
        return ArrayTable({"X": unmapped(np.load(X, mmap_mode="r", allow_pickle=False))}, where)
    files = Files([X])
    with readable(where, files), np.load(X, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    table = ArrayTable(fitting(arrays, where), where)
    table.files = files.seal()
    return table


def table_of_array(X: np.ndarray) -> Table:
    return ArrayTable({"X": unmapped(X) if isinstance(X, np.memmap) else X}, "the array")


def fitting(arrays: dict[str, Held], where: str) -> dict[str, Held]:
    """Those that are columns or matrices of as many rows as the largest has; others are left out,
    and said."""
    usable = {
        name: a
        for name, a in arrays.items()
        if a.ndim in (1, 2) and a.dtype.kind in "fiubmMOSU" and a.size
    }
    if not usable:
        raise DataFileError(f"{where} holds no columns or matrices.")
    rows = len(max(usable.values(), key=lambda a: a.size))
    found = {name: a for name, a in usable.items() if len(a) == rows}
    if len(found) < len(arrays):
        others = ", ".join(sorted({*arrays} - {*found}))
        log.warning("%s: %s left out, without %d rows", where, others, rows)
    return found


def _is_large_map(X: object) -> bool:
    return isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= LARGE_MAP


def _peek(X: Path | np.ndarray) -> Peek:
    if not isinstance(X, Path):
        return peek_shapes([X.shape])
    if suffix_of(X) == ".npz":
        return peek_shapes([shape for _, shape in npz_shapes(X)])
    with open(X, "rb") as file:
        return peek_shapes([_header(file)])


def peek_shapes(shapes: list[Shape]) -> Peek:
    """Of arrays one beside the other: the rows of the largest, the columns of all that have
    them."""
    width = {shape: shape[1] if len(shape) > 1 else 1 for shape in shapes if shape}
    rows = max(width, key=lambda shape: shape[0] * width[shape])[0]
    return Peek(rows, sum(width[shape] for shape in shapes if shape and shape[0] == rows))


def npz_shapes(path: Path) -> list[tuple[str, Shape]]:
    """(name, shape) of the arrays in it."""
    out = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                out.append((name.removesuffix(".npy"), _header(file)))
    return out


def _header(file: IO[bytes]) -> Shape:
    from numpy.lib import format as npy

    first = npy.read_magic(file) == (1, 0)
    return (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(file)[0]


FORMAT = Format("numpy", _open, _peek, (".npy", ".npz"), takes=_is_large_map)
