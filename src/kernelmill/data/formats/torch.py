"""Datasets and loaders of torch, read once: into memory, or into a temporary file."""

from __future__ import annotations

import sys
from collections.abc import Sized
from typing import IO, TYPE_CHECKING

import numpy as np

from ...errors import DataFileError
from ..files import room, temporary_file
from ..tables import ArrayTable, Table, readable
from .base import Format, Kinds, Peek

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

WHERE = "the torch dataset"


def shuffled(X: object) -> bool:
    """Whether a torch loader gives its rows in another order than its dataset's, or not all."""
    from torch.utils.data import DataLoader, RandomSampler

    if not isinstance(X, DataLoader):
        return False
    return isinstance(X.sampler, RandomSampler) or bool(X.drop_last)


class _Rows:
    """Rows that are added batch by batch: in memory up to a limit, then in a temporary file."""

    def __init__(self, limit: int):
        self._limit = limit
        self._held: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._kind: tuple[np.dtype, int] | None = None
        self._n = self._size = 0

    def add(self, x: np.ndarray) -> None:
        x = x.reshape(len(x), -1)
        x = np.ascontiguousarray(x, dtype=x.dtype if x.dtype.kind == "f" else np.float32)
        kind = x.dtype, x.shape[1]
        self._kind = self._kind or kind
        if kind != self._kind:
            raise DataFileError(
                f"{WHERE} gave rows of {x.shape[1]} features after rows of {self._kind[1]}; all"
                " need the same length."
            )
        self._n += len(x)
        self._size += x.nbytes
        self._held.append(x)
        if self._size > self._limit:
            self._write()

    def _write(self) -> None:
        self._file = self._file or temporary_file()
        with room():
            for part in self._held:
                self._file.write(part.tobytes())
        self._held = []

    def matrix(self) -> np.ndarray:
        if self._file is None or self._kind is None:
            return np.concatenate(self._held)
        self._write()
        with room():
            self._file.flush()
        dtype, width = self._kind
        return np.memmap(self._file, dtype, "r", shape=(self._n, width))


def _open(X: Dataset | DataLoader, limit: int, kinds: Kinds) -> Table:
    """Items (x, y) of a dataset, or batches of them from a loader."""
    from torch.utils.data import DataLoader

    loader = X if isinstance(X, DataLoader) else DataLoader(X, batch_size=256)
    if loader.batch_size is None and loader.batch_sampler is None:
        raise DataFileError("the torch loader has batch_size=None, expected batches of rows.")
    rows, targets = _Rows(limit), []
    with readable(WHERE):
        for batch in loader:
            x, y = _pair(batch)
            rows.add(x)
            targets.append(y)
    if not targets:
        raise DataFileError(f"{WHERE} is empty.")
    return ArrayTable({"X": rows.matrix(), "y": np.concatenate(targets)}, WHERE)


def _pair(batch: object) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their targets, which are 0 where there are none."""
    import torch

    pair = batch if isinstance(batch, (list, tuple)) else [batch]
    usable = all(hasattr(part, "__array__") or isinstance(part, (list, tuple)) for part in pair)
    if not 1 <= len(pair) <= 2 or not usable:
        given = type(batch).__name__
        raise DataFileError(f"{WHERE} gave a {given}, expected rows x, or pairs (x, y).")
    rows = pair[0]
    if isinstance(rows, torch.Tensor) and rows.dtype == torch.bfloat16:  # unknown to numpy
        rows = rows.float()
    x = np.asarray(rows)
    return x, np.asarray(pair[1]) if len(pair) == 2 else np.zeros(len(x))


def _is_torch(X: object) -> bool:
    data = sys.modules.get("torch.utils.data")  # where it is not loaded, X is none of its objects
    return data is not None and isinstance(X, (data.Dataset, data.DataLoader))


def _peek(X: Dataset | DataLoader) -> Peek:
    rows = getattr(X, "dataset", X)
    return Peek(len(rows) if isinstance(rows, Sized) else None)


FORMAT = Format("torch", _open, _peek, takes=_is_torch)
