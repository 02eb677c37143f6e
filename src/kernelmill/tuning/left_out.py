"""What models like the one that was fitted say of rows they have not seen, where no rows were kept
out of training.

Where every row is a center: all rows but one, up to EACH rows; of more, the rows nearest to it
among all others, which say nearly the same. Where centers are fewer: folds of some rows, with some
of the centers, of which a model of more rows and centers does better: what follows from it errs on
the safe side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Kernel
from ..projection import NotPositiveDefinite, factor
from .loo import loo_residuals
from .nearby import Nearby

EACH = 2500  # rows, each left out of all others: half a second on two cores
SOME, SOME_CENTERS, FOLDS = 4000, 1000, 5
LEAST = 1e-8  # of K, the least ridge
STEPS_ARE_LIKE = (1e-4, 1e-2, 1e-1, 1.0, 10.0)  # ridges
NEAREST = 600, 3000  # rows that are told by those around them, on a CPU and a GPU


class LeftOut(NamedTuple):
    """Numbers of the rows, and what was said of each, (m, c), in the units of the source."""

    rows: Tensor
    values: Tensor


def left_out(
    kernel: Kernel, ridge: float, source: Source, Z: Tensor | None, budget: int
) -> LeftOut | None:
    """`Z` are some of the centers, None where every row is one; the ridge is that of all rows, of
    mean weight 1. None where a factor fails.
    """
    if Z is not None:
        return _in_folds(kernel, ridge, source, Z)
    if source.n > EACH:
        return _by_nearest(kernel, ridge, source, budget)
    rows = torch.arange(source.n)
    X, Y, w = _taken(source, rows)
    try:
        K = kernel(X)
        least = LEAST * K.diagonal().mean().item()
        left = loo_residuals(K, Y, max(ridge, least) / w)
    except torch.linalg.LinAlgError:
        return None
    return LeftOut(rows, (Y - left).cpu())


def _taken(source: Source, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch = source.take(rows)
    X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    return X, Y, w


def _by_nearest(kernel: Kernel, ridge: float, source: Source, budget: int) -> LeftOut | None:
    count = NEAREST[source.device.type == "cuda"]
    judge = Nearby.within(kernel, source, budget // 3, count, seed=0)
    if not len(judge.X):
        return None
    values = judge.values(judge.grams(kernel), ridge)
    return None if values is None else LeftOut(judge.rows, values.cpu())


def _in_folds(kernel: Kernel, ridge: float, source: Source, Z: Tensor) -> LeftOut | None:
    """Least squares in the span of some centers, (ΦᵀwΦ + λ) β = Φᵀw y, once without each fold."""
    batch = source.some(SOME)
    X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    generator = torch.Generator().manual_seed(0)
    fold = (torch.randperm(len(X), generator=generator) % FOLDS).to(X.device)
    some = torch.linspace(0, len(Z) - 1, min(len(Z), SOME_CENTERS, len(X))).round().long()
    Z = Z[some.to(Z.device)].to(X)
    try:
        L = factor(kernel(Z)).L
    except NotPositiveDefinite:
        return None
    Phi = torch.linalg.solve_triangular(L, kernel(Z, X), upper=False).T
    weighted = w[:, None] * Phi
    parts = [fold == i for i in range(FOLDS)]
    normal = [weighted[part].T @ Phi[part] for part in parts]
    right = [weighted[part].T @ Y[part] for part in parts]

    def values(shift: float) -> Tensor | None:
        found = torch.zeros_like(Y)
        for i, part in enumerate(parts):
            A = sum(normal) - normal[i]
            A.diagonal().add_(shift)
            R, info = torch.linalg.cholesky_ex(A)
            if info.item():
                return None
            found[part] = Phi[part] @ torch.cholesky_solve(sum(right) - right[i], R)
        return found

    # A sum over fewer rows goes with as much less of a ridge. Without one, few steps regularise:
    # about as well as the best ridge would.
    shifts = [ridge * len(X) / source.n] if ridge else list(STEPS_ARE_LIKE)
    tried = [found for shift in shifts if (found := values(max(shift, LEAST))) is not None]
    if not tried:
        return None
    best = min(tried, key=lambda found: (w[:, None] * (found - Y) ** 2).sum().item())
    return LeftOut(batch.rows.cpu(), best.cpu())
