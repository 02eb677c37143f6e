"""Kernels of the distance r between two rows, measured in bandwidths: one profile each, distances
in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from scipy import special
from torch import Tensor

from ..errors import InputError
from .base import Kernel, Points, Scale, positive, shrunk_norms
from .features import Features

LOG2E = math.log2(math.e)
DRAWS = 1 << 20  # of a spectral measure that has no closed form


def _frequency_of_matern(nu: float, share: Tensor, d: int) -> Tensor:
    """Frequencies have a t distribution of 2ν degrees of freedom: their squared length over d is
    Fisher's F.
    """
    return torch.from_numpy((d / special.fdtri(2 * nu, d, share.numpy())) ** 0.5)


def exponential(x: Tensor, factor: float = -1.0) -> Tensor:
    """e^(factor·x), which may overwrite x. In float32 as a power of two, which takes a third of the
    time on a CPU and is off by up to 1e-6 of itself where K is 1e-9; an exported program has the
    usual one.
    """
    if torch.compiler.is_exporting():
        return torch.exp(factor * x)
    if x.dtype == torch.float32:
        return x.mul_(factor * LOG2E).exp2_()
    return x.mul_(factor).exp_()


@dataclass(eq=False)
class Radial(Kernel):
    """K(x, z) = profile(r²), r = ‖ψ(x) − ψ(z)‖ / bandwidth, profile(0) = 1.

    ψ are the `features` of a row; without any, the row itself.
    """

    bandwidth: object = 1.0  # see Scale; "auto" in an estimator
    features: Features | None = field(default=None, kw_only=True)
    translation_invariant = True

    def profile(self, sq_dist: Tensor) -> Tensor:
        """K from squared distances; may overwrite its argument."""
        raise NotImplementedError

    def slope(self, sq_dist: Tensor) -> Tensor:
        """The derivative of the profile by the squared distance; 0 where rows coincide.

        By a central difference, exact to about ten digits, where a kernel does not say it.
        """
        step = 1e-5
        up, down = self.profile(sq_dist * (1 + step)), self.profile(sq_dist * (1 - step))
        return torch.where(sq_dist > 0, (up - down) / (2 * step * sq_dist.clamp(min=1e-300)), 0.0)

    def mixing(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws of τ with profile(r²) = E exp(−τ r²/2): a radial kernel is a mixture of
        Gaussians, and √τ times a normal vector a frequency of its spectral measure.
        """
        raise NotImplementedError

    def frequency(self, share: Tensor, d: int, generator: torch.Generator) -> Tensor:
        """The length, in radians a bandwidth, that so large a share of frequencies is above, for
        rows of d features. From draws, where no closed form is known.
        """
        tau = self.mixing(DRAWS, generator)
        normal = torch.empty(DRAWS, dtype=torch.float64)
        squares = 2 * torch.from_numpy(
            special.gammaincinv(d / 2, normal.uniform_(generator=generator).numpy())
        )
        drawn = (tau * squares).sort(descending=True).values
        return drawn[(share * DRAWS).long().clamp(max=DRAWS - 1)].sqrt()

    def validate(self, d: int) -> None:
        if self.features is not None:
            self.features.validate(d)
            d = len(self.features)
        Scale(type(self).__name__, self.bandwidth, d)

    def width(self, d: int) -> int:
        return d if self.features is None else len(self.features)

    def embedding(self, origin: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        scale = Scale(type(self).__name__, self.bandwidth)
        features = self.features
        if features is not None:
            origin = features.apply(origin[None])[0]
        there = {(origin.device, origin.dtype): origin}

        def embed(X: Tensor) -> Tensor:
            # The shift is done in the wider of the two precisions: a column like 4,000,000 ± 100
            # keeps its ± 100 in float32.
            wide = torch.promote_types(X.dtype, dtype)
            X = X.to(wide) if features is None else features.apply(X.to(wide))
            if (X.device, wide) not in there:
                there[X.device, wide] = origin.to(X.device, wide)
            return scale.apply(X - there[X.device, wide]).to(dtype)

        return embed

    def features_of(self, X: Tensor) -> Tensor:
        return X if self.features is None else self.features.encode(X)

    def per_feature(self, G: Tensor) -> Tensor:
        G = Scale(type(self).__name__, self.bandwidth).chain(G)
        return G if self.features is None else self.features.unmap(G)

    def per_column(self, G: Tensor, X: Tensor) -> Tensor:
        G = self.per_feature(G)
        return G if self.features is None else self.features.chain(G, X)

    def squares(self, x: Tensor) -> Tensor:
        return shrunk_norms(x)

    def evaluate(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        sq_dist = self.sq_dist(A, B, out)
        K = self.profile(sq_dist)
        return K if out is None or K is sq_dist else out.copy_(K)

    def sq_dist(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        """Squared distances in bandwidths: what the profile is of."""
        sq_dist = torch.addmm(B.sq, A.x, B.x.T, alpha=-2, out=out)
        return sq_dist.add_(A.sq[:, None]).clamp_(min=0)

    def diagonal(self, A: Points) -> Tensor:
        return torch.ones_like(A.sq)


@dataclass(eq=False)
class Laplacian(Radial):
    """exp(−r), with r the distance in bandwidths.

    Parameters
    ----------
    bandwidth : float, array or "auto"
        What distances are divided by: one number, one per feature, or a (d, d) matrix Σ with r² =
        (x−z)ᵀΣ⁻¹(x−z). "auto": an estimator chooses it from the data.
    features : Features, optional
        What the kernel sees of a row; None: the row itself. `encode_columns` makes some.
    """

    name = "laplacian"

    def profile(self, sq_dist: Tensor) -> Tensor:
        return exponential(sq_dist.sqrt_())

    def frequency(self, share: Tensor, d: int, generator: torch.Generator) -> Tensor:
        return _frequency_of_matern(0.5, share, d)

    def slope(self, sq_dist: Tensor) -> Tensor:
        r = sq_dist.sqrt()
        return torch.where(r > 0, exponential(r.clone()) / (-2 * r), 0.0)


@dataclass(eq=False)
class Gaussian(Radial):
    """exp(−r²/2), with r the distance in bandwidths.

    Parameters
    ----------
    bandwidth : float, array or "auto"
        What distances are divided by: one number, one per feature, or a (d, d) matrix Σ with r² =
        (x−z)ᵀΣ⁻¹(x−z). "auto": an estimator chooses it from the data.
    features : Features, optional
        What the kernel sees of a row; None: the row itself. `encode_columns` makes some.
    """

    name = "gaussian"

    def profile(self, sq_dist: Tensor) -> Tensor:
        return exponential(sq_dist, -0.5)

    def frequency(self, share: Tensor, d: int, generator: torch.Generator) -> Tensor:
        return torch.from_numpy((2 * special.gammainccinv(d / 2, share.numpy())) ** 0.5)

    def slope(self, sq_dist: Tensor) -> Tensor:
        return exponential(sq_dist.clone(), -0.5) / -2


@dataclass(eq=False)
class Matern(Radial):
    """Matérn of smoothness ν = 1/2, 3/2 or 5/2; ν = 1/2 is the Laplacian.

    Parameters
    ----------
    bandwidth : float, array or "auto"
        What distances are divided by: one number, one per feature, or a (d, d) matrix Σ with r² =
        (x−z)ᵀΣ⁻¹(x−z). "auto": an estimator chooses it from the data.
    nu : float
        The smoothness: 0.5, 1.5 or 2.5.
    features : Features, optional
        What the kernel sees of a row; None: the row itself. `encode_columns` makes some.
    """

    nu: float = 1.5
    name = "matern"

    def validate(self, d: int) -> None:
        super().validate(d)
        if self.nu not in (0.5, 1.5, 2.5):
            raise InputError(
                f"Matern: nu={self.nu!r} was given, expected 0.5, 1.5 or 2.5; or see"
                " GeneralisedExponential."
            )

    def profile(self, sq_dist: Tensor) -> Tensor:
        r = sq_dist.sqrt_().mul_(math.sqrt(2 * self.nu))
        decay = exponential(r.clone())
        if self.nu == 0.5:
            return decay
        if self.nu == 1.5:
            return r.add_(1).mul_(decay)
        return (r * r).div_(3).add_(r).add_(1).mul_(decay)

    def frequency(self, share: Tensor, d: int, generator: torch.Generator) -> Tensor:
        return _frequency_of_matern(self.nu, share, d)

    def slope(self, sq_dist: Tensor) -> Tensor:
        r = sq_dist.sqrt() * math.sqrt(2 * self.nu)
        decay = exponential(r.clone())
        if self.nu == 0.5:
            return torch.where(r > 0, decay / (-2 * r), 0.0)
        return decay * -1.5 if self.nu == 1.5 else (1 + r) * decay * (-5 / 6)


@dataclass(eq=False)
class GeneralisedExponential(Radial):
    """exp(−r^γ), 0 < γ ≤ 2: γ = 1 is the Laplacian; γ = 2 the Gaussian of bandwidth σ/√2.

    Parameters
    ----------
    bandwidth : float, array or "auto"
        What distances are divided by: one number, one per feature, or a (d, d) matrix Σ with r² =
        (x−z)ᵀΣ⁻¹(x−z). "auto": an estimator chooses it from the data.
    gamma : float
        γ, above 0 and at most 2.
    features : Features, optional
        What the kernel sees of a row; None: the row itself. `encode_columns` makes some.
    """

    gamma: float = 1.0
    name = "generalised_exponential"

    def validate(self, d: int) -> None:
        super().validate(d)
        if positive("GeneralisedExponential", "gamma", self.gamma) > 2:
            raise InputError(
                f"GeneralisedExponential: gamma={self.gamma!r} was given, expected 0 < gamma ≤ 2;"
                " above 2 it is not a kernel."
            )

    def profile(self, sq_dist: Tensor) -> Tensor:
        return exponential(sq_dist.pow_(self.gamma / 2))

    def mixing(self, count: int, generator: torch.Generator) -> Tensor:
        """Twice a positive stable number of index γ/2 (Kanter, 1975)."""
        a = self.gamma / 2
        if a == 1:
            return torch.full((count,), 2.0, dtype=torch.float64)
        u = torch.rand(count, generator=generator, dtype=torch.float64).clamp(min=1e-12)
        e = torch.empty(count, dtype=torch.float64).exponential_(generator=generator)
        angle = math.pi * u
        stable = torch.sin(a * angle) / torch.sin(angle) ** (1 / a)
        return 2 * stable * (torch.sin((1 - a) * angle) / e) ** ((1 - a) / a)

    def slope(self, sq_dist: Tensor) -> Tensor:
        r = sq_dist.sqrt()
        power = (-self.gamma / 2) * r ** (self.gamma - 2) * torch.exp(-(r**self.gamma))
        return torch.where(r > 0, power, 0.0)


@dataclass(eq=False)
class RationalQuadratic(Radial):
    """(1 + r²/(2a))^(−a), a = `shape`: a mixture of Gaussians of many bandwidths.

    Parameters
    ----------
    bandwidth : float, array or "auto"
        What distances are divided by: one number, one per feature, or a (d, d) matrix Σ with r² =
        (x−z)ᵀΣ⁻¹(x−z). "auto": an estimator chooses it from the data.
    shape : float
        a, above 0. The larger, the nearer to the Gaussian.
    features : Features, optional
        What the kernel sees of a row; None: the row itself. `encode_columns` makes some.
    """

    shape: float = 1.0
    name = "rational_quadratic"

    def validate(self, d: int) -> None:
        super().validate(d)
        positive("RationalQuadratic", "shape", self.shape)

    def profile(self, sq_dist: Tensor) -> Tensor:
        # Not (1 + …)^(−a): for a large a all of r²/(2a) is in the
        # digits that 1 + r²/(2a) rounds off.
        return exponential(sq_dist.div_(2 * self.shape).log1p_(), -self.shape)

    def mixing(self, count: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
        return torch.from_numpy(special.gammaincinv(self.shape, u)) / self.shape

    def slope(self, sq_dist: Tensor) -> Tensor:
        return torch.exp(torch.log1p(sq_dist / (2 * self.shape)) * (-self.shape - 1)) / -2
