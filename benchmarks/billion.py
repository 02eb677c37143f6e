"""Rows on disk, up to a billion of them: one epoch on one GPU with checkpoints, time and memory
against rows.

    python -m benchmarks billion [--rows 10000000 100000000] [--scratch FOLDER]

16 float16 features a row, in a .npy file that is written first; 100,000 centers. The score is R² of
100,000 rows that were not trained on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from kernelmill import KernelRegressor, kernels, solvers

from .measure import Peak

FEATURES, CENTERS, PIECE = 16, 100_000, 1_000_000


def cases(rows: tuple[int, ...] = (10_000_000, 100_000_000), scratch: str = "") -> Iterator[dict]:
    for n in rows:
        with tempfile.TemporaryDirectory(dir=scratch or None) as folder:
            yield measure(n, Path(folder))


def piece(number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a number is the seed of, and their targets: a smooth function, and noise."""
    draw = np.random.default_rng(number)
    X = draw.standard_normal((rows, FEATURES), dtype=np.float32).astype(np.float16)
    W = np.random.default_rng(0).standard_normal((FEATURES, 24)).astype(np.float32)
    y = np.sin(0.25 * (X.astype(np.float32) @ W)).sum(1) / 3
    return X, y + 0.1 * draw.standard_normal(rows, dtype=np.float32)


def write(path: Path, n: int) -> np.ndarray:
    """The file, by all cores, and the targets."""
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(n, FEATURES))
    y = np.empty(n, np.float32)

    def fill(number: int) -> None:
        here = slice(number * PIECE, min(n, (number + 1) * PIECE))
        X[here], y[here] = piece(number + 1, here.stop - here.start)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(-(-n // PIECE))))
    X.flush()
    return y


def measure(n: int, folder: Path) -> dict:
    start = time.perf_counter()
    y = write(folder / "rows.npy", n)
    wrote = time.perf_counter() - start
    seen: list[tuple[float, int]] = []
    model = KernelRegressor(
        kernel=kernels.Laplacian(bandwidth=6.0),
        n_centers=CENTERS,
        solver=solvers.EigenPro4(projection="carried"),
        epochs=1,
        ridge=0.0,
        random_state=0,
        checkpoint=folder / "run",
        checkpoint_every="30s",
        callbacks=lambda event: seen.append((time.perf_counter(), event.rows)),
    )
    torch.cuda.reset_peak_memory_stats()
    with Peak() as peak:
        start = time.perf_counter()
        model.fit(folder / "rows.npy", y)
        took = time.perf_counter() - start
    X_test, y_test = piece(10**9, 100_000)
    off = model.predict(X_test.astype(np.float32)) - y_test
    plan = model.plan_
    return {
        "rows": n,
        "features": FEATURES,
        "centers": CENTERS,
        "seconds": took,
        "write_seconds": wrote,
        "setup_seconds": seen[0][0] - start,
        "rows_per_second": n / took,
        "r2": float(1 - np.mean(off**2) / np.var(y_test)),
        "gpu_gib": torch.cuda.max_memory_allocated() / 2**30,
        "host_mib": peak.mib,
        "m": plan.m,
        "q": plan.q,
        "cycle_batches": plan.T,
        "precision": plan.precision,
        "rates": [(round(t - start, 2), int(r)) for t, r in seen[:: max(1, len(seen) // 10)]],
    }
