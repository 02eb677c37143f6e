"""Kernel products without holding K: K(A, B) @ v and K(A, B)ᵀ @ g in row tiles sized from a byte budget. The one place that does so."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .kernels import Kernel, Points, shrunk_norms


class KernelProduct:
    """A kernel bound to a precision, a device and a tile size.

    `origin` is a row near the data (the mean of the centers): translation-invariant kernels measure from it, which keeps
    float32 distances accurate when columns have large offsets.
    """

    def __init__(self, kernel: Kernel, origin: Tensor, dtype: torch.dtype, device: torch.device, tile_bytes: int):
        self.kernel, self.dtype, self.device, self.tile_bytes = kernel, dtype, device, tile_bytes
        self._embed = kernel.embedding(origin, dtype)

    def points(self, X: Tensor) -> Points:
        """Rows of X as the kernel sees them, on the device."""
        return self._embed(X.to(self.device))

    def tiles(self, rows: int, cols: int) -> Iterator[slice]:
        """Row slices whose block against `cols` columns fits the tile budget."""
        step = max(1, self.tile_bytes // max(1, cols * torch.finfo(self.dtype).bits // 8))
        return (slice(i, min(i + step, rows)) for i in range(0, rows, step))

    def dense(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        """K(A, B), held: r·t numbers, for blocks that the plan has room for."""
        if out is None:
            out = torch.empty(len(A), len(B), dtype=A.x.dtype, device=A.x.device)
        for rows in self.tiles(len(A), len(B)):
            self.kernel.evaluate(A[rows], B, out=out[rows])
        return out

    def dense64(self, A: Points, B: Points) -> Tensor:
        """K(A, B) in float64 of the same, already rounded, features: what an eigensystem or a factor is taken of."""
        return self.kernel.evaluate(self._wide(A), self._wide(B))

    def _wide(self, A: Points) -> Points:
        if A.x.dtype == torch.float64:
            return A
        x = A.x.double()
        return Points(x, shrunk_norms(x))

    def block(self, A: Points, B: Points, keep: bool, out: Tensor | None = None) -> Tensor | Recomputed:
        """K(A, B) to be used twice: held when `keep`, else an object of the same manners that evaluates it at every use."""
        return self.dense(A, B, out) if keep else Recomputed(self, A, B)

    def matmul(self, A: Points, B: Points, v: Tensor) -> Tensor:
        """K(A, B) @ v."""
        out = torch.zeros(len(A), v.shape[1], dtype=v.dtype, device=v.device)
        if len(B):
            for rows, tile in self._tiles_evaluated(A, B):
                torch.mm(tile, v, out=out[rows])
        return out

    def rmatmul(self, A: Points, B: Points, g: Tensor) -> Tensor:
        """K(A, B)ᵀ @ g."""
        out = torch.zeros(len(B), g.shape[1], dtype=g.dtype, device=g.device)
        for rows, tile in self._tiles_evaluated(A, B):
            out.addmm_(tile.T, g[rows])
        return out

    def _tiles_evaluated(self, A: Points, B: Points) -> Iterator[tuple[slice, Tensor]]:
        """K(A, B) tile after tile in one buffer: fresh memory for every tile would cost as much as its exponentials."""
        slices = list(self.tiles(len(A), len(B)))
        largest = max((rows.stop - rows.start for rows in slices), default=0)
        buffer = torch.empty(largest, len(B), dtype=A.x.dtype, device=A.x.device)
        for rows in slices:
            yield rows, self.kernel.evaluate(A[rows], B, out=buffer[: rows.stop - rows.start])

    def diagonal(self, A: Points) -> Tensor:
        return self.kernel.diagonal(A)


class Recomputed:
    """K(A, B) that is never held: reads like a matrix (`K @ v`, `K.T @ g`, `K[:, cols]`), costs an evaluation at each use."""

    def __init__(self, K: KernelProduct, A: Points, B: Points, transposed: bool = False):
        self._K, self._A, self._B, self._transposed = K, A, B, transposed

    @property
    def T(self) -> Recomputed:
        return Recomputed(self._K, self._A, self._B, not self._transposed)

    def __matmul__(self, v: Tensor) -> Tensor:
        product = self._K.rmatmul if self._transposed else self._K.matmul
        return product(self._A, self._B, v)

    def __getitem__(self, key: tuple[slice, slice]) -> Tensor:
        rows, cols = key
        return self._K.dense(self._A[rows], self._B[cols])
