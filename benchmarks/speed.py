"""What a GPU takes for exact solutions, a first fit and predictions.

    python -m benchmarks speed [--only falkon rows direct predict cold]

Medians of three in one process, beside the clock and a plain float64 product of 8,192 rows of the
same minute; a first fit is one of a fresh process with an empty cache of compiled kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import torch

from kernelmill import KernelClassifier, KernelRegressor, kernels
from kernelmill.model import KernelModel

from .gpu import beside, seconds

FIT = """
import json, sys, time
import numpy as np, torch
import kernelmill
from kernelmill import KernelClassifier, KernelRegressor
n, kind = int(sys.argv[1]), sys.argv[2]
draw = np.random.default_rng(0)
X = draw.standard_normal((n, 9)).astype(np.float32)
f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * draw.standard_normal(n)
y = f if kind == "numbers" else np.digitize(f, [-0.5, 0.5])
estimator = KernelRegressor if kind == "numbers" else KernelClassifier
took = []
for _ in range(3):
    start = time.perf_counter()
    model = estimator(random_state=0).fit(X, y)
    done = time.perf_counter()
    model.predict(X)
    took.append((done - start, time.perf_counter() - done))
print(json.dumps({"first_seconds": took[0][0], "second_seconds": took[1][0],
    "third_seconds": took[2][0], "first_predict_seconds": took[0][1],
    "second_predict_seconds": took[1][1], "solver": model.plan_.solver,
    "device": model.plan_.device, "triton": "triton" in sys.modules}))
"""


def cases(
    only: tuple[str, ...] = ("cold", "falkon", "rows", "direct", "predict"),
) -> Iterator[dict]:
    for name in only:
        for row in TASKS[name]():
            yield {**row, **beside()}


def cold() -> Iterator[dict]:
    for kind in ("numbers", "classes"):
        for n in (500, 5000):
            with tempfile.TemporaryDirectory() as cache:
                words = [sys.executable, "-c", FIT, str(n), kind]
                environment = {**os.environ, "TRITON_CACHE_DIR": cache}
                done = subprocess.run(
                    words, env=environment, capture_output=True, text=True, check=False
                )
            if done.returncode:
                raise RuntimeError(done.stderr[-2000:])
            found = json.loads(done.stdout.splitlines()[-1])
            yield {"task": f"first fit, {n} rows of {kind}", **found}


def smooth(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of d features, of which each counts less, with a little noise."""
    draw = np.random.default_rng(0)
    X = (draw.standard_normal((n, d)) / np.sqrt(1 + np.arange(d))).astype(np.float32)
    y = np.sin(X @ draw.standard_normal((d, 64)) / 3) @ draw.standard_normal(64)
    return X, (y - y.mean()) / y.std() + 0.05 * draw.standard_normal(n)


def falkon() -> Iterator[dict]:
    n, d, p = 254_000, 39, 50_000
    X, y = smooth(n + 20_000, d)
    for precision in ("auto", "float32"):
        fitted: list[KernelRegressor] = []

        def fit(precision: str = precision, fitted: list = fitted) -> None:
            model = KernelRegressor(
                kernel=kernels.Gaussian(8.0),
                n_centers=p,
                ridge=1e-2,
                solver="falkon",
                precision=precision,
                random_state=0,
            )
            fitted[:] = [model.fit(X[:n], y[:n])]

        torch.cuda.reset_peak_memory_stats()
        took = seconds(fit)
        rmse = float(np.sqrt(np.mean((fitted[0].predict(X[n:]) - y[n:]) ** 2)))
        plan = fitted[0].plan_
        yield {
            "task": f"falkon, {precision}",
            "n": n,
            "d": d,
            "p": p,
            "seconds": took,
            "rmse": rmse,
            "precision": plan.precision,
            "kept": plan.keep_all,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }


def three_classes(n: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.standard_normal((n, 20)).astype(np.float32)
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draw.standard_normal(n)
    return X, np.digitize(f, [-0.5, 0.5])


def every_row(n: int, solver: str, runs: int) -> dict:
    X, y = three_classes(n + 10_000)
    fitted: list[KernelClassifier] = []

    def fit() -> None:
        model = KernelClassifier(
            kernel=kernels.Laplacian(5.0), ridge=0.1, n_centers=n, solver=solver, random_state=0
        )
        fitted[:] = [model.fit(X[:n], y[:n])]

    torch.cuda.reset_peak_memory_stats()
    took = seconds(fit, runs)
    return {
        "n": n,
        "d": 20,
        "p": n,
        "seconds": took,
        "error_percent": 100 * float(np.mean(fitted[0].predict(X[n:]) != y[n:])),
        "solver": fitted[0].plan_.solver,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def rows() -> Iterator[dict]:
    for solver in ("auto", "eigenpro2"):
        yield {"task": f"every row a center, {solver}", **every_row(52_000, solver, 3)}


def direct() -> Iterator[dict]:
    """More rows than a factor in float64 has room for."""
    yield {"task": "direct, float32 factor", **every_row(150_000, "direct", 1)}


def predict() -> Iterator[dict]:
    n, d, p = 10_000_000, 12, 100_000
    draw = torch.Generator().manual_seed(0)
    Z, X = torch.randn(p, d, generator=draw).cuda(), torch.randn(n, d, generator=draw)
    alpha = torch.randn(p, 1, generator=draw).cuda()
    model = KernelModel(kernels.Laplacian(4.0), Z, alpha, torch.zeros(1, device="cuda"))
    model(X[:100_000])
    yield {"task": "predict", "n": n, "d": d, "p": p, "seconds": seconds(lambda: model(X))}


TASKS = {"cold": cold, "falkon": falkon, "rows": rows, "direct": direct, "predict": predict}
