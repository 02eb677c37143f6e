"""HDF5 files, groups and datasets of h5py's; the arrays of a group are matrices and columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import need
from ..prints import Files
from ..tables import ArrayTable, Table
from .base import Format, Kinds, Peek, is_of
from .npy import fitting, peek_shapes

if TYPE_CHECKING:
    import h5py


def _open(X: Path | h5py.Group | h5py.Dataset, limit: int, kinds: Kinds) -> Table:
    if isinstance(X, Path):
        where, X = repr(str(X)), need("h5py").File(X, "r")
    elif hasattr(X, "keys"):
        where = f"the HDF5 group {X.name!r}"
    else:
        where = f"the HDF5 dataset {X.name!r}"
    table = ArrayTable(fitting(_arrays(X), where) if hasattr(X, "keys") else {"X": X}, where)
    path = X.file.filename
    table.files = Files([path] if os.path.isfile(path) else [])
    return table


def _arrays(group: h5py.Group) -> dict[str, h5py.Dataset]:
    return {name: item for name, item in group.items() if hasattr(item, "dtype")}


def _is_hdf5(X: object) -> bool:
    return is_of(X, "h5py")


def _peek(X: Path | h5py.Group | h5py.Dataset) -> Peek:
    if isinstance(X, Path):
        with need("h5py").File(X, "r") as file:
            return _peek(file)
    arrays = _arrays(X).values() if hasattr(X, "keys") else [X]
    return peek_shapes([array.shape for array in arrays])


FORMAT = Format("HDF5", _open, _peek, (".h5", ".hdf5"), takes=_is_hdf5)
