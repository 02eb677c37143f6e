"""Descends an error in logarithms of bandwidths and ridge."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

RIDGES = (1e-10, 1e3)
# Evaluations that together gain less than is enough, after which it ends; but there are so many at
# least, for the first ones may be on a plain.
PATIENCE, LEAST = 2, 6

# Median distances a bandwidth may be: wider is the same model of a
# smaller ridge, with fewer digits.
NARROWEST, WIDEST = 0.01, 20.0

FACTORS = (0.3, 1.0, 3.0, 10.0)  # of the median distance that a bandwidth may start from


@dataclass(frozen=True)
class Reach:
    """How far rows are from each other, and so how wide a kernel may be.

    Far above all distances K ≈ 1 − (r/b)^γ: b then moves nothing that the ridge does not, but
    the digits of K are those of (r/b)^γ, and few of them are left in float32. Far below, every
    row is alone. A feature of its own may be as wide as it likes: it is left out.
    """

    median: float  # distance between two rows
    squares: Tensor  # (d,) what each feature adds to the squared distance of a typical pair

    @classmethod
    def of(cls, rows: Tensor) -> Reach:
        distance = torch.pdist(rows[:500])
        distance = distance[distance > 0]
        median = distance.median().item() if len(distance) else 1.0
        squares = rows.var(0, correction=0)
        return cls(median, squares * (median**2 / squares.sum().clamp(min=1e-300)))

    def bounded(self, theta: Tensor) -> Tensor:
        """Logarithms of bandwidths, moved together to where the typical pair is within the
        bounds.
        """
        distance = 0.5 * torch.log((self.squares * torch.exp(-2 * theta)).sum().clamp(min=1e-300))
        return theta - (distance.clamp(-math.log(WIDEST), -math.log(NARROWEST)) - distance)


class _Enough(Exception):
    """Little is gained any more."""


def minimise(
    error: Callable[[], Tensor],
    parameters: list[Tensor],
    scan: Tensor | None,
    steps: int = 15,
    factors: tuple[float, ...] = FACTORS,
    enough: float = 0.0,
) -> None:
    """A coarse scan of the common bandwidth where asked for, then L-BFGS, until PATIENCE
    evaluations gain less than is `enough`.

    Never ends above the best point it has seen.
    """
    best, least = [p.detach().clone() for p in parameters], math.inf

    def note(value: float) -> None:
        nonlocal best, least
        if value < least:
            best, least = [p.detach().clone() for p in parameters], value

    def restore() -> None:
        with torch.no_grad():
            for p, value in zip(parameters, best, strict=True):
                p.copy_(value)

    if scan is not None:
        start = scan.detach().clone()
        with torch.no_grad():
            for factor_ in factors:
                scan.copy_(start + math.log(factor_))
                note(value_of(error))
        restore()
    lows: list[float] = []  # the least error after each evaluation
    sizes = [p.numel() for p in parameters]

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.no_grad():
            for p, part in zip(parameters, torch.from_numpy(x).split(sizes), strict=True):
                p.copy_(part.view_as(p))
        try:
            value = error()
            slopes = torch.autograd.grad(value, parameters)
        except torch.linalg.LinAlgError:
            return 1e10, np.zeros_like(x)
        note(value.item())
        lows.append(least)
        if enough and len(lows) >= LEAST and not lows[-1 - PATIENCE] - least >= enough:
            raise _Enough
        return value.item(), _flat(slopes)

    with contextlib.suppress(_Enough):
        _lbfgs(value_and_slope, _flat(parameters), steps)
    restore()


def _lbfgs(
    value_and_slope: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, steps: int
) -> None:
    """So many steps of scipy's L-BFGS, in a unit that makes the first one follow the slope, and be
    no longer than 1 in sum. (torch's imports its compiler: more than a second of a first fit.)
    """
    first = value_and_slope(start)
    slope = first[1]
    unit = np.linalg.norm(slope) * min(1.0, 1 / max(np.abs(slope).sum(), 1e-300))
    if not unit > 0:
        return

    def moved(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = value_and_slope(start + unit * u) if u.any() else first
        return value, unit * slope

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 0.0, "gtol": 1e-7 * unit}
    optimize.minimize(moved, np.zeros_like(start), jac=True, method="L-BFGS-B", options=options)


def _flat(tensors: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([each.detach().reshape(-1) for each in tensors]).double().cpu().numpy()


def value_of(error: Callable[[], Tensor]) -> float:
    try:
        value = error().item()
    except torch.linalg.LinAlgError:
        return math.inf
    return value if math.isfinite(value) else math.inf
