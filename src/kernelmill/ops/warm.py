"""Compiling the fused kernels before they are needed: once for a machine, since Triton keeps what
it has compiled on disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..kernels import Gaussian, Kernel, Laplacian, Matern
from .modes import own_modes
from .product import Rounded, bind

log = logging.getLogger("kernelmill")

USUAL: tuple[Kernel, ...] = (Laplacian(1.0), Gaussian(1.0), Matern(1.0))  # those that are chosen
ROWS = 128  # one tile


def warm_up(
    kernel: Kernel,
    d: int,
    outputs: int,
    precision: str,
    device: torch.device,
    use_fused: bool | None = None,
) -> bool:
    """Whether there are fused kernels for this; then every way to multiply by them is compiled."""
    X = torch.linspace(-1, 1, ROWS * d, dtype=torch.float64, device=device).view(ROWS, d)
    K = bind(kernel, X.mean(0), precision, device, 1 << 20, use_fused=use_fused)
    points, w = K.points(X), torch.ones(ROWS, outputs, dtype=K.dtype, device=device)
    if not (K.is_fused or K.is_wide(w)):
        return False
    K.matmul(points, points, w)
    if K.dtype == torch.float64:
        held = Rounded(torch.ones(ROWS, ROWS, device=device))
        held @ w, held.T @ w
        return True
    K.dense(points, points)
    block = K.block(points, points, K.room(ROWS, ROWS, passing=True))
    block @ w, block.T @ w
    return True


@contextmanager
def warming_up(d: int, outputs: int, precision: str, device: torch.device) -> Iterator[None]:
    """The kernels that may be chosen are compiled in a thread meanwhile; nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    left = threading.Event()

    def work() -> None:
        try:
            with own_modes():
                for kernel in USUAL:
                    if not left.is_set():
                        warm_up(kernel, d, outputs, precision, device)
        except Exception as error:  # the run will say so itself, if it matters
            log.info("compiling ahead was given up: %s", error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
