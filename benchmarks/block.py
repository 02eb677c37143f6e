"""A kernel block on a GPU: K(A, Z) @ w, Laplacian, against the half-precision matrix product alone.

    python -m benchmarks block [--rows 8192] [--centers 131072]

Two ways of timing: "busy" is the median of `triton.testing.do_bench`, launch after launch, under
which the GPU lowers its clock; "rested" is the median of 15 single launches with 30 ms of rest
before each. The matrix product is taken both ways too. Compilation is not in the times; what the
first call of a shape took is beside them. `product_error` is the relative error of K @ w against
float64 on the same rounded features, `kernel_error` the largest of any value of K.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch

from kernelmill.kernels import Laplacian
from kernelmill.ops import KernelProduct, frame

# Features, outputs, precision.
SHAPES = [
    *((d, 10, "float16") for d in (1280, 784, 90, 16)),
    *((1280, 10, precision) for precision in ("float8", "bfloat16", "tf32", "float32")),
    *((d, 10, "float32") for d in (90, 16)),
    *((1280, c, "float16") for c in (1, 100, 1000, 5000)),
    *((16, c, "float16") for c in (1, 64)),
]


def single(work: Callable[[], object], times: int = 15) -> float:
    """Median milliseconds of one launch on a GPU that has rested.

    Events are around it, and the host is ahead of the device.
    """
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


def cases(rows: int = 8192, centers: int = 131_072) -> Iterator[dict]:
    for d, c, precision in SHAPES:
        yield {
            "m": rows,
            "p": centers,
            "d": d,
            "c": c,
            "precision": precision,
            **block(rows, centers, d, c, precision),
        }


def block(m: int, p: int, d: int, c: int, precision: str) -> dict:
    from triton.testing import do_bench

    g = torch.Generator(device="cuda").manual_seed(d + c)
    A, Z = (torch.randn(n, d, generator=g, device="cuda") for n in (m, p))
    w = torch.randn(p, c, generator=g, device="cuda")
    kernel = Laplacian(bandwidth=math.sqrt(d))
    origin, spread = frame(kernel, Z)
    K = KernelProduct(kernel, origin, precision, torch.device("cuda"), 256 << 20, spread)
    a, z = K.points(A), K.points(Z)
    start = time.perf_counter()
    out = K.matmul(a, z, w)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    some = torch.arange(0, m, 127, device="cuda")
    exact = K.dense64(a[some], z)
    truth = exact @ w.double()
    half_A, half_Z = A.half(), Z.half()

    def fused() -> torch.Tensor:
        return K.matmul(a, z, w)

    def plain() -> torch.Tensor:
        return torch.mm(half_A, half_Z.T)

    rested, plain_rested = single(fused), single(plain)
    busy, plain_busy = (
        do_bench(work, warmup=10, rep=60, return_mode="median") for work in (fused, plain)
    )
    return {
        "rested_milliseconds": rested,
        "product_rested_milliseconds": plain_rested,
        "busy_milliseconds": busy,
        "product_busy_milliseconds": plain_busy,
        "busy_over_product": busy / plain_busy,
        "product_error": ((out[some] - truth).norm() / truth.norm()).item(),
        "kernel_error": (K.dense(a[some], z).double() - exact).abs().max().item(),
        "first_call_seconds": first,
    }
