"""Sparse matrices of scipy's: rows become dense where they are read, some at a time."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, issparse, sparray, spmatrix

from ..tables import ArrayTable, Table
from .base import Format, Kinds, Peek
from .npy import peek_shapes


class SparseRows:
    """A sparse matrix as the array that it stands for, of which only slices of rows are made."""

    ndim = 2

    def __init__(self, X: spmatrix | sparray):
        # Integers and booleans are counts and flags: exact in float32, or else in float64.
        kind = X.dtype.kind
        small = kind == "b" or (kind in "iu" and X.dtype.itemsize <= 2)
        whole = np.float32 if small else np.float64
        self._rows = csr_array(X if kind == "f" else X.astype(whole))

    @property
    def dtype(self) -> np.dtype:
        return self._rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._rows.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> np.ndarray:
        return self._rows[rows].toarray()


def _open(X: spmatrix | sparray, limit: int, kinds: Kinds) -> Table:
    return ArrayTable({"X": SparseRows(X)}, "the sparse matrix")


def _peek(X: spmatrix | sparray) -> Peek:
    return peek_shapes([X.shape])


FORMAT = Format("sparse matrices", _open, _peek, takes=issparse)
