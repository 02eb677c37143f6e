"""K(Z,Z) θ = r: three ways to bring a function back into the span of the centers.

A projection takes the residual r on Z and returns (θ, what is left of r). "cholesky" is exact
and takes p² memory; "carried" is one pass over the centers that evaluates half a triangle and
keeps what it could not project for the next time; "one_pass" forgets it: the paper's way, with
the paper's EigenPro 2 step. That step also makes the pass an epoch of the EigenPro 2 solver.

Both solve (K(Z,Z) + jitter) θ = r, with the jitter that rounding of K asks for. What the jitter
keeps back is forgotten: carried along, directions that K(Z,Z) cannot express would pile up until
the weights are so large that they no longer cancel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .distributed.team import (
    Communicator,
    count,
    gather,
    is_last,
    largest,
    owns,
    shard,
    start_gather,
)
from .errors import KernelmillError
from .kernels import Points
from .ops import KernelProduct, transposed_product

log = logging.getLogger("kernelmill")

Projection = Callable[[Tensor], tuple[Tensor, Tensor]]

# Times √p · ε · the largest K(z,z), what rounding does to K(Z,Z): the first that factors is used.
JITTERS = 1e1, 1e3, 1e5, 1e7


SMALLEST = 256  # rows of a triangle that is not cut in two
BLOCK = 1024  # rows of a factor that are solved at a time on a GPU


class NotPositiveDefinite(KernelmillError, ArithmeticError):
    """K(Z,Z) could not be factored even with the largest jitter."""


@dataclass(frozen=True)
class Factor:
    """Cholesky factor of K + jitter·I in float64, held by columns: LAPACK would otherwise copy p²
    numbers at every solve.
    """

    L: Tensor
    jitter: float
    diagonal: list[Tensor] | None = None  # on a GPU: the inverses of L's diagonal blocks

    def solve(self, b: Tensor) -> Tensor:
        if self.diagonal is None:
            half = torch.linalg.solve_triangular(self.L, b.double(), upper=False)
            return torch.linalg.solve_triangular(self.L.T, half, upper=True)
        # A triangular solve with few columns is a chain of tiny launches on a GPU; by blocks it
        # is products that read L once.
        x = b.double().clone()
        for i, inverse in enumerate(self.diagonal):
            rows = slice(i * BLOCK, i * BLOCK + len(inverse))
            x[rows] = inverse @ (x[rows] - self.L[rows, : rows.start] @ x[: rows.start])
        for i, inverse in reversed(list(enumerate(self.diagonal))):
            rows = slice(i * BLOCK, i * BLOCK + len(inverse))
            x[rows] = inverse.T @ (x[rows] - self.L[rows.stop :, rows].T @ x[rows.stop :])
        return x

    def in_blocks(self) -> Factor:
        """The same factor with its diagonal blocks inverted: p·BLOCK numbers more."""
        starts = range(0, len(self.L), BLOCK)
        return replace(
            self,
            diagonal=[inverted(self.L[i : i + BLOCK, i : i + BLOCK].contiguous()) for i in starts],
        )


def least_jitter(p: int, largest: float, dtype: torch.dtype) -> float:
    """The jitter for p rows whose largest K(z,z) is `largest`: the spectral norm of the rounding of
    K in `dtype`.
    """
    return JITTERS[0] * p**0.5 * torch.finfo(dtype).eps * largest


def factor(K_ZZ: Tensor, dtype: torch.dtype = torch.float64, least: float = 0.0) -> Factor:
    """Factor a float64 kernel matrix with the smallest jitter that works, `least` at least. K_ZZ is
    overwritten.

    `dtype` is the precision of the kernel values that will be projected: directions below their
    rounding must not be inverted.
    """
    added = 0.0
    for jitter in _jitters(K_ZZ, dtype, least):
        K_ZZ.diagonal().add_(jitter - added)
        added = jitter
        L, info = torch.linalg.cholesky_ex(K_ZZ)
        if info.item() == 0 and torch.isfinite(L.diagonal()).all():
            return _by_columns(L, added)
    raise _not_positive(len(K_ZZ), added)


def factor_made(make: Callable[[], Tensor]) -> Factor:
    """The same of a matrix that is made for it: the factor takes its place, in half of the memory.
    Where more jitter is needed, it is made again.
    """
    jitters: list[float] = []
    while True:
        K = make()
        jitters = jitters or _jitters(K, torch.float64)
        added, size = jitters.pop(0), len(K)
        K.diagonal().add_(added)
        L = K.T  # the same numbers, by columns
        if factor_in_place(L):
            return _by_columns(L, added)
        if not jitters:
            raise _not_positive(size, added)
        del K, L


def factor_in_place(K: Tensor) -> bool:
    """K, held by columns, becomes its Cholesky factor; whether it could. An infinite diagonal is
    that of a row without weight.
    """
    info = torch.empty(0, dtype=torch.int32, device=K.device)
    torch.linalg.cholesky_ex(K, out=(K, info))
    return info.item() == 0 and not bool(torch.isnan(K.diagonal()).any())


def _jitters(K: Tensor, dtype: torch.dtype, least: float = 0.0) -> list[float]:
    """What may be added to the diagonal, the least first; what is as large as K itself is left
    out, since K + jitter·I is then no K any more.
    """
    largest = max(K.diagonal().max().item(), torch.finfo(torch.float64).tiny)
    eps = torch.finfo(dtype).eps
    first = max(least, least_jitter(len(K), largest, dtype))
    return [first * jitter / JITTERS[0] for jitter in JITTERS if jitter * eps <= 1e-2]


def _by_columns(L: Tensor, jitter: float) -> Factor:
    found = Factor(L if L.T.is_contiguous() else L.T.contiguous().T, jitter)
    return found.in_blocks() if L.is_cuda and len(L) > 2 * BLOCK else found


def _not_positive(p: int, added: float) -> NotPositiveDefinite:
    return NotPositiveDefinite(
        f"K(Z,Z) of {p} centers is not positive definite, even with {added:.1e} added to"
        " its diagonal; use fewer or more distinct centers, a smaller bandwidth, or"
        " solver='eigenpro4' with projection='carried'."
    )


@dataclass(frozen=True)
class InverseFactor:
    """L⁻¹ of K + jitter·I: a solve is two matrix products, which on a GPU take a thirtieth of
    the time of two triangular solves.
    """

    L_inverse: Tensor
    jitter: Tensor

    def solve(self, b: Tensor) -> Tensor:
        return self.L_inverse.T @ (self.L_inverse @ b.double())


def inverse_factors(
    K: Tensor, dtype: torch.dtype, least: float = 0.0
) -> list[Factor | InverseFactor]:
    """`factor` for a stack (b, m, m) of float64 kernel matrices, each with the smallest jitter
    that works. K is overwritten.
    """
    diagonals = K.diagonal(dim1=1, dim2=2)
    largest = diagonals.amax(1).clamp(min=torch.finfo(torch.float64).tiny)
    jitter = (least_jitter(K.shape[1], 1.0, dtype) * largest).clamp(min=least)
    diagonals += jitter[:, None]
    L, failed = torch.linalg.cholesky_ex(K)
    good = (failed == 0) & torch.isfinite(L.diagonal(dim1=1, dim2=2)).all(1)
    # Rare: centers that coincide. Those matrices get their larger jitter one by one.
    if not good.all():
        diagonals -= jitter[:, None]
        return [
            (
                InverseFactor(inverted(L[j]), jitter[j])
                if good[j]
                else factor(K[j].clone(), dtype, least)
            )
            for j in range(len(K))
        ]
    inverse = invert_in_place(L)
    return [InverseFactor(inverse[j], jitter[j]) for j in range(len(K))]


def inverted(L: Tensor) -> Tensor:
    """L⁻¹ of lower triangles."""
    return invert_in_place(L.clone())


def invert_in_place(L: Tensor) -> Tensor:
    """L becomes its inverse: by halves, L⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]], which are products;
    solving for each column is a chain of small launches on a GPU.
    """
    n = L.shape[-1]
    if n <= SMALLEST:
        eye = torch.eye(n, dtype=L.dtype, device=L.device).expand_as(L)
        return L.copy_(torch.linalg.solve_triangular(L, eye, upper=False))
    half = n // 2
    A, B, C = L[..., :half, :half], L[..., half:, :half], L[..., half:, half:]
    B.copy_(invert_in_place(C) @ B @ invert_in_place(A)).neg_()
    return L


def cholesky(K: KernelProduct, Z: Points, p: int, comm: Communicator) -> Projection:
    """Exact projection.

    The factor is replicated on every rank.
    """
    whole = Points(gather(comm, Z.x, 0, p), gather(comm, Z.sq, 0, p))
    F, failed = None, None
    try:
        F = factor(K.dense64(whole, whole), K.dtype)
    except NotPositiveDefinite as error:
        failed = error
    # Rounding may let one rank pass with less than another.
    jitter = largest(comm, F.jitter if F else float("inf"))
    if F is None or jitter == float("inf"):
        raise failed or NotPositiveDefinite(
            f"K(Z,Z) of {p} centers is not positive definite on another rank."
        )
    if F.jitter < jitter:
        K_ZZ = K.dense64(whole, whole)
        K_ZZ.diagonal().add_(jitter)
        F = replace(factor(K_ZZ, K.dtype), jitter=jitter)

    def project(r: Tensor) -> tuple[Tensor, Tensor]:
        theta = F.solve(gather(comm, r, 0, p))[shard(comm)].to(r.dtype)
        return theta, torch.zeros_like(r)

    return project


@dataclass(frozen=True)
class Pass:
    """One pass over the centers in batches of m, with the preconditioner's subsample as a
    coarse grid.

    With `steps` it is EigenPro 2: δ_j = η r_j, less the preconditioner's part of it. Without,
    every part of the pass is an exact minimisation of ‖f − f*‖ in the RKHS, first over the top
    q directions of the subsample, then over the rows of a batch, and over the top directions
    again after each batch (a two-level Schwarz method). It needs no step, cannot diverge, and
    reaches with the same p²/2 kernel values what hundreds of EigenPro 2 passes do not
    (docs/algorithm.md).
    """

    K: KernelProduct
    Z: Points  # this rank's rows
    M: Tensor  # (p, q) K(Z, Z_s) F, this rank's rows
    F: Tensor  # (s, q), this rank's rows; the subsample is the first s centers
    s: int
    p: int
    m: int
    keep: bool  # hold each row block K(Z_j, Z) between its two uses
    comm: Communicator
    steps: Tensor | None = None  # (p,) EigenPro 2's step of every center, on every rank
    # Of each batch's K_jj, where p·m numbers could be kept: this rank's share.
    factors: dict[int, Factor | InverseFactor] | None = None
    # (p,) added to the diagonal of K(Z,Z), this rank's rows: a ridge, where Z = X.
    shift: Tensor | None = None
    jitter: float = 0.0  # added to that of every row, where there are no steps

    def __call__(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """(δ, r − K(Z,Z) δ), K(Z,Z) with the shift or jitter.

        Batch j meets only centers that have weight already: p²/2 kernel values in all.
        """
        K, Z, M, F, comm = self.K, self.Z, self.M, self.F, self.comm
        # (K(Z,Z) + shift) F: what the subsample's weights F V do to r.
        # V is applied to δ at the end.
        MF = M
        if self.shift is not None or self.jitter:
            MF = M.clone()
            MF[: len(F)] += (self.jitter if self.shift is None else self.shift[: len(F), None]) * F
        delta, r = torch.zeros_like(r), r.clone()
        V = r.new_zeros(M.shape[1], r.shape[1])
        room = K.room(min(self.m, self.p), len(Z), passing=True) if self.keep else None
        # What V gains, on its way.
        more = comm.start_sum(F.T @ r[: len(F)] if self.steps is None else torch.zeros_like(V))
        ahead = self.start(0)
        for start in range(0, self.p, self.m):
            stop = min(start + self.m, self.p)
            before, own = slice(0, count(comm, start)), slice(count(comm, start), count(comm, stop))
            # Where own rows stand in the batch.
            place = slice((comm.rank - start) % comm.size, None, comm.size)
            Z_j, ahead = ahead(), self.start(stop)
            K_jZ = K.block(Z_j, Z[before], room)
            # r of this batch as it is now: less what earlier batches changed, less the
            # subsample's part.
            now = -(K_jZ @ delta[before])
            V = V + more()
            now[place] += r[own] - MF[own] @ V
            now = comm.all_sum(now)
            step, left = (
                self.solved(start // self.m, Z_j, now)
                if self.steps is None
                else self.stepped(start, stop, own, Z_j, now, V)
            )
            delta[own] = step[place]
            r[before] -= transposed_product(K_jZ, step)
            r[own] = left[place] + MF[own] @ V
            if self.steps is not None:
                more = comm.start_sum(-(M[own].T @ step[place]))
            else:  # r is complete on the subsample once the batches have passed it
                more = comm.start_sum(
                    F.T @ (r[: len(F)] - MF[: len(F)] @ V)
                    if stop >= self.s
                    else torch.zeros_like(V)
                )
        V = V + more()
        delta[: len(F)] += F @ V
        return delta, r - MF @ V

    def start(self, start: int) -> Callable[[], Points]:
        """The batch of centers from `start` on, on every rank: asked for now, waited for by a
        call.
        """
        stop = min(start + self.m, self.p)
        own = slice(count(self.comm, start), count(self.comm, stop))
        if start >= stop:
            return lambda: self.Z[own]
        wait = start_gather(self.comm, start, stop, self.Z.x[own], self.Z.sq[own])
        return lambda: Points(*wait())

    def solved(self, j: int, Z_j: Points, now: Tensor) -> tuple[Tensor, Tensor]:
        """(K_jj + jitter)⁻¹ `now`, and what more jitter than that keeps back.

        A kept factor is on one rank, which solves for all.
        """
        F_j = self.factor_of(Z_j) if self.factors is None else self.factors.get(j)
        if F_j is None:
            both = torch.zeros_like(torch.cat([now, now], 1))
        else:
            step = F_j.solve(now).to(now.dtype)
            both = torch.cat([step, (F_j.jitter - self.jitter) * step], 1)
        if self.factors is not None:
            both = self.comm.all_sum(both)
        return both[:, : now.shape[1]], both[:, now.shape[1] :]

    def downhill(self, start: int, stop: int, own: slice, now: Tensor, V: Tensor) -> Tensor:
        """What a step of EigenPro 2 on this batch goes along: what is left of the targets."""
        return now

    def stepped(
        self, start: int, stop: int, own: slice, Z_j: Points, now: Tensor, V: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A step of EigenPro 2 on this batch, and what it leaves."""
        assert self.steps is not None
        step = self.steps[start:stop, None] * self.downhill(start, stop, own, now, V)
        left = now - self.K.dense(Z_j, Z_j) @ step
        if self.shift is not None:
            left -= gather(self.comm, self.shift[own], start, stop)[:, None] * step
        return step, left

    def factor_of(self, Z_j: Points) -> Factor:
        """Waits for the device, to see whether the factor exists: where factors are kept, only
        once in a run.
        """
        return factor(self.K.dense64(Z_j, Z_j), self.K.dtype, self.jitter)

    def with_factors(self, stack_bytes: int) -> Pass:
        """The same pass with the factors of its batches made once, `stack_bytes` of them at a
        time: p·m numbers, for p·m²/3 operations less at every pass.
        """
        comm, whole = self.comm, self.p // self.m
        factors: dict[int, Factor | InverseFactor] = {}
        group: dict[int, Tensor] = {}
        together = max(1, stack_bytes // (8 * self.m * self.m))
        ahead = self.start(0)
        for j in range(-(-self.p // self.m)):
            Z_j, ahead = ahead(), self.start((j + 1) * self.m)
            if not owns(comm, j):
                continue
            if j == whole:  # a short last batch
                factors[j] = self.factor_of(Z_j)
                continue
            group[j] = self.K.dense64(Z_j, Z_j)
            if len(group) == together or is_last(comm, j, whole):
                factors |= zip(
                    group,
                    inverse_factors(torch.stack(list(group.values())), self.K.dtype, self.jitter),
                    strict=True,
                )
                group = {}
        return replace(self, factors=factors)


@dataclass(frozen=True)
class Forgetful:
    """The paper's projection: what one pass does not reach is lost."""

    project: Projection

    def __call__(self, r: Tensor) -> tuple[Tensor, Tensor]:
        theta, _ = self.project(r)
        return theta, torch.zeros_like(r)
