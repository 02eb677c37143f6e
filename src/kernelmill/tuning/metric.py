"""A metric learned from the model itself: the average gradient outer product.

Where a model hardly changes along a direction, distances along it say nothing, and are shortened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import OUTPUTS, agop
from ..kernels import Features, Kernel, Radial, Scale, Sum
from ..kernels.features import Feature
from ..model import KernelModel
from ..projection import NotPositiveDefinite
from ..ridge import solve_ridge

ON_GPU, ON_CPU, LEAST_ROWS = 20_000, 2000, 200  # rows that gradients are taken on
WORK = 5 * 10**9  # multiplications that gradients may take on a CPU: about .3 s of two cores
POWERS = (0.5, 1.0)  # of an average gradient outer product that becomes a metric
SPREAD_ROWS = 20_000  # rows that tell which features vary
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


def _rows(X: Tensor, features: int, outputs: int) -> int:
    """On how many rows gradients are taken: fewer on a CPU where features and outputs are many."""
    work = len(X) * features * min(outputs, OUTPUTS)
    return ON_GPU if X.is_cuda else max(LEAST_ROWS, min(ON_CPU, WORK // work))


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
        alpha = solve_ridge(kernel(X), ridge + 1e-10 * len(X), Y)
        if alpha is None:
            raise NotPositiveDefinite(f"K of {len(X)} rows cannot be factored.")
        (found,) = cls.of_model(KernelModel(kernel, X, alpha, alpha.new_zeros(alpha.shape[1])))
        return found

    @classmethod
    def of_model(cls, model: KernelModel) -> list[Gradients]:
        """Of each radial part of the model's kernel, at the model's centers."""
        kernel, X = model.kernel, model.Z
        some = X[:SPREAD_ROWS]
        x = kernel.embedding(X.mean(0, dtype=torch.float64), torch.float64)(some)
        M = agop(model, X[: _rows(X, x.shape[1], model.alpha.shape[1])])
        parts: list[Radial] = kernel.parts if isinstance(kernel, Sum) else [kernel]  # type: ignore[list-item]
        widths = kernel.widths(x.shape[1]) if isinstance(kernel, Sum) else [x.shape[1]]
        found, start = [], 0
        for part, width in zip(parts, widths, strict=True):
            own = slice(start, start + width)
            varies = (x[:, own] != x[0, own]).any(0)
            found.append(cls(part, X, M[own, own], varies, x[:500, own]))
            start += width
        return found

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


def in_own_metric(kernel: Kernel, learned: list[Gradients], power: float) -> Kernel:
    """A kernel, or a sum of them, in the metric of its own model."""
    parts = [gradients.metric(power) for gradients in learned]
    return Sum(parts, kernel.weights) if isinstance(kernel, Sum) else parts[0]


def as_they_are(X: Tensor) -> Features:
    """Features that are the columns, measured from their means."""
    return Features.of(
        [Feature(j, mean, 1.0, 0) for j, mean in enumerate(X.mean(0).cpu().tolist())]
    )
