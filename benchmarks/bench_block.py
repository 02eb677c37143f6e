"""A kernel block on a GPU: K(A, Z) @ w for 8,192 rows and 131,072 centers, Laplacian, against the half-precision matrix product alone.

    python benchmarks/bench_block.py

Two ways of timing: "busy" is the median of `triton.testing.do_bench`, launch after launch, under which the GPU lowers its clock;
"rested" is the median of 15 single launches with 30 ms of rest before each. The matrix product is taken both ways too. Compilation is
not in the times; what the first call of a shape took is beside them. The error of K @ w is the relative one against float64 on the same
rounded features; that of K the largest of any value.
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


def single(work, times: int = 15) -> float:
    """Median milliseconds of one launch on a GPU that has rested: events around it, the host ahead of the device."""
    marks = []
    for _ in range(times):
        torch.cuda.synchronize()
        time.sleep(0.03)
        torch.cuda._sleep(2_000_000)  # about 1 ms in which the host queues the launches
        marks.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        marks[-1][0].record()
        work()
        marks[-1][1].record()
    torch.cuda.synchronize()
    return sorted(first.elapsed_time(last) for first, last in marks)[times // 2]


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
        half_A, half_Z = A.half(), Z.half()
        fused, plain = (lambda K=K, a=a, z=z, w=w: K.matmul(a, z, w)), (lambda x=half_A, z=half_Z: torch.mm(x, z.T))
        rested, plain_rested = single(fused), single(plain)
        busy, plain_busy = (do_bench(work, warmup=10, rep=60, return_mode="median") for work in (fused, plain))
        rows.append({
            "d": d, "c": c, "precision": precision, "rested ms": rested, "product alone": plain_rested, "busy ms": busy,
            "product alone, busy": plain_busy, "ratio, busy": busy / plain_busy, "error of K @ w": error,
            "largest error of K": value_error, "first call s": first,
        })  # fmt: skip
        print(rows[-1], flush=True)
        del A, Z, a, z, w, truth, half_A, half_Z
    show(rows)
    write("block", rows, rows_of_A=ROWS, centers=CENTERS)


if __name__ == "__main__":
    main()
