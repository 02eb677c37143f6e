"""kernelmill warmup."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from .console import command, results
from .options import Debug

# Features of a row, and the precision that rows of so many have where nobody said: each is compiled
# in another shape.
USUAL = ((16, "float32"), (32, "float32"), (64, "float32"), (128, "float16"), (512, "float16"))


@command
def warmup(
    outputs: Annotated[
        int, typer.Option(min=1, help="Classes of a model, up to 16 are one shape; and 1 output.")
    ] = 10,
    debug: Debug = False,
) -> None:
    """Compile the GPU kernels that fits use, once for this machine: a first fit need not wait."""
    import torch

    from ..errors import InputError
    from ..ops import has_eight_bits
    from ..ops.warm import USUAL as KERNELS
    from ..ops.warm import warm_up

    if not torch.cuda.is_available():
        raise InputError("there is no GPU here, so there is nothing to compile.")
    device, start = torch.device("cuda"), time.perf_counter()
    shapes = [*USUAL, (64, "float64")]
    if has_eight_bits(device):
        shapes.append((512, "float8"))
    made = [
        warm_up(kernel, d, c, how, device)
        for c in sorted({1, outputs})
        for d, how in shapes
        for kernel in KERNELS
    ]
    torch.cuda.synchronize()
    results().print(
        f"{sum(made)} of {len(made)} kinds of products are compiled,"
        f" in {time.perf_counter() - start:.1f} s."
    )
