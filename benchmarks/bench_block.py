"""A kernel block on a GPU: K(A, Z) @ w for 8,192 rows and 131,072 centers, Laplacian, against the half-precision matrix product alone.

    python benchmarks/bench_block.py

Each row is a median of `triton.testing.do_bench`, which clears the cache between launches. Compilation is not in the times; what the
first call of a shape took is beside them. The error is that of K(A, Z) @ w against float64 on the same rounded features, relative.
"""

from __future__ import annotations

import math
import sys
import time

import torch

from common import show, write
from kernelmill.kernels import Laplacian
from kernelmill.ops import KernelProduct, frame

ROWS, CENTERS = 8192, 131_072
CASES = [(d, 10, "float16") for d in (1280, 784, 90, 16)] + [
    (1280, 10, "bfloat16"), (1280, 10, "tf32"), (1280, 10, "float32"), (90, 10, "float32"), (16, 10, "float32"),
    (1280, 1, "float16"), (1280, 100, "float16"), (1280, 1000, "float16"), (1280, 5000, "float16"), (16, 1, "float16"), (16, 64, "float16"),
]  # fmt: skip


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench_block.py needs a CUDA GPU; bench_cpu.py measures the same on a CPU.")
    from triton.testing import do_bench

    rows = []
    for d, c, precision in CASES:
        g = torch.Generator(device="cuda").manual_seed(d + c)
        A, Z = (torch.randn(n, d, generator=g, device="cuda") for n in (ROWS, CENTERS))
        w = torch.randn(CENTERS, c, generator=g, device="cuda")
        kernel = Laplacian(bandwidth=math.sqrt(d))
        origin, spread = frame(kernel, Z)
        K = KernelProduct(kernel, origin, precision, torch.device("cuda"), 256 << 20, spread)
        a, z = K.points(A), K.points(Z)
        start = time.perf_counter()
        out = K.matmul(a, z, w)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        some = torch.arange(0, ROWS, 127, device="cuda")
        truth = K.dense64(a[some], z) @ w.double()
        error = ((out[some] - truth).norm() / truth.norm()).item()
        value_error = (K.dense(a[some], z).double() - K.dense64(a[some], z)).abs().max().item()
        product = do_bench(lambda K=K, a=a, z=z, w=w: K.matmul(a, z, w), return_mode="median")
        half_A, half_Z = A.half(), Z.half()
        plain = do_bench(lambda x=half_A, z=half_Z: torch.mm(x, z.T), return_mode="median")
        rows.append({
            "d": d, "c": c, "precision": precision, "K @ w ms": product, "fp16 matrix product ms": plain, "ratio": product / plain,
            "error of K @ w": error, "largest error of K": value_error, "first call s": first,
        })  # fmt: skip
        print(rows[-1], flush=True)
        del A, Z, a, z, w, truth, half_A, half_Z
    show(rows)
    write("block", rows, rows_of_A=ROWS, centers=CENTERS)


if __name__ == "__main__":
    main()
