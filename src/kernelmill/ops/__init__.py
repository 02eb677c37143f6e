"""K(A, B) @ v without holding K: tiles from a byte budget in plain torch, and one fused Triton kernel where there is a GPU."""

from .product import PRECISIONS, KernelProduct, Recomputed, frame

__all__ = ["PRECISIONS", "KernelProduct", "Recomputed", "frame"]
