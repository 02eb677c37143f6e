"""Noise and signal of a Gaussian process, by the likelihood of rows that are left out.

The process has covariance s²K, its targets noise σ² = s²λ, a weight of k being k targets. Leaving a
row out says how far off it was, r, and how far it might have been, s²(v + λ/k): over many rows, the
likeliest s² is the mean of r²/(v + λ/k), and λ is searched. Rows that were merged tell the noise by
themselves: what they differ from their mean is `scatter`, Σ (y − ȳ)² of N targets in n rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Kernel
from .descent import RIDGES
from .left_out import EACH, NEAREST
from .nearby import Nearby

STEP, MOST = 2.0, 20  # between two ridges, and how many are tried


class Moments(NamedTuple):
    """Of rows that are left out: squared errors (m, c), and variances (m,) of a process of signal
    1, noise included.
    """

    squares: Tensor
    variances: Tensor


class Merged(NamedTuple):
    """What merging took off Σ y², (c,), of how many targets more than there are rows."""

    scatter: Tensor
    more: float


class Noise(NamedTuple):
    """λ, and the signal's variance of each output, (c,), in the units of the source."""

    ridge: float
    signal: Tensor


def likeliest(
    moments: Callable[[float], Moments | None],
    start: float,
    fixed: bool,
    noise: Tensor | None,
    merged: Merged | None,
    share: float,
    weight: float,
) -> Noise | None:
    """The likeliest λ, near `start`, or just that where it is `fixed`, with its signal; `noise`
    (c,) is that of one target, where it is known. Ridges are over the mean `weight`; `share` is
    that of the rows that are left out among all. None where no factor succeeds.
    """

    def judge(ridge: float) -> tuple[float, Noise] | None:
        found = moments(ridge)
        if found is None:
            return None
        squares, variances = _with_one_more(found, ridge)
        total = (squares / variances[:, None]).sum(0)
        logs, count = variances.log().sum().item(), float(len(variances))
        if merged is not None and merged.more > 0:
            more = share * merged.more
            total = total + share * merged.scatter.to(total) / (ridge * weight)
            logs, count = logs + more * math.log(ridge * weight), count + more
        signal = total / count if noise is None else noise.to(total) / (ridge * weight)
        size = signal.clamp(min=torch.finfo(signal.dtype).tiny)
        cost = (count * size.log() + logs + total / size).sum().item() / count
        return cost, Noise(ridge, signal)

    first = judge(start)
    if first is None or fixed:
        return None if first is None else first[1]
    best, tried = first, 1
    for factor in (STEP, 1 / STEP):
        ridge = start * factor
        while RIDGES[0] <= ridge <= RIDGES[1] and tried < MOST:
            found, tried = judge(ridge), tried + 1
            if found is None or not found[0] < best[0]:
                break
            best, ridge = found, ridge * factor
        if best is not first:
            break
    return best[1]


def _with_one_more(found: Moments, ridge: float) -> Moments:
    """And one row that has a copy, whose target differs as much as rows usually are off: none was
    seen among these, but the next may be one. A few copies of equal targets make a process without
    noise likely, under which such a row costs more than all others together (protein, 4,000 rows:
    a negative log likelihood of 54 instead of 0.85).
    """
    usual = found.squares.mean(0, keepdim=True)
    return Moments(
        torch.cat([found.squares, usual]),
        torch.cat([found.variances, found.variances.new_tensor([ridge])]),
    )


def left_out_moments(
    kernel: Kernel, source: Source, budget: int
) -> tuple[Callable[[float], Moments | None], int]:
    """Errors and variances as a function of the ridge, and of how many rows: each left out of all
    others, or of those nearest to it where rows are many.
    """
    if source.n > EACH:
        return _nearest(kernel, source, budget)
    batch = source.take(torch.arange(source.n))
    X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    K = kernel(X)

    def moments(ridge: float) -> Moments | None:
        L, info = torch.linalg.cholesky_ex(K + torch.diag(ridge / w + 1e-10 * len(K)))
        if info.item():
            return None
        C = torch.cholesky_inverse(L)
        variances = 1 / C.diagonal()
        return Moments((C @ Y * variances[:, None]) ** 2, variances)

    return moments, source.n


def _nearest(
    kernel: Kernel, source: Source, budget: int
) -> tuple[Callable[[float], Moments | None], int]:
    count = NEAREST[source.device.type == "cuda"]
    judge = Nearby.within(kernel, source, budget // 3, count, seed=1)
    grams = judge.grams(kernel)

    def moments(ridge: float) -> Moments | None:
        found = judge.moments(kernel, grams, ridge)
        return None if found is None else Moments((judge.Y - found[0]) ** 2, found[1])

    return moments, len(judge.X)
