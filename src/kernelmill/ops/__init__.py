"""K(A, B) @ v without holding K: tiles from a byte budget in plain torch, and one fused Triton kernel where there is a GPU."""

from .product import PRECISIONS, SMALLEST_TILE, KernelProduct, Recomputed, frame, fuses, on_chip, transposed_product

__all__ = ["PRECISIONS", "SMALLEST_TILE", "KernelProduct", "Recomputed", "frame", "fuses", "on_chip", "transposed_product"]
