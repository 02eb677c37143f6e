"""What a row says about its own prediction, where no rows were kept out of training.

Leaving a row out of ridge regression has a closed form: its residual grows by 1/(1 − h), h its
leverage. The leverage of each row, and what ridge regression says of it, come from a model like the
one that was fitted: where every row is a center, of all rows up to EACH, and of the rows nearest to
it where there are more; where centers are fewer, of some rows and as large a share of centers. What
the fitted model itself says is left to it: whatever few steps, centers or another loss make of its
residuals stays in them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Kernel
from ..projection import NotPositiveDefinite, factor
from .nearby import Nearby

EACH = 2500  # rows, each left out of all others: half a second on two cores
SOME, SOME_CENTERS = 4000, 1000  # rows and centers of a model that tells leverages
LEAST = 1e-8  # of K, the least ridge
STEPS_ARE_LIKE = (1e-4, 1e-2, 1e-1, 1.0, 10.0)  # ridges
NEAREST = 600, 3000  # rows that are told by those around them, on a CPU and a GPU
HIGHEST = 1 - 1e-9  # leverage


class Leverage(NamedTuple):
    """Numbers of rows, what ridge regression says of each, (m, c), in the units of the source, the
    leverage of each, (m,), and its influence, (m,): by how much predictions of all rows move, on
    average, where its target moves by 1.
    """

    rows: Tensor
    values: Tensor
    lever: Tensor
    influence: Tensor

    @classmethod
    def of(cls, rows: Tensor, values: Tensor, lever: Tensor, w: Tensor, n: int) -> Leverage:
        """From a model of n rows. The last column of the values is of targets that are 1: WH, H the
        hat matrix, is symmetric, so that it tells the sums of H's columns.
        """
        influence = w * values[:, -1] / n
        return cls(rows, values[:, :-1].cpu(), lever.cpu(), influence.cpu())

    def without(self, said: Tensor, targets: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """(m, c) what a model that said so of rows would have said without them, and how much less
        it would then have said of other rows, on average; `share` is that of the row's weight that
        is left out.
        """
        h = (self.lever * share).clamp(0, HIGHEST)[:, None]
        residual = (targets - self.values) / (1 - h)
        return said - h * residual, (self.influence * share)[:, None] * residual


def leverages(
    kernel: Kernel,
    ridge: float,
    source: Source,
    Z: Tensor | None,
    p: int,
    budget: int,
    wanted: Tensor | None = None,
) -> Leverage | None:
    """`Z` are some of the p centers, None where every row is one; the ridge is that of all rows,
    of mean weight 1; `wanted` are the numbers of the rows, else some are drawn. None where a factor
    fails.
    """
    if Z is not None:
        return _of_some(kernel, ridge, source, Z, p, wanted)
    if source.n > EACH:
        return _of_nearest(kernel, ridge, source, budget, wanted)
    X, Y, w = _taken(source, torch.arange(source.n))
    K = kernel(X)
    shift = max(ridge, LEAST * K.diagonal().mean().item()) / w
    L, info = torch.linalg.cholesky_ex(K + torch.diag(shift + 1e-12 * len(K)))
    if info.item():
        return None
    C, Y = torch.cholesky_inverse(L), _with_ones(Y)
    values = Y - shift[:, None] * (C @ Y)
    lever = 1 - shift * C.diagonal()
    found = Leverage.of(torch.arange(source.n), values, lever, w, source.n)
    return found if wanted is None else Leverage(*(part[wanted] for part in found))


def _with_ones(Y: Tensor) -> Tensor:
    return torch.cat([Y, torch.ones_like(Y[..., :1])], -1)


def _taken(source: Source, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch = source.take(rows)
    X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    return X, Y, w


def _of_nearest(
    kernel: Kernel, ridge: float, source: Source, budget: int, wanted: Tensor | None
) -> Leverage | None:
    """Left out, a row is off by r and might be by v + λ; with it, by r λ/(v + λ)."""
    most = NEAREST[source.device.type == "cuda"]
    judge = Nearby.within(kernel, source, budget // 3, most, 0, wanted)
    grams = judge.grams(kernel) if len(judge.X) else []
    grams = [one._replace(Y=_with_ones(one.Y)) for one in grams]
    found = judge.moments(kernel, grams, max(ridge, LEAST)) if grams else None
    if found is None:
        return None
    values, variances = found
    own = max(ridge, LEAST) / judge.w / variances
    Y = _with_ones(judge.Y)
    full = Y - (Y - values) * own[:, None]
    return Leverage.of(judge.rows, full, 1 - own, judge.w, grams[0].Y.shape[1])


def _of_some(
    kernel: Kernel, ridge: float, source: Source, Z: Tensor, p: int, wanted: Tensor | None
) -> Leverage | None:
    """Least squares in the span of some centers, (ΦᵀwΦ + λ) β = Φᵀw y, of as many rows as have the
    share of centers that all have.
    """
    count = min(source.n, SOME, max(2 * len(Z), round(len(Z) * source.n / p)))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(source.n, generator=generator)
    first = torch.zeros(0, dtype=torch.long) if wanted is None else wanted
    rows = torch.cat([first, rows[~torch.isin(rows, first)]])[:count]
    X, Y, w = _taken(source, rows)
    most = max(1, round(count * p / source.n))
    Z = Z[torch.linspace(0, len(Z) - 1, min(len(Z), most)).round().long().to(Z.device)].to(X)
    try:
        L = factor(kernel(Z)).L
    except NotPositiveDefinite:
        return None
    Phi = torch.linalg.solve_triangular(L, kernel(Z, X), upper=False).T
    normal, right = Phi.T @ (w[:, None] * Phi), Phi.T @ (w[:, None] * _with_ones(Y))

    def solved(shift: float) -> Leverage | None:
        R, info = torch.linalg.cholesky_ex(normal + shift * torch.eye(len(Z)).to(normal))
        if info.item():
            return None
        half = torch.linalg.solve_triangular(R, Phi.T, upper=False)
        values = Phi @ torch.cholesky_solve(right, R)
        return Leverage.of(rows, values, w * (half * half).sum(0), w, count)

    # A sum over fewer rows goes with as much less of a ridge. Without one, few steps regularise:
    # about as well as the best ridge would.
    shifts = [ridge * count / source.n] if ridge else list(STEPS_ARE_LIKE)
    tried = [found for shift in shifts if (found := solved(max(shift, LEAST))) is not None]

    def off(found: Leverage) -> float:
        left = (Y.cpu() - found.values) / (1 - found.lever.clamp(0, HIGHEST))[:, None]
        return (w.cpu()[:, None] * left**2).sum().item()

    found = min(tried, key=off, default=None)
    if found is None or wanted is None:
        return found
    return Leverage(*(part[: len(wanted)] for part in found))
