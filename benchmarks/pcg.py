"""Kernel ridge with every row a center, by conjugate gradients: seconds, memory, residual.

    python -m benchmarks pcg [--sizes 60000x60,255000x60,1000000x16] [--repeat 3]

Generated rows: a sum of waves with noise of a tenth of its deviation. Seconds are of the whole fit
with kernel and ridge given, the median of `repeat`; the first fit, which compiles, is not counted.
Up to 60,000 rows the predictions are compared with those of the float64 factor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from kernelmill import KernelRegressor, kernels, solvers

from .million import smooth

EXACT = 60_000  # rows up to which a float64 factor is made


def cases(
    sizes: str = "60000x60,255000x60,1000000x16", repeat: int = 3, ridges: str = "0.01,1"
) -> Iterator[dict]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for size in sizes.split(","):
        n, d = map(int, size.split("x"))
        X, _, y = smooth(n, d, 1)
        X_test, f, _ = smooth(10_000, d, 2)
        for kernel in (kernels.Gaussian(d**0.5), kernels.Matern(1.5 * d**0.5)):
            for ridge in map(float, ridges.split(",")):
                yield {
                    "rows": n,
                    "features": d,
                    "kernel": repr(kernel.name),
                    "ridge": ridge,
                    "device": device,
                    **_measured(kernel, ridge, (X, y, X_test, f), repeat),
                }


def _measured(
    kernel: kernels.Kernel,
    ridge: float,
    data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    repeat: int,
) -> dict:
    X, y, X_test, f = data
    seconds = []
    for _ in range(repeat + 1):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        model = KernelRegressor(kernel=kernel, solver="pcg", ridge=ridge).fit(X, y)
        seconds.append(time.perf_counter() - start)
    found = model.predict(X_test)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    row = {
        "seconds": statistics.median(seconds[1:]),
        "solving": model.timings_["solving"],
        "iterations": len(model.history_),
        "residual": float(model.history_[-1]["note"].split()[-1]),
        "peak_gib": peak,
        "rank": model.plan_.q,
        "rmse": float(np.sqrt(((found - f) ** 2).mean())),
    }
    if len(X) > EXACT:
        return row
    direct = KernelRegressor(kernel=kernel, solver=solvers.Direct(), n_centers=len(X), ridge=ridge)
    exact = direct.fit(X, y).predict(X_test)
    mean = y.mean()
    distance = float(np.linalg.norm(found - exact) / np.linalg.norm(exact - mean))
    return {**row, "distance": distance}
