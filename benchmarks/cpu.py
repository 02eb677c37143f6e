"""A kernel block on the CPU against its matrix product alone: K(A, Z), Laplacian, float32.

    python -m benchmarks cpu [--rows 2048] [--centers 20000] [--features 784 90 16] [--rounds 15]

All are taken in turns in one run, and a ratio is that of the medians: these machines are noisy.
`matmul` is K(A, Z) @ w without holding the block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import torch

from kernelmill.kernels import Laplacian
from kernelmill.ops import KernelProduct, frame
from kernelmill.planning.memory import TILE_BYTES

OUTPUTS = 10


def cases(
    rows: int = 2048,
    centers: int = 20_000,
    features: tuple[int, ...] = (784, 90, 16),
    rounds: int = 15,
) -> Iterator[dict]:
    for d in features:
        product, block, matmul = medians(rows, centers, d, rounds)
        yield {
            "m": rows,
            "p": centers,
            "d": d,
            "tile_bytes": TILE_BYTES,
            "product_milliseconds": 1e3 * product,
            "block_milliseconds": 1e3 * block,
            "matmul_milliseconds": 1e3 * matmul,
            "block_over_product": block / product,
            "matmul_over_product": matmul / product,
            "product_gflop_per_second": 2e-9 * rows * centers * d / product,
        }


def medians(m: int, p: int, d: int, rounds: int) -> list[float]:
    """Seconds of the matrix product, of the block, and of the block times weights, not held."""
    A, Z, w = torch.randn(m, d), torch.randn(p, d), torch.randn(p, OUTPUTS)
    kernel = Laplacian(bandwidth=math.sqrt(d))
    origin, spread = frame(kernel, Z)
    K = KernelProduct(kernel, origin, "float32", torch.device("cpu"), TILE_BYTES, spread)
    a, z = K.points(A), K.points(Z)
    out, block = torch.empty(m, p), torch.empty(m, p)
    work = [
        lambda: torch.mm(A, Z.T, out=out),
        lambda: K.dense(a, z, block),
        lambda: K.matmul(a, z, w),
    ]
    seconds: list[list[float]] = [[] for _ in work]
    for _ in range(rounds):
        for job, times in zip(work, seconds, strict=True):
            start = time.perf_counter()
            job()
            times.append(time.perf_counter() - start)
    return [float(np.median(times)) for times in seconds]
