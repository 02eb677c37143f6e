"""Rows that stay in their files, as numbers: a table seen through an encoder."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from .encoder import Encoder
from .order import Pieces
from .prints import Account, checksum, digest
from .tables import Table

# Threads that read and decode pieces of a window; the order of rows does not depend on them.
WORKERS = min(4, os.cpu_count() or 1)


class Stream:
    """(n, d) features that are read when asked for.

    `window_rows` are held in memory while they are visited.

    `held_out` marks rows that the encoder was not fitted on: their categories are encoded as those
    of new data.
    """

    is_cuda = False
    device = torch.device("cpu")

    def __init__(
        self,
        table: Table,
        encoder: Encoder,
        window_bytes: int,
        held_out: np.ndarray | None = None,
        workers: int = WORKERS,
    ):
        self.table, self.encoder, self._held_out, self._workers = table, encoder, held_out, workers
        self._pool: ThreadPoolExecutor | None = (
            None  # threads are started once: short of memory, a later one might not start
        )
        self.dtype = torch.from_numpy(np.empty(0, encoder.dtype)).dtype
        self.shape = (table.n, encoder.d)
        row_bytes = max(1, encoder.d * self.dtype.itemsize)
        self.window_rows = max(1, window_bytes // row_bytes)
        self.nbytes, self.window_bytes = table.n * row_bytes, self.window_rows * row_bytes
        self.cuts = merge_cuts(table.cuts, max(1, self.window_rows // 32))

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> np.ndarray:
        out = None if self._held_out is None else self._held_out[start:stop]
        return self.encoder.encode(self.table, start, stop, training=True, held_out=out)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """A range of rows, or any rows: each piece that holds some is read once."""
        if isinstance(rows, slice):
            found = torch.tensor(self.read(*rows.indices(len(self))[:2]))
            self.table.files.check()
            return found
        places = torch.unique(
            torch.searchsorted(torch.tensor(self.cuts), rows, right=True) - 1
        ).tolist()
        return self.gathered([(self.cuts[i], self.cuts[i + 1]) for i in places], rows)

    def gathered(self, pieces: Pieces, rows: Tensor) -> Tensor:
        """These rows, all of them in the pieces, in their own order: read by several threads, put
        in their places as they come. None is given away before the files are known to be still what
        they were: nothing is computed, or written, from others.
        """
        out = np.empty((len(rows), self.shape[1]), self.encoder.dtype)
        at = rows.numpy()
        order = np.argsort(at, kind="stable")
        sorted_rows = at[order]

        def place(piece: tuple[int, int]) -> None:
            a, b = np.searchsorted(sorted_rows, piece)
            if b > a:
                out[order[a:b]] = self.read(*piece)[sorted_rows[a:b] - piece[0]]

        if len(pieces) == 1 or self._workers == 1:
            for piece in pieces:
                place(piece)
        else:
            self._pool = self._pool or ThreadPoolExecutor(self._workers)
            list(self._pool.map(place, pieces))
        self.table.files.check()
        return torch.from_numpy(out)

    def account(self) -> Account | str:
        """What its files hold; of a table in memory, a checksum of all rows."""
        if self.table.files.paths:
            return self.table.files.account()
        return digest([checksum(self[a:b]) for a, b in itertools.pairwise(self.cuts)])

    def whole(self) -> Tensor:
        """All rows, in memory."""
        return self.gathered(list(itertools.pairwise(self.cuts)), torch.arange(len(self)))


def merge_cuts(cuts: list[int], rows: int) -> list[int]:
    """Cuts at least `rows` apart where those given are closer: a piece is worth a call."""
    kept = [0]
    for cut in cuts[1:]:
        if cut - kept[-1] >= rows:
            kept.append(cut)
    if cuts[-1] > kept[-1]:
        kept.append(cuts[-1])
    return kept
