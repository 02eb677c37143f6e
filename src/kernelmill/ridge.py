"""(K + D) α = Y for a kernel matrix K that is held, D a diagonal: a factor, or conjugate gradients
with a rough inverse.

A rough inverse is a factor in float32, or comes from some rows of K: K ≈ BᵀB, of rank r, has all
directions that are much larger than the ridge, and a few steps do the rest (docs/solvers.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .ops import by_columns
from .projection import factor_in_place

Map = Callable[[Tensor], Tensor]

RESIDUAL, ROUGH = 1e-8, 1e-5  # over the targets, at which steps in float64 and float32 end
STEPS = 8  # with a float32 factor, after which one in float64 is quicker
# Steps in float64 around others in float32, each an evaluation of K; the residual at which they
# end; what those in float32 leave of one, and most of them.
ROUNDS, NESTED, LEFT, MOST = 6, 1e-7, 1e-5, 40
RANK = (300, 2000)  # rows that a rough inverse is made of: a 20th of all, within these


def solve_ridge(K: Tensor, diagonal: Tensor, Y: Tensor) -> Tensor | None:
    """(K + diag(diagonal))⁻¹ Y in the precision of all three; None where there is no factor.

    On a CPU by a factor in float32, which takes half of the time, where that has digits enough;
    else by one in float64.
    """
    if K.device.type == "cpu":
        L = K.to(torch.float32, copy=True).T
        L.diagonal().add_(diagonal)
        if factor_in_place(L):
            times = lambda v: K @ v + diagonal[:, None] * v  # noqa: E731
            enough = RESIDUAL if K.dtype == torch.float64 else ROUGH
            found, left = conjugate(times, by_factor(L), Y, enough)
            if left <= enough:
                return found
    L = K.to(torch.float64, copy=True).T
    L.diagonal().add_(diagonal)
    return torch.cholesky_solve(Y.double(), L).to(Y) if factor_in_place(L) else None


def solve_nested(times: Map, A: Tensor, ridge: float, Y: Tensor) -> Tensor | None:
    """A⁻¹ Y in float64, where A = K + λ is known by `times` alone, and held in float32: conjugate
    gradients, whose rough inverse is conjugate gradients with what is held. None where that does
    not get there soon.
    """

    def inverse(R: Tensor) -> Tensor:
        found, left = conjugate(lambda v: A @ by_columns(v), rough, R.float(), LEFT, MOST)
        if not left <= 1e2 * LEFT:
            raise _TooSlow
        return found.double()

    try:
        rough = by_rows(A, ridge)
        found, left = conjugate(times, inverse, Y, NESTED, ROUNDS)
    except _TooSlow:
        return None
    return found if left <= NESTED else None


class _TooSlow(Exception):
    """Steps in float32 do not get there."""


def conjugate(
    times: Map, rough: Map, Y: Tensor, residual: float = RESIDUAL, steps: int = STEPS
) -> tuple[Tensor, float]:
    """A⁻¹ Y by conjugate gradients, v ↦ A v given by `times`, with a rough inverse, which makes
    each step take most of the residual away; and what is left of it over Y, NaN where it cannot be
    told.
    """
    X, R = torch.zeros_like(Y), Y
    Z = V = rough(R)
    size, left = (R * Z).sum(0), 1.0
    tiny = torch.finfo(Y.dtype).tiny
    for _ in range(steps):
        Q = times(V)
        step = size / (V * Q).sum(0).clamp(min=tiny)
        X, R = X + step * V, R - step * Q
        left = (R.norm() / Y.norm().clamp(min=tiny)).item()
        if not left > residual:
            break
        before, Z = Z, rough(R)
        new = (R * Z).sum(0)
        # Less what it shares with the last one: in float32 it is not the same map at each step.
        V = Z + (new - (R * before).sum(0)) / size.clamp(min=tiny) * V
        size = new
    return X, left


def by_factor(L: Tensor) -> Map:
    """The inverse by a Cholesky factor in float32."""

    def inverse(R: Tensor) -> Tensor:
        # torch.cholesky_solve would copy L.
        half = torch.linalg.solve_triangular(L, R.float(), upper=False)
        return torch.linalg.solve_triangular(L.T, half, upper=True).to(R.dtype)

    return inverse


def by_rows(A: Tensor, ridge: float) -> Map:
    """The inverse of A = K + λ in float32 by some random rows of it:
    (λ + BᵀB)⁻¹ = (1 − Bᵀ (λ + BBᵀ)⁻¹ B) / λ with B = L⁻¹ K(rows, ·), K(rows, rows) = L Lᵀ.
    """
    n, r = len(A), rank_for(len(A))
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:r].to(A.device)
    C = A[rows]
    C[torch.arange(r, device=A.device), rows] -= ridge
    L = _factor(C[:, rows], 1e-6 * r * C[:, rows].diagonal().mean().item())
    B = torch.linalg.solve_triangular(L, C, upper=False)
    S = _factor(B @ B.T, ridge)

    def inverse(R: Tensor) -> Tensor:
        return (R - B.T @ torch.cholesky_solve(B @ R, S)) / ridge

    return inverse


def rank_for(n: int) -> int:
    """Of so many rows, how many a rough inverse is made of."""
    return min(n, max(RANK[0], min(RANK[1], n // 20)))


def _factor(K: Tensor, added: float) -> Tensor:
    """Of few rows, in float64."""
    K = K.double()
    K.diagonal().add_(added)
    L, failed = torch.linalg.cholesky_ex(K)
    if failed.item():
        raise _TooSlow
    return L.float()
