"""From what a user gives to a Table. A format is a file of this folder and an entry of FORMATS.

Files are only read. What must be turned into another form to be streamed is written to a temporary
file that has no name and goes with the process.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..remote import fetch, is_url
from ..tables import Table
from . import arrow, csv, folder, frame, hdf5, npy, parquet, sparse, torch
from .base import Format, Kinds, Peek, choose, open_path

FILES = (
    csv.FORMAT,
    parquet.FORMAT,
    arrow.FORMAT,
    npy.FORMAT,
    hdf5.FORMAT,
    torch.FORMAT,
    sparse.FORMAT,
    frame.FORMAT,
)
FORMATS = (folder.folders_of(FILES), *FILES)  # asked in this order: a folder may have any ending


def is_table(X: object) -> bool:
    """Whether X is something to be opened, and not an array."""
    if isinstance(X, (str, os.PathLike, Table)):
        return True
    return any(format.accepts(X) for format in FORMATS if not format.arrays)


def opened(X: object, in_memory: int, kinds: Kinds | None = None) -> Table:
    """The table that X is or names. Of data that can only be read from front to back, or in large
    blocks, up to `in_memory` bytes are held, more go to a temporary file. `kinds`: of columns, as
    they will be wanted; a CSV file's texts are then read as such at once."""
    if isinstance(X, Table):
        return X
    if not isinstance(X, (str, os.PathLike)):
        return choose(FORMATS, X).open(X, in_memory, kinds or {})
    if not is_url(X):
        return open_path(FORMATS, Path(X), in_memory, kinds or {})
    copy = fetch(X)
    table = open_path(FORMATS, copy.path, in_memory, kinds or {})
    table.where, table.copied = repr(copy.url), copy
    return table


def peek(X: object) -> Peek:
    """The size of what X is or names, without reading it."""
    X = Path(X) if isinstance(X, (str, os.PathLike)) else X
    return choose(FORMATS, X).peek(X)


__all__ = ["FORMATS", "Format", "Kinds", "Peek", "is_table", "opened", "peek"]
