"""Seconds and bytes of the pieces that methods are made of, from the machine's measured rates."""

from __future__ import annotations

from .machine import Rates
from .memory import TILE_BYTES
from .plan import Plan


def factoring(p: float, rates: Rates) -> float:
    """One Cholesky factor."""
    return p * rates.column + p**3 / 3 / rates.factor


def values(count: float, plan: Plan, rates: Rates) -> float:
    """`count` kernel values, evaluated once."""
    return (
        values64(count, plan, rates)
        if plan.precision == "float64" != rates.precision
        else count / rates.block
    )


def values64(count: float, plan: Plan, rates: Rates) -> float:
    """The same in float64 and held: twice the work on a CPU, and on a GPU plain torch instead of
    the fused kernels.
    """
    if not plan.on_gpu:
        return count / rates.block * (1 if rates.precision == "float64" else 2)
    return count * (2 * plan.features / rates.products + 5 * 16 / rates.read)


def always(plan: Plan) -> float:
    """What every fit takes: checks, labels, centers, calibration."""
    return 0.06 if plan.on_gpu else 0.02 + 1e-9 * plan.n * plan.d


def direct_bytes(p: int, every_row: bool) -> int:
    """K(Z,Z) and its factor, the normal matrix and its factor, all float64; where every row is a
    center, one matrix, which the factor takes the place of, and the inverses of its diagonal
    blocks.
    """
    numbers = p * (p + 1024) if every_row else 4 * p * p
    return 8 * numbers + 4 * TILE_BYTES
