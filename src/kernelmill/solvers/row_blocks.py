"""K(X, Z) over all rows, block by block: what full-gradient solvers multiply with at every
iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..errors import InputError
from ..kernels import Points
from ..ops import Block, KernelProduct, bind, padded, transposed_product
from ..planning.plan import Plan
from .base import Problem, Setup
from .eigenpro_sizes import keeping_pays


@dataclass(frozen=True)
class Rows:
    """Some rows of the data: K(X_i, Z), which reads like a matrix, their targets and weights."""

    K_XZ: Block
    Y: Tensor
    w: Tensor  # (r, 1)


class Sweep:
    """Goes over the data as often as it is asked to.

    Blocks are evaluated in the first round and kept where the plan has room for them; else one
    block's memory serves them all, and every round evaluates anew.
    """

    def __init__(self, K: KernelProduct, source: Source, Z: Points, plan: Plan):
        self._K, self._source, self._Z, self._plan = K, source, Z, plan
        self._kept: list[Rows] = []
        self.targets: list[
            tuple[Tensor, Tensor]
        ] = []  # Y and w of each block, from the first round on
        self._whole = False  # all rounds after the first read what was kept
        self._rounds = plan.rounds_values
        self._room = (
            K.room(plan.n if plan.keep_all else min(plan.n, plan.sweep_rows), plan.p, self._rounds)
            if plan.keep_block
            else None
        )

    def __iter__(self) -> Iterator[Rows]:
        if self._whole:
            yield from self._kept
            return
        K, keep = self._K, self._plan.keep_all and self._room is not None
        self._kept, targets, start, wide = [], [], 0, padded(self._plan.p)
        for batch in self._source.sweep(self._plan.sweep_rows):
            room = self._room
            if keep and room is not None:
                room = room[start * wide : (start + len(batch)) * wide]
                start += len(batch)
            held = K.rounded if self._rounds else K.block
            K_XZ = held(K.points(batch.X), self._Z, room)
            rows = Rows(K_XZ, batch.Y.to(K.device, K.dtype), batch.w.to(K.device, K.dtype)[:, None])
            targets.append((rows.Y, rows.w))
            if keep:
                self._kept.append(rows)
            yield rows
        self.targets, self._whole = targets, keep

    def total(self, part: Callable[[Rows], Tensor]) -> Tensor:
        """Σ K(X_i, Z)ᵀ part(i) over the blocks, in float64: (p, columns)."""
        out = None
        for rows in self:
            block = transposed_product(rows.K_XZ, part(rows)).double()
            out = block if out is None else out + block
        assert out is not None
        return out

    def loss(self, f: list[Tensor]) -> float:
        """Mean weighted squared residual of the values f, block by block."""
        parts = [(w * (u - Y) ** 2).sum() for u, (Y, w) in zip(f, self.targets, strict=True)]
        return torch.stack(parts).sum().item() / self._plan.n

    def normal(self, v: Tensor, products: list[Tensor]) -> Tensor:
        """K(Z,X) w K(X,Z) v. The products K(X_i, Z) v are appended to `products`."""
        v = v.to(self._K.dtype)

        def part(rows: Rows) -> Tensor:
            products.append(rows.K_XZ @ v)
            return rows.w * products[-1]

        return self.total(part)

    def right(self) -> Tensor:
        """K(Z,X) w Y."""
        return self.total(lambda rows: rows.w * rows.Y)


@dataclass(frozen=True)
class InFloat64(Setup):
    """The kernel and the centers in float64."""

    plan: Plan
    K: KernelProduct
    Z: Points


def in_float64(problem: Problem, plan: Plan) -> tuple[KernelProduct, Points]:
    origin = problem.Z.mean(0, dtype=torch.float64)
    K = bind(problem.kernel, origin, "float64", torch.device(plan.device), plan.tile_bytes)
    return K, K.points(problem.Z)


def whitened(
    K: KernelProduct, source: Source, Z: Points, L: Tensor, plan: Plan
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """√w Φ and √w Y, some rows at a time, Φ = K(X,Z) L⁻ᵀ with K(Z,Z) = L Lᵀ: features in which the
    ridge is that of a linear model; and how many rows that makes.
    """
    chunk, seen = max(256, min(4096, plan.tile_bytes // (8 * plan.p))), 0
    for batch in source.sweep(chunk):
        root = batch.w.to(L)[:, None].sqrt()
        Phi = torch.linalg.solve_triangular(L, K.dense(K.points(batch.X), Z).T, upper=False).T
        seen += len(batch)
        yield root * Phi, root * batch.Y.to(L), seen


def sweep_sizes(base: Plan, *, factors: int, keep: bool | None) -> Plan:
    """Sizes of a solver that goes over all of K(X,Z) at every iteration and holds `factors` p×p
    float64 factors. `keep`: hold K(X,Z) whole; None: where it fits.
    """
    n, p, c, item = base.n, base.p, base.c, base.itemsize
    # On a GPU a block costs a millisecond of launches: it should have some more to compute.
    rows = min(
        n,
        (
            max(16_384, min(131_072, 2**30 // p, base.budget // (16 * p * item)))
            if base.on_gpu
            else 4096
        ),
    )
    held = (
        8 * p * p * (factors + 1)
        + p * (base.features * base.feature_bytes + base.d * base.x_bytes + 8 * 8 * c)
        + 4 * n * c * item
    )
    held += factors * 8 * 1024 * p * base.on_gpu  # the inverses of their diagonal blocks
    batch = rows * (base.d * base.x_bytes + base.features * 3 * item + 3 * c * item)
    whole_block = n * (
        padded(p) * base.held_bytes + (base.features * base.feature_bytes if base.on_gpu else 0)
    )
    block = rows * padded(p) * base.held_bytes
    fits = held + batch + whole_block <= base.budget
    keep_all = bool(keep) if keep is not None else fits
    plan = replace(base, keep_all=keep_all, sweep_rows=rows)
    plan = replace(
        plan, keep_block=keep_all or (keeping_pays(plan) and held + batch + block <= base.budget)
    )
    bytes = (
        held
        + batch
        + (whole_block if keep_all else block if plan.keep_block else 2 * plan.tile_bytes)
    )
    if held + batch > base.budget or (keep and not fits):
        raise InputError(
            f"solver={base.solver!r} needs {bytes / 2**30:.1f} GiB for {p} centers and {n} rows,"
            f" {base.budget / 2**30:.1f} may be used; use fewer centers or solver='eigenpro4',"
            " which takes memory in proportion to the centers."
        )
    return replace(plan, bytes=bytes)
