"""k(x, z): mathematics only."""

from __future__ import annotations

from typing import cast

from ..errors import InputError, one_of
from .base import Custom, Kernel, KernelFunction, Points, Scale, positive, shrunk_norms
from .dot_product import ArcCosine, DotProduct, Linear, Polynomial, ReluNTK, in_range, magnification
from .features import CODES as CODES
from .features import ENCODINGS, Features, encode_columns
from .line import kernel_line
from .mixture import Sum
from .radial import Gaussian, GeneralisedExponential, Laplacian, Matern, Radial, RationalQuadratic

NAMED: dict[str, type[Kernel]] = {
    kernel.name: kernel
    for kernel in (
        Laplacian,
        Gaussian,
        Matern,
        GeneralisedExponential,
        RationalQuadratic,
        Linear,
        Polynomial,
        ReluNTK,
        ArcCosine,
        Sum,
    )
}


def resolve(kernel: object) -> Kernel:
    """A kernel object from a name, a kernel object, or a function K(A, B)."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        if kernel not in NAMED:
            raise one_of("kernel", kernel, [*NAMED, "auto"])
        made = NAMED[kernel]()
        if isinstance(made, Radial):
            made.bandwidth = "auto"
        return made
    if callable(kernel):
        return Custom(cast(KernelFunction, kernel))
    raise InputError(
        f"kernel={kernel!r} was given, expected a name, a kernel object or a function K(A, B)."
    )


__all__ = [
    "kernel_line",
    "ArcCosine",
    "Custom",
    "DotProduct",
    "ENCODINGS",
    "Features",
    "Gaussian",
    "GeneralisedExponential",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "NAMED",
    "Points",
    "Polynomial",
    "Radial",
    "RationalQuadratic",
    "ReluNTK",
    "Scale",
    "Sum",
    "encode_columns",
    "in_range",
    "magnification",
    "positive",
    "resolve",
    "shrunk_norms",
]
