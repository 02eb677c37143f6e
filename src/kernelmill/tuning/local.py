"""Bandwidths of single features, refined at the density of the real run.

Which columns matter depends on how close rows are: among 1,000 rows the neighbours are far, and
coarse columns decide; among 500,000 they are near, and fine ones do. A leave-one-out error of
that many rows is out of reach, but what a kernel machine says at x depends mostly on rows near
x. So: a few anchors, the nearest rows of each among as many rows as there will be centers, and
the leave-one-out error of the inner ones. Batched, it is a few hundred small Cholesky factors
for each step down its gradient.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Radial
from .descent import RIDGES, Reach, minimise, value_of
from .loo import loo_error
from .search import SPREAD

log = logging.getLogger("kernelmill")

INNER = 0.3  # the part of a neighbourhood, nearest to its anchor, whose errors count
STEPS = 20
ENOUGH = 2e-3  # of the error, what two evaluations must gain for another
GAIN = math.log(0.98)  # the least change of the error, on other rows, that is more than chance
MIX = (30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)  # splitmix64, as signed numbers
COPIES = 12  # of a neighbourhood's distances that a gradient holds
COPIES_OF_ROWS = 3  # while the nearest are looked for


@dataclass(frozen=True)
class Effort:
    anchors: int
    size: int
    rounds: int


# 4 s a round on two cores, 1.5 s on an H200.
ON_CPU, ON_GPU = Effort(32, 256, 2), Effort(128, 768, 4)


def refine_locally(
    kernel: Radial, groups: Tensor, source: Source, p: int, budget: int, generator: torch.Generator
) -> Radial:
    """The kernel with bandwidths changed to suit neighbourhoods among p rows; the same object where
    that does not help.

    `groups` (D,) says which of the kernel's features share a factor.

    Whether it helps is asked of rows whose errors were not fitted. Rows that have exact copies
    count neither way: leaving one out would leave its copy in.
    """
    most = min(p, budget // (COPIES_OF_ROWS * 8 * kernel.width(source.d)))
    rows = torch.randperm(source.n, generator=generator)[:most]
    # Half precision cannot tell near rows apart.
    wide = torch.promote_types(source.take(rows[:1]).X.dtype, torch.float32)
    see = (lambda X: X) if kernel.features is None else kernel.features.apply
    X = torch.cat([see(source.take(part).X.to(source.device, wide)) for part in rows.split(65_536)])
    groups = groups.to(X.device)
    effort = ON_GPU if X.is_cuda else ON_CPU
    size = min(effort.size, len(X) // 32)
    anchors = min(
        effort.anchors,
        len(X) // max(1, 4 * int(INNER * size)),
        budget // (COPIES * 8 * max(1, size) ** 2),
    )
    if size < 32 or anchors < 4:
        return kernel
    best, ridge = kernel, torch.tensor(math.log(1e-3), dtype=torch.float64, device=X.device)
    for _ in range(effort.rounds):
        bandwidth = torch.as_tensor(best.bandwidth, dtype=torch.float64, device=X.device)
        bandwidth = bandwidth.expand(X.shape[1]).clone()
        nearest = _nearest(X, bandwidth, 2 * anchors, size, generator)
        here, there = (
            _Neighbourhoods.of(best, bandwidth, groups, X, part, source, rows)
            for part in nearest.split(anchors)
        )
        there.ignore(here.nearest[:, -here.inner :])
        if not here.scored.any() or not there.scored.any():
            break
        theta = bandwidth.new_zeros(int(groups.max()) + 1).requires_grad_()
        fitted = ridge.clone().requires_grad_()
        error = partial(here.objective, theta, fitted)
        minimise(error, [theta, fitted], None, STEPS, enough=ENOUGH)
        theta = theta.detach()
        moved = Reach.of(X[:2000].double() / bandwidth).bounded(theta[groups])
        theta = theta + (moved[0] - theta[groups[0]])  # all are moved alike
        with torch.no_grad():
            places = torch.zeros_like(theta), theta
            # Each at its best.
            ridges = [
                fitted,
                *(torch.full_like(ridge, math.log(lam)) for lam in (1e-4, 1e-2, 1.0, 100.0)),
            ]
            was, now = (
                min(value_of(partial(there.error, at, lam)) for lam in ridges) for at in places
            )
        log.info(
            "tuning: %d neighbourhoods of %d rows: error %.4g, was %.4g",
            anchors,
            size,
            math.exp(now),
            math.exp(was),
        )
        if not now - was < GAIN:
            break
        best = copy.deepcopy(best)
        best.bandwidth = (bandwidth * torch.exp(theta[groups])).cpu()
        ridge = fitted.detach()
    return best


def _nearest(
    X: Tensor, bandwidth: Tensor, anchors: int, size: int, generator: torch.Generator
) -> Tensor:
    """(anchors, size) numbers of the rows nearest to each of some random rows, the nearest
    last.
    """
    x = (X - X[:10_000].mean(0)) / bandwidth.to(X.dtype)
    squares = (x * x).sum(1)
    chosen = torch.randperm(len(X), generator=generator)[:anchors].to(X.device)
    return torch.cat(
        [
            (squares - 2 * x[part] @ x.T).topk(size, largest=False).indices.flip(1)
            for part in chosen.split(16)
        ]
    )


@dataclass
class _Neighbourhoods:
    kernel: Radial
    bandwidth: Tensor
    groups: Tensor
    P: Tensor  # (anchors, size, d) rows, float64, less their mean
    Y: Tensor
    w: Tensor
    nearest: Tensor  # (anchors, size) numbers of the rows, the nearest last
    inner: int  # so many of each are near enough to their anchor
    scored: Tensor  # (anchors, inner) those of them whose errors count

    @classmethod
    def of(
        cls,
        kernel: Radial,
        bandwidth: Tensor,
        groups: Tensor,
        X: Tensor,
        nearest: Tensor,
        source: Source,
        rows: Tensor,
    ) -> _Neighbourhoods:
        batch = source.take(rows[nearest.reshape(-1).cpu()])
        Y, w = (
            part.to(X.device, torch.float64).reshape(*nearest.shape, -1)
            for part in (batch.Y, batch.w)
        )
        P, inner = X[nearest].double(), max(1, int(INNER * nearest.shape[1]))
        copies = _copies(P, inner)
        P = P - P.mean(1, keepdim=True)
        return cls(kernel, bandwidth, groups, P, Y, w[..., 0], nearest, inner, ~copies)

    def ignore(self, rows: Tensor) -> None:
        """Do not count the errors of these rows."""
        self.scored &= ~torch.isin(self.nearest[:, -self.inner :], rows)

    def error(self, theta: Tensor, log_ridge: Tensor) -> Tensor:
        """The logarithm of the mean squared leave-one-out error, at bandwidths times exp(theta)."""
        x = self.P / (self.bandwidth * torch.exp(theta[self.groups]))
        lam = log_ridge.clamp(math.log(RIDGES[0]), math.log(RIDGES[1])).exp()
        counted = self.w[:, -self.inner :] * self.scored
        total = loo_error(x, self.Y, lam / self.w, counted, self.kernel)
        return torch.log(total / counted.sum() + 1e-300)

    def objective(self, theta: Tensor, log_ridge: Tensor) -> Tensor:
        """With a penalty, because few rows must not invent irrelevant features."""
        return self.error(theta, log_ridge) + (theta**2).sum() / (SPREAD**2 * self.scored.sum())


def _copies(P: Tensor, inner: int) -> Tensor:
    """(anchors, inner) which of the last rows are in their neighbourhood more than once, to the
    bit: by a hash of their bits.
    """
    generator = torch.Generator().manual_seed(0)
    odd = torch.randint(-(2**62), 2**62, P.shape[-1:], generator=generator) * 2 + 1
    bits = (P + 0.0).view(torch.int64)  # -0.0 becomes 0.0
    for shift, factor in MIX:  # the last bits of round numbers are all 0
        bits = (bits ^ (bits >> shift)) * factor
    number, place = ((bits ^ (bits >> 31)) * odd.to(P.device)).sum(-1).sort(1)
    same = torch.zeros_like(number, dtype=torch.bool)
    same[:, 1:] = number[:, 1:] == number[:, :-1]
    same[:, :-1] |= same[:, 1:].clone()
    return torch.zeros_like(same).scatter_(1, place, same)[:, -inner:]
