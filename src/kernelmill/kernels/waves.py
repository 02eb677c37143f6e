"""Functions drawn from a kernel's prior, as sums of waves.

A radial kernel is the mean of cos ω·(a − b) over frequencies ω of its spectral measure, a and b the
rows as the kernel sees them. F frequencies and normal weights give functions whose covariance is
K but for an error of 1/√F, at any row, for F cosines and sines. The kernel's own features, metric
and bandwidths are in what it sees, so that nothing else is asked of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .base import Kernel
from .mixture import Sum
from .radial import Radial

FASTEST = 1e5  # radians a bandwidth: beyond, a wave is noise to float32 and to any rows
NUMBERS = 16 << 20  # cosines and sines held at a time


@dataclass(frozen=True)
class Waves:
    """S functions of rows: cosines and sines of F frequencies, times weights.

    `frequencies` (D, F) are those of features as the kernel sees them from `origin` (d,);
    `weights` (2F, S) hold the heights too.
    """

    kernel: Kernel
    origin: Tensor
    frequencies: Tensor
    weights: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """(r, S) values at rows X, in the precision of the weights."""
        embed = self.kernel.embedding(self.origin, self.weights.dtype)
        if torch.compiler.is_exporting():
            return self._of(embed(X))
        step = max(1, NUMBERS // len(self.weights))
        parts = [self._of(embed(part.to(self.weights.device))) for part in X.split(step)]
        return torch.cat(parts) if parts else self.weights.new_empty(0, self.weights.shape[1])

    def _of(self, features: Tensor) -> Tensor:
        phase = features @ self.frequencies
        return torch.cat([phase.cos(), phase.sin()], 1) @ self.weights

    def to(self, device: torch.device | str) -> Waves:
        origin, frequencies = self.origin.to(device), self.frequencies.to(device)
        return Waves(self.kernel, origin, frequencies, self.weights.to(device))


def draw_waves(
    kernel: Kernel, origin: Tensor, count: int, samples: int, generator: torch.Generator
) -> Waves:
    """Functions of a kernel of variance 1, from `count` frequencies, which they share."""
    parts, shares = [kernel], [1.0]
    if isinstance(kernel, Sum):
        parts, shares = list(kernel.parts), kernel.shares
    d = len(origin)
    blocks, heights = [], []
    for part, share in zip(parts, shares, strict=True):
        each = -(-count // len(parts))
        blocks.append(_frequencies(part, part.width(d), each, generator))
        heights.append(torch.full((each,), (share / each) ** 0.5, dtype=torch.float64))
    height = torch.cat(heights).repeat(2)[:, None]
    weights = torch.randn(len(height), samples, generator=generator, dtype=torch.float64)
    return Waves(kernel, origin, torch.block_diag(*blocks), height * weights)


def has_waves(kernel: Kernel) -> bool:
    """Whether a kernel has a spectral measure that is known here."""
    parts = kernel.parts if isinstance(kernel, Sum) else [kernel]
    return all(
        isinstance(part, Radial) and type(part).mixing is not Radial.mixing for part in parts
    )


def _frequencies(kernel: Kernel, width: int, count: int, generator: torch.Generator) -> Tensor:
    """(width, count) of one radial kernel. Their lengths decide how much of a function rows can
    tell: one is drawn from each of `count` equal parts of the mixture.
    """
    if not isinstance(kernel, Radial):
        raise InputError(f"the {kernel.name} kernel has no spectral measure; use a radial one.")
    place = torch.arange(count, dtype=torch.float64)
    u = (place + torch.rand(count, generator=generator, dtype=torch.float64)) / count
    e = torch.empty(count, dtype=torch.float64).exponential_(generator=generator)
    tau = kernel.mixing(u.clamp(1e-12, 1 - 1e-12), e)
    z = torch.randn(width, count, generator=generator, dtype=torch.float64)
    omega = z * tau.sqrt()
    return omega * (FASTEST / omega.norm(dim=0)).clamp(max=1.0)
