"""One epoch on a GPU, set-up included: the generated task, and Fashion-MNIST with augmented copies.

    python -m benchmarks epoch [--only teacher host fashion million]

The first fit of each shape compiles Triton kernels: it is run once before those that count, and
the difference is reported. The seconds are the median of three in one process, beside the clock and
plain products of the same minute. "host" trains the same task from rows in host memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from .gpu import beside, measured_fit
from .tasks import augment, fashion_mnist, teacher

CENTERS = 131_072


def cases(only: tuple[str, ...] = ("teacher", "host", "fashion", "million")) -> Iterator[dict]:
    if "teacher" in only:
        yield from half_a_million("host" in only)
    if "fashion" in only:
        yield from fashion()
    if "million" in only:
        yield from millions(warm_up="teacher" not in only)


def half_a_million(host: bool) -> Iterator[dict]:
    X, y = teacher(500_000, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    yield warmed_up("teacher", X, y, *test, bandwidth=10.0)
    if host:
        yield warmed_up("teacher, X in host memory", X.cpu(), y, *test, bandwidth=10.0)
        half, _ = of_three(X, y, *test, bandwidth=10.0, precision="float16")
        yield {"task": "teacher, float16", **half, "compiling_seconds": None}


def fashion() -> Iterator[dict]:
    images, labels, X_test, y_test = fashion_mnist()
    X = augment((images * 255).round().to(torch.uint8).cuda(), copies=16, seed=0)
    task = "Fashion-MNIST, 15 augmented copies"
    yield warmed_up(task, X, labels.repeat(16), X_test.cuda(), y_test, bandwidth=20.0)


def millions(warm_up: bool) -> Iterator[dict]:
    X, y = teacher(5_000_000, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    if warm_up:
        measured_fit(X, y, *test, n_centers=CENTERS, bandwidth=10.0)
    for p in (CENTERS, 1_000_000):
        row, model = of_three(X, y, *test, bandwidth=10.0, n_centers=p)
        yield {"task": "teacher", **row, "compiling_seconds": None}
    rows = X[:1_000_000].cpu()
    del X
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    with torch.no_grad():
        model.model_(rows)
    torch.cuda.synchronize()
    yield {
        "task": "predict, rows in host memory",
        "n": len(rows),
        "d": rows.shape[1],
        "p": 1_000_000,
        "predict_seconds": time.perf_counter() - start,
        "peak_gib": (torch.cuda.max_memory_allocated() - before) / 2**30,
    }


def warmed_up(task: str, X, y, X_test, y_test, bandwidth: float) -> dict:
    cold, _ = measured_fit(X, y, X_test, y_test, n_centers=CENTERS, bandwidth=bandwidth)
    row, _ = of_three(X, y, X_test, y_test, bandwidth=bandwidth)
    compiling = max(0.0, cold["fit_seconds"] - row["fit_seconds"])
    return {"task": task, **row, "compiling_seconds": compiling}


def of_three(X, y, X_test, y_test, n_centers: int = CENTERS, **settings) -> tuple[dict, object]:
    """The row of median seconds, and the last model."""
    fits = [measured_fit(X, y, X_test, y_test, n_centers=n_centers, **settings) for _ in range(3)]
    rows = sorted((row for row, _ in fits), key=lambda row: row["fit_seconds"])
    each = {"seconds_of_each": [row["fit_seconds"] for row in rows]}
    return {**rows[1], **each, **beside()}, fits[-1][1]
