"""What features may be rounded to: one table, which training, prediction and kernels share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

EIGHT = torch.float8_e4m3fn


@dataclass(frozen=True)
class Rounding:
    """The type that features are held in on a GPU; the largest number of it, where rows come near
    it; and by how much features are scaled at most.

    Radial features are in bandwidths: whatever the spread of the centers, rows 64 bandwidths away
    must fit, 28 in float8.
    """

    dtype: torch.dtype
    edge: float = math.inf
    scale: float | None = None  # None: they are not scaled
    # float16 parts of a kernel value that is held: two have 22 bits. Where features have 4, the 11
    # of one part are more than enough.
    parts: int = 2


ROUNDINGS = {
    "float8": Rounding(EIGHT, 448.0, 2.0**4, parts=1),
    "float16": Rounding(torch.float16, 65504.0, 2.0**10),
    "bfloat16": Rounding(torch.bfloat16),
    "tf32": Rounding(torch.float32),
    # In two parts of float16.
    "float32": Rounding(torch.float16, 65504.0, 2.0**10),
    "float64": Rounding(torch.float64),
}
PRECISIONS = list(ROUNDINGS)
HALF = ("float8", "float16", "bfloat16")  # whose features are rounded on a CPU too


def within(x: torch.Tensor, edge: float, clamps: bool) -> torch.Tensor:
    """Numbers that fit the range: beyond it at its edge, where K is 0 there too; or else NaN, since
    8 bits would be cut off without a word.
    """
    if clamps:
        return x.clamp_(-edge, edge)
    return torch.where(x.abs() > edge, torch.nan, x)
