"""K(A, X) @ v for the same points again and again: what an iterative solver multiplies with."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..kernels import Points
from .product import KernelProduct, by_columns

PANEL = 1 << 22  # numbers of a panel: small enough for a cache, large enough for full speed


class Gram:
    """K(A, X), where A are some rows of X, or all of them: reads like a matrix.

    On a GPU every product evaluates K anew, which is as fast as reading it. On a CPU panels of
    rows are held in float32 as far as `room` bytes go, and the others are evaluated at every
    product. Where A is X, a panel ends at the diagonal and serves both halves.
    """

    def __init__(self, K: KernelProduct, A: Points, X: Points, room: int):
        """`K` evaluates; products are in the dtype of what they multiply."""
        self._K, self._A, self._X = K, A, X
        self._symmetric = A.x.data_ptr() == X.x.data_ptr() and len(A) == len(X)
        self._held: list[Tensor] = []
        if K.device.type == "cpu":
            for rows, stop in self._cut():
                size = 4 * (rows.stop - rows.start) * stop
                if size > room:
                    break
                room -= size
                panel = torch.empty(rows.stop - rows.start, stop, dtype=torch.float32)
                self._held.append(K.dense(A[rows], X[:stop], panel))

    @staticmethod
    def bytes(own: int, n: int) -> int:
        """Of all panels of `own` rows of n."""
        return 2 * n * (n + 1) + 16 * PANEL if own == n else 4 * own * n

    def __matmul__(self, v: Tensor) -> Tensor:
        if self._K.device.type != "cpu":
            return self._K.matmul(self._A, self._X, v)
        v = by_columns(v)
        out = torch.zeros(v.shape[1], len(self._A), dtype=v.dtype).T
        for rows, panel in self._panels(v.dtype):
            out[rows] += panel @ v[: panel.shape[1]]
            if self._symmetric and rows.start:
                out[: rows.start] += panel[:, : rows.start].T @ v[rows]
        return out

    def _panels(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        room = torch.empty(0, dtype=dtype)
        for i, (rows, stop) in enumerate(self._cut()):
            held = self._held[i] if i < len(self._held) else None
            if held is not None and held.dtype == dtype:
                yield rows, held
                continue
            size = (rows.stop - rows.start) * stop
            room = room if len(room) >= size else torch.empty(2 * size, dtype=dtype)
            panel = room[:size].view(-1, stop)
            if held is None:
                yield rows, self._K.dense(self._A[rows], self._X[:stop], panel)
            else:
                yield rows, panel.copy_(held)

    def _cut(self) -> Iterator[tuple[slice, int]]:
        """Rows of a panel, and the column where it ends."""
        start, n = 0, len(self._X)
        while start < len(self._A):
            # A panel of PANEL numbers: where it ends at the diagonal, high·(start + high).
            high = (
                (math.isqrt(start**2 + 4 * PANEL) - start) // 2 if self._symmetric else PANEL // n
            )
            stop = min(start + max(1, high), len(self._A))
            yield slice(start, stop), stop if self._symmetric else n
            start = stop
