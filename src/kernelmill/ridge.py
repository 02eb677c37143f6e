"""(K + D) α = Y for a kernel matrix K that is held, D a diagonal: a factor in float64, or one in
float32 and a few conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .projection import factor_in_place

Map = Callable[[Tensor], Tensor]

RESIDUAL, ROUGH = 1e-8, 1e-5  # over the targets, at which steps in float64 and float32 end
STEPS = 8  # with a float32 factor, after which one in float64 is quicker


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
