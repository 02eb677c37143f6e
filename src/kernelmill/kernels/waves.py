"""Functions drawn from a kernel's prior, as sums of waves.

A radial kernel is the mean of cos ω·(a − b) over frequencies ω of its spectral measure, a and b the
rows as the kernel sees them. F frequencies and normal weights give functions whose covariance is
K but for an error of about 1/√F, at any row, for F cosines and sines. The kernel's own features,
metric and bandwidths are in what it sees, so that nothing else is asked of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .base import Kernel
from .mixture import Sum
from .radial import Radial

FINEST = 1e-10  # of the prior's variance, the least that fast waves are told apart by
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
    """Functions of the prior, from about `count` frequencies, which they share."""
    parts, shares = [kernel], [1.0]
    if isinstance(kernel, Sum):
        parts, shares = list(kernel.parts), kernel.shares
    blocks, heights = [], []
    for part, share in zip(parts, shares, strict=True):
        found, squares = _frequencies(part, part.width(len(origin)), count // len(parts), generator)
        blocks.append(found)
        heights.append((share * squares).sqrt())
    height = torch.cat([torch.cat(heights)] * 2)[:, None]
    weights = torch.randn(len(height), samples, generator=generator, dtype=torch.float64)
    return Waves(kernel, origin, torch.block_diag(*blocks), height * weights)


def has_waves(kernel: Kernel) -> bool:
    """Whether a kernel has a spectral measure that is known here."""
    parts = kernel.parts if isinstance(kernel, Sum) else [kernel]
    return all(
        isinstance(part, Radial)
        and (type(part).mixing is not Radial.mixing or type(part).frequency is not Radial.frequency)
        for part in parts
    )


def _frequencies(
    kernel: Kernel, width: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(width, F) frequencies of one radial kernel, and (F,) the squares of their heights, 1 in sum.

    What rows leave unknown of a function is in its fast waves: of a millionth of the prior's
    variance a thousand frequencies that are drawn alike would have none. So lengths are drawn from
    parts of the measure that are as fine among the fastest as among all: half of them equal, half
    in ratio, each as high as it is wide.
    """
    if not isinstance(kernel, Radial):
        raise InputError(f"the {kernel.name} kernel has no spectral measure; use a radial one.")
    half = max(1, count // 2)
    equal = torch.linspace(0, 1, half + 1, dtype=torch.float64)
    ratio = torch.logspace(math.log10(FINEST), 0, half + 1, dtype=torch.float64)
    edges = torch.unique(torch.cat([equal, ratio]))
    wide = edges.diff()
    place = torch.rand(len(wide), generator=generator, dtype=torch.float64)
    share = (edges[:-1] + wide * place).clamp(min=FINEST / 10, max=1 - 1e-12)
    length = kernel.frequency(share, width, generator).clamp(max=FASTEST)
    z = torch.randn(width, len(wide), generator=generator, dtype=torch.float64)
    return z * (length / z.norm(dim=0)), wide
