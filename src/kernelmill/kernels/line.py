"""Kernels in few words, for people."""

from __future__ import annotations

import torch

from .base import Kernel
from .features import Features
from .mixture import Sum
from .radial import Radial


def kernel_line(kernel: Kernel) -> str:
    """The kernel in few words: a bandwidth for each feature is a range."""
    if isinstance(kernel, Sum):
        parts = zip(kernel.shares, kernel.parts, strict=True)
        return " + ".join(f"{share:.2g} × {kernel_line(part)}" for share, part in parts)
    seen = _seen(kernel.features) if isinstance(kernel, Radial) else ""
    width = getattr(kernel, "bandwidth", None)
    dimensions = getattr(width, "ndim", 0)
    if dimensions == 0:
        return f"{kernel.name}{seen}, bandwidth {width:.3g}" if seen else repr(kernel)
    if dimensions == 2:
        return f"{kernel.name}{seen}, a matrix of bandwidths"
    low, high = (value.item() for value in torch.as_tensor(width).aminmax())
    return f"{kernel.name}{seen}, a bandwidth for each feature, from {low:.3g} to {high:.3g}"


def _seen(features: Features | None) -> str:
    """How a kernel sees columns, where not as they are."""
    if features is None:
        return ""
    made = f" of {len(features.column)} features"
    return made if features.map is None else f"{made} in a learned metric of rank {len(features)}"
