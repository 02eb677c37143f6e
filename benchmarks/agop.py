"""One average gradient outer product: sample rows against centers, Laplacian, float32.

    python -m benchmarks agop [--rows 20000] [--centers 1000000] [--features 90] [--outputs 1]
                              [--checked-rows 2000] [--device auto]

`seconds` is the median of three after a warm-up, with X and Z on the device. `relative_error` is
that of the matrix (Frobenius) against float64 on the first `checked_rows` rows and all centers,
summed from x − z itself, in float64 from the rows on. A third of the rows are centers, as they are
where a model learns its metric. Weights have both signs, so that sums cancel as a model's do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from kernelmill.gradients import agop
from kernelmill.kernels import Laplacian
from kernelmill.model import KernelModel
from kernelmill.planning.device import device_of

CELLS = 1 << 24  # of a tile (rows, centers, features) in float64


def cases(
    rows: int = 20_000,
    centers: int = 1_000_000,
    features: int = 90,
    outputs: int = 1,
    checked_rows: int = 2000,
    device: str = "auto",
) -> Iterator[dict]:
    where = torch.device(device_of(device))
    generator = torch.Generator().manual_seed(0)
    Z = torch.randn(centers, features, generator=generator)
    X = torch.randn(rows, features, generator=generator)
    shared = min(rows // 3, centers)
    X[::3][:shared] = Z[:shared]
    alpha = torch.randn(centers, outputs, generator=generator)
    kernel = Laplacian(bandwidth=math.sqrt(features))
    model = KernelModel(kernel, Z, alpha, torch.zeros(outputs)).to(where)
    X = X.to(where)
    agop(model, X)
    seconds = sorted(timed(model, X) for _ in range(3))
    some = X[:checked_rows]
    truth = exact(model, some)
    yield {
        "rows": rows,
        "centers": centers,
        "features": features,
        "outputs": outputs,
        "device": where.type,
        "seconds": seconds[1],
        "fastest_seconds": seconds[0],
        "slowest_seconds": seconds[2],
        "billion_kernel_values_per_second": 1e-9 * rows * centers / seconds[1],
        "checked_rows": len(some),
        "relative_error": ((agop(model, some) - truth).norm() / truth.norm()).item(),
    }


def timed(model: KernelModel, X: Tensor) -> float:
    wait(X)
    start = time.perf_counter()
    agop(model, X)
    wait(X)
    return time.perf_counter() - start


def wait(X: Tensor) -> None:
    if X.is_cuda:
        torch.cuda.synchronize(X.device)


def exact(model: KernelModel, X: Tensor) -> Tensor:
    """The same in float64, from Σ_j w(r_j) α_j (x − z_j) as it is written."""
    kernel = model.kernel
    assert isinstance(kernel, Laplacian)
    embed = kernel.embedding(torch.zeros(X.shape[1], dtype=torch.float64), torch.float64)
    x, z, alpha = embed(X.double()), embed(model.Z.double()), model.alpha.double()
    d = x.shape[1]
    total = x.new_zeros(d, d)
    step = max(1, CELLS // d // 1000)
    for i in range(0, len(x), step):
        part = x[i : i + step]
        G = x.new_zeros(len(part), alpha.shape[1], d)
        wide = max(1, CELLS // (len(part) * d))
        for j in range(0, len(z), wide):
            away = part[:, None] - z[None, j : j + wide]
            w = 2 * kernel.slope(away.square().sum(2))
            weights = w[:, None] * alpha[j : j + wide].T
            G += weights @ away
        G = G.flatten(0, 1)
        total += G.T @ G
    return total / len(X)
