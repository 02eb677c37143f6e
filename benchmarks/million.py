"""A Gaussian process of two million rows on one GPU, with 64 functions of its posterior, beside
exact processes of the 40,000 rows nearest to some places.

    python -m benchmarks million [--rows 2000000] [--features 11] [--time-limit 240]

A smooth generated function with noise of a tenth of its deviation; Matérn 3/2, bandwidths, noise
and signal chosen. At each place the exact process of the same kernel, noise and signal, in float64,
learns the rows nearest to it in the kernel's own distance, and both predict the test rows nearest
to it. Seconds are of the whole fit, set-up and tuning included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from kernelmill import KernelRegressor
from kernelmill.uncertainty import Posterior

from .processes import scored

NOISE = 0.1


def smooth(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, a sum of 64 waves of some columns each, of deviation 1, and the same with noise."""
    weights = np.random.default_rng(7)
    W = weights.normal(size=(d, 64)) * (weights.random((d, 64)) < 0.3) * 0.6
    shift, height = weights.uniform(0, 2 * np.pi, 64), weights.normal(size=64)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    f = np.concatenate([np.cos(part @ W + shift) @ height for part in np.array_split(X, 64)])
    f = f / np.sqrt((height**2).sum() / 2)
    return X, f, f + NOISE * rng.normal(size=n)


def cases(
    rows: int = 2_000_000,
    features: int = 11,
    time_limit: float = 240.0,
    nearest: int = 40_000,
    places: int = 6,
    around: int = 200,
) -> Iterator[dict]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, _, y = smooth(rows, features, 1)
    X_test, _, y_test = smooth(50_000, features, 2)
    start = time.perf_counter()
    model = KernelRegressor(
        kernel="matern",
        uncertainty=Posterior(samples=64),
        time_limit=time_limit,
        random_state=0,
        verbose=1,
    ).fit(X, y)
    seconds = time.perf_counter() - start
    plan, process = model.plan_, model.model_.process
    signal, noise = process.signal.item(), process.noise.item()
    mean, deviation = model.predict(X_test, return_std=True)
    facts = {"rows": rows, "features": features, "device": device}
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    yield {
        **facts,
        "place": "all test rows",
        "method": "posterior",
        **scored(y_test, mean, deviation, 1.0),
        "fit_seconds": seconds,
        "solving_seconds": model.timings_["solving"],
        "peak_gib": peak,
        "solver": plan.solver,
        "centers": plan.p,
        "epochs": plan.epochs,
        "samples": process.draws.shape[1],
        "noise": noise,
        "signal": signal,
    }
    kernel = model.model_.kernel
    embed = kernel.embedding(
        torch.zeros(features, dtype=torch.float64, device=device), torch.float32
    )
    A, B = (torch.tensor(part, device=device) for part in (X, X_test))
    seen, tested = embed(A), embed(B)
    picks = np.random.default_rng(3).permutation(len(X_test))[:places]
    gaps = []
    for place in picks.tolist():
        near, some = (
            (part - tested[place]).square().sum(1).topk(count, largest=False).indices
            for part, count in ((seen, min(nearest, rows)), (tested, around))
        )
        targets = y[near.cpu().numpy()] - y.mean()
        want, size = _exact(kernel, A[near], targets, B[some], signal, noise)
        at = some.cpu().numpy()
        ours = scored(y_test[at], mean[at], deviation[at], 1.0)["nll"]
        true = scored(y_test[at], want + y.mean(), size, 1.0)["nll"]
        gaps.append(ours - true)
        yield {
            **facts,
            "place": str(place),
            "method": "both",
            "nll": ours,
            "exact_nll": true,
            "gap": ours - true,
        }
    yield {**facts, "place": "mean of places", "method": "both", "gap": float(np.mean(gaps))}


def _exact(kernel, A, y, B, signal: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean, less that of all targets, and deviation. Far rows are told by the prior."""
    A, B = A.double(), B.double()
    t = torch.tensor(y, dtype=torch.float64, device=A.device)[:, None]
    K = kernel(A).mul_(signal)
    K.diagonal().add_(noise)
    L = torch.linalg.cholesky(K)
    k = kernel(A, B).mul_(signal)
    left = torch.linalg.solve_triangular(L, k, upper=False)
    mean = k.T @ torch.cholesky_solve(t, L)
    variance = signal - (left * left).sum(0) + noise
    return mean[:, 0].cpu().numpy(), variance.clamp(min=1e-300).sqrt().cpu().numpy()
