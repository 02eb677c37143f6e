"""The order in which streamed rows are visited: pieces of the file in random order, a window of
them at a time, its rows mixed.

A full permutation would read the file row by row from everywhere. Here every piece is read once an
epoch, and two rows that lie close together in the file are as likely as others to be apart in the
order, up to the size of a window.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

Pieces = list[tuple[int, int]]


def windows(
    cuts: list[int], keep: Tensor | None, window_rows: int, generator: torch.Generator | None
) -> Iterator[tuple[Pieces, Tensor]]:
    """For each window its pieces, as ranges of file rows, and the numbers of its rows among the
    kept, in the order of their visit.

    `keep`: the file rows that count, rising; None for all. Without a generator: the file's own
    order.
    """
    edges = torch.tensor(cuts)
    # Number, among the kept, of the first row of each piece.
    first = edges if keep is None else torch.searchsorted(keep, edges)
    pieces = len(cuts) - 1
    order = (
        torch.arange(pieces) if generator is None else torch.randperm(pieces, generator=generator)
    )
    window: list[int] = []
    size = 0
    for k, i in enumerate(order.tolist()):
        window.append(i)
        size += int(first[i + 1] - first[i])
        if size < window_rows and k < pieces - 1:
            continue
        if size:
            rows = torch.cat([torch.arange(int(first[i]), int(first[i + 1])) for i in window])
            if generator is not None:
                rows = rows[torch.randperm(len(rows), generator=generator)]
            yield [(cuts[i], cuts[i + 1]) for i in window if first[i + 1] > first[i]], rows
        window, size = [], 0
