"""Kernels of the inner product x·z and the two norms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .base import Kernel, Points, Scale, positive


@dataclass(eq=False)
class DotProduct(Kernel):
    """K(x, z) = profile(x·z, ‖x‖², ‖z‖²) of rows divided by the bandwidth."""

    bandwidth: object = 1.0  # see Scale

    def profile(self, dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> Tensor:
        raise NotImplementedError

    def validate(self, d: int) -> None:
        Scale(type(self).__name__, self.bandwidth, d)

    def embedding(self, origin: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        scale = Scale(type(self).__name__, self.bandwidth)
        return lambda X: scale.apply(X.to(torch.promote_types(X.dtype, dtype))).to(dtype)

    def per_feature(self, G: Tensor) -> Tensor:
        return Scale(type(self).__name__, self.bandwidth).chain(G)

    def evaluate(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        dot = torch.mm(A.x, B.x.T, out=out)
        K = self.profile(dot, A.sq[:, None], B.sq[None, :])
        return K if out is None or K is dot else out.copy_(K)

    def diagonal(self, A: Points) -> Tensor:
        return self.profile(A.sq.clone(), A.sq, A.sq)


@dataclass(eq=False)
class Linear(DotProduct):
    """x·z.

    Parameters
    ----------
    bandwidth : float or array
        What rows are divided by: one number, one per feature, or a (d, d) matrix Σ for x·z =
        xᵀΣ⁻¹z.
    """

    name = "linear"
    homogeneity = 1

    def profile(self, dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> Tensor:
        return dot


@dataclass(eq=False)
class Polynomial(DotProduct):
    """(x·z + constant)^degree.

    Parameters
    ----------
    bandwidth : float or array
        What rows are divided by: one number, one per feature, or a (d, d) matrix Σ for x·z =
        xᵀΣ⁻¹z.
    degree : int
        The power.
    constant : float
        What is added before; 0 leaves terms of the highest degree only.
    """

    degree: int = 3
    constant: float = 1.0
    name = "polynomial"

    @property
    def homogeneity(self) -> int | None:  # type: ignore[override]
        return None if self.constant else int(self.degree)

    def validate(self, d: int) -> None:
        super().validate(d)
        positive("Polynomial", "constant", self.constant, allow_zero=True)
        if self.degree != int(self.degree) or self.degree < 1:
            raise InputError(
                f"Polynomial: degree={self.degree!r} was given, expected a whole number of 1 or"
                " more."
            )

    def profile(self, dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> Tensor:
        return dot.add_(self.constant).pow_(int(self.degree))


def _angle(dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> tuple[Tensor, Tensor]:
    """(‖x‖‖z‖, cos of the angle); the cosine of a zero row is 0, never NaN."""
    # √(‖x‖²‖z‖²) would leave float32's range where ‖x‖ is 1e10.
    norms = sq_a.sqrt() * sq_b.sqrt()
    return norms, torch.where(norms > 0, dot / norms, 0.0).clamp_(-1, 1)


def _relu_step(cos: Tensor) -> tuple[Tensor, Tensor]:
    """κ0 and κ1: the expected derivative and value of two ReLU units at this cosine, scaled to 1
    at cos = 1.
    """
    angle = torch.acos(cos)
    kappa0 = 1 - angle / math.pi
    return kappa0, torch.sin(angle).div_(math.pi).add_(cos * kappa0)


@dataclass(eq=False)
class ReluNTK(DotProduct):
    """Neural tangent kernel of an infinitely wide ReLU network with `depth` hidden layers and no
    bias, divided by depth + 1.

    Parameters
    ----------
    bandwidth : float or array
        What rows are divided by: one number, one per feature, or a (d, d) matrix Σ for x·z =
        xᵀΣ⁻¹z.
    depth : int
        Hidden layers, 1 or more.
    """

    depth: int = 2
    name = "relu_ntk"
    homogeneity = 1

    def validate(self, d: int) -> None:
        super().validate(d)
        if self.depth != int(self.depth) or self.depth < 1:
            raise InputError(
                f"ReluNTK: depth={self.depth!r} was given, expected a whole number of 1 or more."
            )

    def profile(self, dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> Tensor:
        norms, sigma = _angle(dot, sq_a, sq_b)
        theta = sigma.clone()
        for _ in range(int(self.depth)):
            kappa0, sigma = _relu_step(sigma.clamp(-1, 1))
            theta = theta.mul_(kappa0).add_(sigma)
        return theta.mul_(norms).div_(self.depth + 1)

    def diagonal(self, A: Points) -> Tensor:
        return A.sq.clone()  # a cosine of 1 − ε would be an angle of √ε


@dataclass(eq=False)
class ArcCosine(DotProduct):
    """Arc-cosine kernel of `order` 0, 1 or 2 (Cho and Saul), scaled so that K(x, x) =
    ‖x‖^(2·order).

    Parameters
    ----------
    bandwidth : float or array
        What rows are divided by: one number, one per feature, or a (d, d) matrix Σ for x·z =
        xᵀΣ⁻¹z.
    order : int
        0 (steps), 1 (ReLU) or 2.
    """

    order: int = 1
    name = "arc_cosine"

    @property
    def homogeneity(self) -> int:  # type: ignore[override]
        return self.order

    def validate(self, d: int) -> None:
        super().validate(d)
        if self.order not in (0, 1, 2):
            raise InputError(f"ArcCosine: order={self.order!r} was given, expected 0, 1 or 2.")

    def profile(self, dot: Tensor, sq_a: Tensor, sq_b: Tensor) -> Tensor:
        norms, cos = _angle(dot, sq_a, sq_b)
        if self.order == 0:
            return _relu_step(cos)[0]
        if self.order == 1:
            return _relu_step(cos)[1] * norms
        angle = torch.acos(cos)
        value = 3 * torch.sin(angle) * cos + (math.pi - angle) * (1 + 2 * cos * cos)
        return value.div_(3 * math.pi) * norms * norms

    def diagonal(self, A: Points) -> Tensor:
        # 0.5: the angle of a zero row counts as π/2.
        return A.sq**self.order if self.order else torch.where(A.sq > 0, 1.0, 0.5).to(A.sq)


# Norms of rows up to here, and down to one over it: K², its sums and its inverse stay far inside
# float32's range.
ROOMY = 2.0**10


def in_range(kernel: Kernel, X: Tensor) -> Kernel:
    """A homogeneous kernel in units of the rows X: its bandwidth times the power of two that
    brings their norms near 1, where they are far from it. K is the same but for one factor,
    which `magnification` gives back, so that the scale of the features drops out.
    """
    # A subclass may have a profile of its own.
    known = isinstance(kernel, DotProduct) and type(kernel) in (
        Linear,
        Polynomial,
        ReluNTK,
        ArcCosine,
    )
    if not known or kernel.homogeneity is None or not len(X):
        return kernel
    assert isinstance(kernel, DotProduct)
    x = kernel.embedding(X[0].double(), torch.float64)(X.double())
    size = (x * x).sum(1).mean().sqrt().item()
    if not 0 < size < math.inf or 1 / ROOMY <= size <= ROOMY:
        return kernel
    changed, factor = copy.copy(kernel), 2.0 ** round(math.log2(size))
    values = Scale(type(kernel).__name__, changed.bandwidth).values
    changed.bandwidth = values * (factor * factor if values.ndim == 2 else factor)
    return changed


def magnification(given: Kernel, used: Kernel) -> float:
    """The bandwidth of `used` over that of `given`, of which `in_range` made it; 1 where it made
    nothing.
    """
    if (
        not isinstance(given, DotProduct)
        or not isinstance(used, DotProduct)
        or given.homogeneity is None
    ):
        return 1.0
    a, b = (Scale(type(kernel).__name__, kernel.bandwidth).values for kernel in (given, used))
    ratio = (b.flatten()[0] / a.flatten()[0]).item()
    return math.sqrt(ratio) if a.ndim == 2 else ratio
