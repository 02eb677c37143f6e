"""What a Gaussian process knows beside its mean: two ways to hold it.

Both are parts of a model, which asks them for the variance of the function at rows, in units of a
signal of variance 1, and adds signal and noise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .kernels import Kernel, Points
from .kernels.waves import Waves
from .ops import KernelProduct
from .solvers import Sparse


class Process(nn.Module):
    """Variances of signal and noise, (c,), in the targets' own units."""

    signal: Tensor
    noise: Tensor

    def __init__(self, signal: Tensor, noise: Tensor):
        super().__init__()
        self.register_buffer("signal", signal)
        self.register_buffer("noise", noise)

    def std(self, share: Tensor) -> Tensor:
        """(r, c) deviations of targets, noise included, where the function has these shares (r,) of
        the signal's variance.
        """
        return (share.clamp(min=0)[:, None] * self.signal + self.noise).sqrt()


class SparseProcess(Process):
    """In closed form, of a process with inducing points: see solvers/sgpr.py."""

    L: Tensor
    R: Tensor

    def __init__(self, known: Sparse):
        super().__init__(known.signal, known.noise)
        self.register_buffer("L", known.L)
        self.register_buffer("R", known.R)
        self.ridge = known.ridge

    def share(self, K: KernelProduct, Z: Points, x: Points) -> Tensor:
        """(r,) variances of the function at points x."""
        phi = torch.linalg.solve_triangular(self.L, K.dense(Z, x).to(self.L), upper=False)
        left = torch.linalg.solve_triangular(self.R, phi, upper=False)
        return K.diagonal(x).to(phi) - (phi * phi).sum(0) + self.ridge * (left * left).sum(0)


class SampledProcess(Process):
    """As S functions drawn from it: pathwise conditioning (Matheron's rule).

    A function u drawn from the prior, seen at the training rows with noise, is learned like the
    targets: with weights `draws`. What it then differs from what was learned of it, u(x) − K(x, Z)
    draws, is what the targets' own function may differ from the mean: a draw of the posterior, less
    its mean. That holds for centers that are not all rows, and for a solver that stops early, too:
    their error is in it.
    """

    draws: Tensor  # (p, S)
    origin: Tensor
    frequencies: Tensor
    heights: Tensor

    def __init__(self, draws: Tensor, waves: Waves, signal: Tensor, noise: Tensor):
        super().__init__(signal, noise)
        self.register_buffer("draws", draws)
        self.register_buffer("origin", waves.origin)
        self.register_buffer("frequencies", waves.frequencies)
        self.register_buffer("heights", waves.weights)

    def prior(self, kernel: Kernel, X: Tensor) -> Tensor:
        """(r, S) values of the functions that were drawn."""
        return Waves(kernel, self.origin, self.frequencies, self.heights)(X)

    @staticmethod
    def share(prior: Tensor, left: Tensor) -> Tensor:
        """(r,) variances from the S functions and what is left of them: the mean square, less what
        the prior's own mean square, which should be 1, is off by, as far as the two go together
        (a control variate). Far from all rows it is 1 to the bit.
        """
        square, together = (prior * prior).mean(1), (prior * left).mean(1)
        slope = (together / square.clamp(min=1e-30)) ** 2
        return (left * left).mean(1) - slope * (square - 1)
