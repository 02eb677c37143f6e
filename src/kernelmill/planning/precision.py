"""Precision: what features are rounded to, and whether rows can still be told apart."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from ..errors import InputError, one_of, warn
from ..kernels import Kernel, Sum
from ..ops import PRECISIONS, distortion, fuses, has_eight_bits
from .plan import Plan

log = logging.getLogger("kernelmill")


def check_precision(precision: str | None) -> str | None:
    """A known precision, or None to have it chosen."""
    if precision is not None and precision not in PRECISIONS:
        raise one_of("precision", precision, ["auto", *PRECISIONS])
    return precision


def precision_of(precision: str | None, x_bytes: int, d: int, kernel: Kernel, device: str) -> str:
    """The precision that was asked for; for None that of the data, which has `x_bytes` bytes a
    feature, or half precision on a GPU.

    There float32 features cost three products of float16 ones. Short rows do not feel it; long rows
    do, and have digits to spare: rounding moves a feature, measured from the mean of the centers,
    by 1/2048 of itself at most, in training as in prediction. Kernels that cannot be measured from
    a mean, or have no fused form, keep float32.
    """
    if precision is not None:
        return precision
    if device == "cpu":
        return "float64" if x_bytes == 8 else "float32"
    half = x_bytes == 2 or (d > 64 and kernel.translation_invariant)
    return "float16" if fuses(kernel) and half else "float32"


# How far rounding may move a row of K, relatively. Tuned kernels of kin40k, elevators, protein,
# covertype, optdigits, satimage, texture, turbine and sgemm reach 6 bandwidths from the mean at
# most: float32 moves K by 2e-5, float16 by 8e-4. Clusters of two features at ±30 bandwidths: .014
# for the Laplacian, .002 for the Gaussian in float32, .017 in float16, nothing lost; at ±100: .08,
# and R² falls from .999 to .977; at ±1000: 1.8, near rows coincide, and accuracy falls from .99 to
# .97; at ±5000 nothing is learned.
MOVED = 0.05


# The same for 8-bit features, which few epochs of classes are given where rows are long: three
# digits of K are more than they have use for. 1,280 features of the generated task: .003, and an
# accuracy of 75.92 and 71.33 % instead of 75.90 and 71.41 (docs/gpu.md).
MOVED_BY_EIGHT = 0.01
LONG, MANY = 512, 30_000  # features of a row, and centers, from which that is quicker


def eight_bits_pay(plan: Plan) -> bool:
    """Whether a run over these sizes, of few epochs, is quicker with 8-bit features: on a GPU that
    has products of them, which are half of the time of those of 16 bits.
    """
    long = plan.features >= LONG and plan.p >= MANY and plan.precision == "float16"
    if plan.regression or not (plan.on_gpu and long):
        return False
    return has_eight_bits(torch.device(plan.device))


def precision_for(
    asked: str | None, plan: Plan, kernel: Kernel, Z: Tensor, X: Tensor, few_epochs: bool = False
) -> str:
    """The plan's precision, if it tells rows apart under this kernel; else, where none was asked
    for, the next one that does. 8-bit features where `few_epochs` regularise, they are quicker,
    and move K by next to nothing.
    """
    found, device = plan.precision, torch.device(plan.device)
    # Of sums of kernels, blocks are held in float32.
    single = fuses(kernel) and kernel.translation_invariant and not isinstance(kernel, Sum)
    if asked is None and few_epochs and single and eight_bits_pay(plan):
        moved, _ = distortion(kernel, Z, X, "float8", device, plan.tile_bytes)
        if moved <= MOVED_BY_EIGHT:
            return "float8"
    while found != "float64":
        moved, reach = distortion(kernel, Z, X, found, device, plan.tile_bytes)
        if moved <= MOVED:
            break
        if asked is not None and moved == math.inf:
            raise InputError(
                f"precision={asked!r} was given, whose range is too small for the kernel's values;"
                " use 'float64', or scale X."
            )
        if asked is not None:
            warn(
                f"precision={asked!r} moves kernel values by {moved:.0%} of their size, as rows lie"
                f" up to {reach:.3g} bandwidths from their mean; use precision='auto' or 'float64',"
                " or a larger bandwidth."
            )
            break
        log.info(
            "%s moves kernel values by %.0f %%: rows lie up to %.3g bandwidths from their mean",
            found,
            100 * moved,
            reach,
        )
        found = "float64" if found == "float32" or not plan.on_gpu else "float32"
    return found


def fine_precision(precision: str | None, regression: bool) -> str | None:
    """float64 for the exact solution of a regression, unless another was asked for: smooth targets
    are known to more digits than float32 kernel values can carry through the inverse of K(Z,Z)
    (kin40k: .102 against .112, docs/solvers.md).
    """
    return "float64" if precision is None and regression else None
