"""A metric learned from the model itself: the average gradient outer product.

Where a model hardly changes along a direction, distances along it say nothing, and are shortened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import OUTPUTS, agop
from ..kernels import Features, Radial, Scale
from ..kernels.features import Feature
from ..model import KernelModel

MOST_ROWS, LEAST_ROWS = 2000, 200
WORK = 5 * 10**9  # multiplications that gradients may take on a CPU: about .3 s of two cores
SMALLEST = 1e-3  # of the largest stretch of a direction: shorter ones are left out


def stretch(M: Tensor, power: float) -> Tensor:
    """(D, k) whose product with its own transpose is M^power, the largest stretch 1; directions
    that hardly count are left out.
    """
    values, vectors = torch.linalg.eigh(M)
    lengths = (values.clamp(min=0) / values[-1].clamp(min=1e-300)) ** (power / 2)
    kept = lengths > SMALLEST
    return vectors[:, kept] * lengths[kept]


def _stretch_varying(M: Tensor, varies: Tensor, power: float) -> Tensor:
    """The stretch of features that vary; others, of which nothing is known, stay as they are."""
    own = torch.eye(len(M), dtype=M.dtype, device=M.device)
    learned = own[:, varies] @ stretch(M[varies][:, varies], power)
    return torch.cat([learned, own[:, ~varies]], 1)


def _rows(x: Tensor, outputs: int) -> int:
    """On how many rows gradients are taken: fewer on a CPU where features and outputs are many."""
    work = len(x) * x.shape[1] * min(outputs, OUTPUTS)
    return MOST_ROWS if x.is_cuda else max(LEAST_ROWS, min(MOST_ROWS, WORK // work))


@dataclass(frozen=True)
class Gradients:
    """The average gradient outer product of kernel ridge fitted to some rows, and some of them as
    the kernel sees them.
    """

    kernel: Radial
    X: Tensor
    M: Tensor
    varies: Tensor  # (D,) whether a feature does
    x: Tensor

    @classmethod
    def of(cls, kernel: Radial, X: Tensor, Y: Tensor, ridge: Tensor) -> Gradients:
        L = torch.linalg.cholesky(kernel(X) + torch.diag(ridge + 1e-10 * len(X)))
        alpha = torch.cholesky_solve(Y, L)
        model = KernelModel(kernel, X, alpha, alpha.new_zeros(alpha.shape[1]))
        x = kernel.embedding(X.mean(0), torch.float64)(X)
        M = agop(model, X[: _rows(x, Y.shape[1])])
        return cls(kernel, X, M, (x != x[0]).any(0), x[:500])

    def metric(self, power: float) -> Radial:
        """The same kernel in the metric M^power; a typical distance stays what it was."""
        map = _stretch_varying(self.M, self.varies, power)
        was, now = (torch.pdist(part).median() for part in (self.x, self.x @ map))
        map = map * (was / now.clamp(min=1e-300))
        features = self.kernel.features or as_they_are(self.X)
        scale = Scale(type(self.kernel).__name__, self.kernel.bandwidth, len(features))
        found = self.kernel.owned()
        before = features.map
        if before is None:
            before = torch.eye(len(features), dtype=torch.float64)
        found.features = features.with_map(scale.apply(before) @ map.cpu())
        found.bandwidth = 1.0
        return found


def as_they_are(X: Tensor) -> Features:
    """Features that are the columns, measured from their means."""
    return Features.of(
        [Feature(j, mean, 1.0, 0) for j, mean in enumerate(X.mean(0).cpu().tolist())]
    )
