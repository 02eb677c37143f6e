"""How a regressor is to tell how sure it is: the settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from .errors import InputError, one_of
from .params import Settings
from .planning.arguments import whole


@dataclass(eq=False)
class Conformal(Settings):
    """Intervals from residuals of rows that the model did not learn from: any kernel, solver and
    loss, a second or two of two cores, and a share of rows inside that assumes nothing of noise.
    """

    name = "conformal"

    def check(self) -> None:
        """It has no settings."""


@dataclass(eq=False)
class Posterior(Settings):
    """A Gaussian process: its posterior is learned beside its mean, as functions drawn from it.

    Parameters
    ----------
    samples : int
        Functions that are drawn. Standard deviations are off by 1/√(2·samples) of themselves where
        the noise is small; 128: 6 %.
    noise : float, optional
        The variance of the noise of one target, in the targets' own unit. None: it is chosen, or
        the ridge times the signal's variance where a ridge is given.
    features : int
        Cosines and sines that functions of the prior are made of.
    """

    samples: int = 128
    noise: float | None = None
    features: int = 4096
    name = "posterior"

    def check(self) -> None:
        for name, least in (("samples", 2), ("features", 2)):
            if whole(name, getattr(self, name), least) is None:
                raise InputError(f"{name}=None was given, expected a whole number.")
        noise = self.noise
        if noise is not None and (
            isinstance(noise, bool) or not isinstance(noise, Real) or not 0 < noise < math.inf
        ):
            raise InputError(
                f"noise={noise!r} was given, expected a variance above 0, or None to have it"
                " chosen."
            )


NAMED: dict[str, type[Conformal | Posterior]] = {kind.name: kind for kind in (Conformal, Posterior)}


def resolve(uncertainty: object) -> Conformal | Posterior:
    """An object from a name or an object."""
    if isinstance(uncertainty, (Conformal, Posterior)):
        uncertainty.check()
        return uncertainty
    if isinstance(uncertainty, str) and uncertainty in NAMED:
        return NAMED[uncertainty]()
    raise one_of("uncertainty", uncertainty, [*NAMED])
