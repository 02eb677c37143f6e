"""What a batch meets at the centers: this rank's part of them, and sums over the parts of all
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..data import Batch
from ..distributed.team import Communicator, by_tiles, count, is_alone, own_rows, shard
from ..kernels import Points
from ..ops import Block, KernelProduct, transposed_product
from ..preconditioner import diagonal
from .eigenpro_setup import Setup


@dataclass
class Temporary:
    """Z_tmp and α_tmp: this rank's share of the rows seen since the last projection, in buffers
    made once; and memory for K(X_m, Z).
    """

    x: Tensor
    sq: Tensor
    weights: Tensor
    memory: Tensor | None
    # (s, c) weights of the subsample, where it is not among the centers.
    alpha_s: Tensor | None = None
    used: int = 0

    def append(self, X: Points, weights: Tensor) -> None:
        rows = slice(self.used, self.used + len(X))
        self.x[rows], self.sq[rows], self.weights[rows] = X.x, X.sq, weights
        self.used += len(X)

    @property
    def points(self) -> Points:
        return Points(self.x[: self.used], self.sq[: self.used])

    @property
    def alpha(self) -> Tensor:
        return self.weights[: self.used]


class Shards:
    """The centers of all ranks, of which this one has some rows.

    Of the s rows of the subsample it has the first `s` of its own.
    """

    def __init__(self, setup: Setup, comm: Communicator):
        self.setup, self.K, self.Z, self._comm, self.mine = (
            setup,
            setup.K,
            setup.Z,
            comm,
            shard(comm),
        )
        self.s, self.F, self.KF = (
            count(comm, len(setup.X_s)),
            setup.F[self.mine],
            setup.pre.KF[self.mine],
        )

    def temporary(self) -> Temporary:
        """Room for the rows of one cycle."""
        plan, x, sq = self.setup.plan, self.Z.x, self.Z.sq
        room = (plan.T or 1) * -(-(plan.m or 1) // self._comm.size)
        memory = self.K.room(plan.m or 1, len(self.Z), passing=True) if plan.keep_block else None
        weights = torch.empty(room, plan.c, dtype=self.K.dtype, device=self.K.device)
        return Temporary(x.new_empty(room, x.shape[1]), sq.new_empty(room), weights, memory)

    def rows(self, batch: Batch) -> tuple[Points, Tensor, Tensor]:
        """Features, targets and weights of a batch, on the device."""
        device, dtype = self.K.device, self.K.dtype
        return self.K.points(batch.X), batch.Y.to(device, dtype), batch.w.to(device, dtype)[:, None]

    def block(self, X: Points, tmp: Temporary) -> Blocks:
        return Blocks(self.K, X, self.Z, tmp.memory)

    def predict(
        self, K_mZ: Blocks, alpha: Tensor, tmp: Temporary, last: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of a batch: its predictions, k, and what `last` sums up to, where each rank has zeros
        for the rows of others.
        """
        summed = by_tiles(self._comm, len(K_mZ.X), partial(self._shares, K_mZ, alpha, tmp, last))
        c = alpha.shape[1]
        return summed[:, :c], summed[:, c], summed[:, c + 1 :]

    def _shares(
        self, K_mZ: Blocks, alpha: Tensor, tmp: Temporary, last: Tensor | None, rows: slice
    ) -> Tensor:
        """This rank's part of what is summed; k of every size-th row."""
        x, block, X_s = K_mZ.X[rows], K_mZ.add(rows), self.setup.X_s
        f = block @ alpha + self.K.matmul(x, tmp.points, tmp.alpha)
        K_own = block[:, : len(X_s)] if is_alone(self._comm) else self.K.dense(x[self.mine], X_s)
        k = f.new_zeros(len(x), 1)
        F = self.setup.F_rough
        k[self.mine, 0] = diagonal(self.K, x[self.mine], K_own.to(F.dtype) @ F)
        return torch.cat([f, k, *([] if last is None else [last[rows]])], 1)

    def sum(self, part: Tensor) -> Tensor:
        return self._comm.all_sum(part)

    def mean(self, *numbers: Tensor) -> list[float]:
        """Of numbers that are the same on each rank but for rounding, so that all decide alike."""
        return (self._comm.all_sum(torch.stack(numbers)) / self._comm.size).tolist()

    def has(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows of the data: which of them this rank keeps, and where."""
        mine, place = own_rows(self._comm, rows)
        return mine[:, None], place

    @property
    def alone(self) -> bool:
        return is_alone(self._comm)


class Blocks:
    """K(X_m, Z), evaluated some rows at a time in memory that every batch uses again; then
    multiplied once more.
    """

    def __init__(self, K: KernelProduct, X: Points, Z: Points, memory: Tensor | None):
        self.X, self.K, self._Z, self._memory = X, K, Z, memory
        self._parts: list[tuple[slice, Block]] = []

    def add(self, rows: slice) -> Block:
        wide = -(-len(self._Z) // 8) * 8  # rows of whole 16 bytes
        memory = (
            None if self._memory is None else self._memory[rows.start * wide : rows.stop * wide]
        )
        self._parts.append((rows, self.K.block(self.X[rows], self._Z, memory)))
        return self._parts[-1][1]

    def transposed(self, g: Tensor) -> Tensor:
        """K(X_m, Z)ᵀ g."""
        (rows, block), *others = self._parts
        out = transposed_product(block, g[rows])
        for rows, block in others:
            out += transposed_product(block, g[rows])
        return out
