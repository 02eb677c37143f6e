"""Bandwidths of single features, refined at the density of the real run.

Which columns matter depends on how close rows are: among 1,000 rows the neighbours are far, and coarse columns decide; among 500,000
they are near, and fine ones do. A leave-one-out error of that many rows is out of reach, but what a kernel machine says at x depends on
rows near x. So: a few anchors, the nearest rows of each among as many rows as there will be centers, and the leave-one-out error of the
inner ones, whose own neighbours are all there. Batched, it is a few hundred small Cholesky factors for each step down its gradient.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Batch
from .kernels import Radial
from .tuning import SPREAD, Profile, loo_residuals, minimise

log = logging.getLogger("kernelmill")

MOST_ROWS = 1_000_000  # among which neighbours are looked for
INNER = 0.3  # the part of a neighbourhood, nearest to its anchor, whose errors count
STEPS = 20
GAIN = math.log(0.98)  # the least change of the error, on other neighbourhoods, that is more than chance


@dataclass(frozen=True)
class Effort:
    anchors: int
    size: int
    rounds: int


ON_CPU, ON_GPU = Effort(32, 256, 1), Effort(128, 768, 2)  # about 5 and 3 seconds


def refined(kernel: Radial, rows: Batch, generator: torch.Generator) -> Radial:
    """The kernel with a bandwidth for each feature changed to suit neighbourhoods among `rows`; as it was where that does not help.

    Whether it helps is asked of other neighbourhoods than those it was fitted to.
    """
    effort = ON_GPU if rows.X.is_cuda else ON_CPU
    kernel, ridge = copy.deepcopy(kernel), torch.tensor(math.log(1e-3), dtype=torch.float64, device=rows.X.device)
    for _ in range(effort.rounds):
        fresh = _Neighbourhoods(kernel, rows, effort, generator)
        theta = torch.zeros(rows.X.shape[1], dtype=torch.float64, device=rows.X.device)
        before, fitted = ridge.clone(), ridge.clone()
        minimise(lambda: fresh.error(theta, fitted) + fresh.penalty(theta), [theta.requires_grad_(), fitted.requires_grad_()], None, STEPS)  # noqa: B023
        with torch.no_grad():
            other = _Neighbourhoods(kernel, rows, effort, generator)
            was, now = (min(other.error(at, r).item() for r in (before, fitted)) for at in (torch.zeros_like(theta), theta))
            log.info(
                "tuning: %d neighbourhoods of %d rows: error %.4g, was %.4g", effort.anchors, effort.size, math.exp(now), math.exp(was)
            )
            if not now - was < GAIN:
                break
            kernel.bandwidth = kernel.bandwidth * torch.exp(theta.detach()).cpu()
            ridge = fitted.detach()
    return kernel


class _Neighbourhoods:
    def __init__(self, kernel: Radial, rows: Batch, effort: Effort, generator: torch.Generator):
        self.kernel, self.bandwidth = kernel, kernel.bandwidth.to(rows.X.device, torch.float64)
        size = min(effort.size, len(rows))
        x = (rows.X - rows.X[:10_000].mean(0)) / self.bandwidth.to(rows.X.dtype)
        squares = (x * x).sum(1)
        anchors = torch.randperm(len(rows), generator=generator)[: effort.anchors].to(x.device)
        near = [(squares - 2 * x[part] @ x.T).topk(size, largest=False).indices for part in anchors.split(16)]
        nearest = torch.cat(near)  # (anchors, size), the nearest first
        P = rows.X[nearest].double()
        self.P, self.Y, self.w = P - P.mean(1, keepdim=True), rows.Y[nearest].double(), rows.w[nearest].double()
        self.inner = max(1, int(INNER * size))

    def error(self, theta: Tensor, log_ridge: Tensor) -> Tensor:
        """The logarithm of the mean squared leave-one-out error, at bandwidths times exp(theta)."""
        x = self.P / (self.bandwidth * torch.exp(theta))
        squares = (x * x).sum(-1)
        off_diagonal = 1 - torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        sq_dist = (squares[:, :, None] + squares[:, None, :] - 2 * x @ x.transpose(1, 2)).clamp(min=0) * off_diagonal
        residual = loo_residuals(Profile.apply(sq_dist, self.kernel), self.Y, log_ridge.exp() / self.w)
        w = self.w[:, : self.inner]
        return torch.log((w[:, :, None] * residual[:, : self.inner] ** 2).sum() / w.sum() + 1e-300)

    def penalty(self, theta: Tensor) -> Tensor:
        """Few rows must not invent irrelevant features."""
        return (theta**2).sum() / (SPREAD**2 * len(self.P) * self.inner)
