"""K(A, B) @ v without holding K: tiles from a byte budget in plain torch, and one fused Triton
kernel where there is a GPU.
"""

from .gram import Gram
from .modes import in_own_modes, own_modes
from .product import (
    FEW,
    SMALLEST_TILE,
    Block,
    KernelProduct,
    Recomputed,
    Rounded,
    bind,
    by_columns,
    distortion,
    frame,
    fuses,
    has_eight_bits,
    on_chip,
    padded,
    transposed_product,
)
from .rounding import HALF, PRECISIONS, ROUNDINGS

__all__ = [
    "FEW",
    "HALF",
    "PRECISIONS",
    "ROUNDINGS",
    "SMALLEST_TILE",
    "Block",
    "Gram",
    "KernelProduct",
    "bind",
    "by_columns",
    "Recomputed",
    "Rounded",
    "distortion",
    "frame",
    "fuses",
    "has_eight_bits",
    "in_own_modes",
    "on_chip",
    "own_modes",
    "padded",
    "transposed_product",
]
