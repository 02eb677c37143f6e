"""K(A, B) @ v without holding K: tiles from a byte budget in plain torch, and one fused Triton
kernel where there is a GPU.
"""

from .modes import in_own_modes, own_modes
from .product import (
    PRECISIONS,
    SMALLEST_TILE,
    Block,
    KernelProduct,
    Recomputed,
    bind,
    distortion,
    frame,
    fuses,
    on_chip,
    transposed_product,
)

__all__ = [
    "PRECISIONS",
    "SMALLEST_TILE",
    "Block",
    "KernelProduct",
    "bind",
    "Recomputed",
    "distortion",
    "frame",
    "fuses",
    "in_own_modes",
    "on_chip",
    "own_modes",
    "transposed_product",
]
