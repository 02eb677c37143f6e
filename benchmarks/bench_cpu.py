"""A kernel block on the CPU against its matrix product alone: K(A, Z) for 2,048 rows and 20,000 centers, Laplacian, float32.

    python benchmarks/bench_cpu.py

Both are taken in turns in one run, and the ratio is that of the medians: these machines are noisy.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from common import show, write
from kernelmill.kernels import Laplacian
from kernelmill.ops import KernelProduct, frame
from kernelmill.planning import TILE_BYTES

ROWS, CENTERS, OUTPUTS, ROUNDS = 2048, 20_000, 10, 15


def main() -> None:
    rows = []
    for d in (784, 90, 16):
        A, Z = torch.randn(ROWS, d), torch.randn(CENTERS, d)
        w = torch.randn(CENTERS, OUTPUTS)
        kernel = Laplacian(bandwidth=math.sqrt(d))
        origin, spread = frame(kernel, Z)
        K = KernelProduct(kernel, origin, "float32", torch.device("cpu"), TILE_BYTES, spread)
        a, z = K.points(A), K.points(Z)
        out, block = torch.empty(ROWS, CENTERS), torch.empty(ROWS, CENTERS)
        work = {
            "matrix product": lambda A=A, Z=Z, out=out: torch.mm(A, Z.T, out=out),
            "block": lambda K=K, a=a, z=z, block=block: K.dense(a, z, block),
            "block @ w, not held": lambda K=K, a=a, z=z, w=w: K.matmul(a, z, w),
        }
        seconds: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(ROUNDS):
            for name, job in work.items():
                start = time.perf_counter()
                job()
                seconds[name].append(time.perf_counter() - start)
        median = {name: float(np.median(times)) for name, times in seconds.items()}
        rows.append({
            "d": d, **{f"{name} ms": 1e3 * value for name, value in median.items()},
            "block / product": median["block"] / median["matrix product"],
            "block @ w / product": median["block @ w, not held"] / median["matrix product"],
            "GFLOP/s of the product": 2e-9 * ROWS * CENTERS * d / median["matrix product"],
        })  # fmt: skip
    show(rows)
    write("cpu", rows, rows_of_A=ROWS, centers=CENTERS, tile_bytes=TILE_BYTES)


if __name__ == "__main__":
    main()
