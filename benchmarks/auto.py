"""solver="auto" and each of its candidates on a grid of (n, p), with the predicted seconds.

    python -m benchmarks auto [--rows 20000 200000] [--centers 5000 20000] [--longest 60]

The teacher task (generated, 10 classes), Laplacian of bandwidth 10, no ridge. Candidates that are
predicted above `longest` seconds, or do not fit, are listed and not run. On a GPU the first fits,
which compile kernels, are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from kernelmill import KernelClassifier, kernels, plan

from .tasks import teacher

POINTS = 0.3  # an accuracy within so many points of the best is as good


def fit(
    X: Tensor, y: Tensor, test: tuple[Tensor, Tensor], p: int, solver
) -> tuple[KernelClassifier, dict]:
    """The quickest of some fits, and what was measured of it."""
    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=10.0),
        n_centers=p,
        solver=solver,
        ridge=0.0,
        random_state=0,
    )
    if X.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    seconds: list[float] = []
    while len(seconds) < 5 and sum(seconds) < 3:  # short fits more than once: the quickest counts
        start = time.perf_counter()
        model.fit(X, y)
        if X.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        right = model.model_(test[0]).argmax(1).cpu() == test[1].cpu()
    measured = {
        "predicted_seconds": model.plan_.seconds,
        "seconds": min(seconds),
        "accuracy_percent": 100 * right.double().mean().item(),
        "iterations": model.n_iter_,
    }
    return model, measured


def cases(
    rows: tuple[int, ...] = (20_000, 200_000, 2_000_000),
    centers: tuple[int, ...] = (5_000, 20_000, 80_000, 320_000),
    features: int = 1280,
    longest: float = 60.0,
) -> Iterator[dict]:
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    X, y = teacher(max(rows), 0, device, d=features)
    test = teacher(20_000, 99, device, d=features)
    if device == "cpu":
        X, test = X.float(), (test[0].float(), test[1])
    else:
        for solver in ("falkon", "eigenpro4", "direct"):  # compiles
            for p in (5_000, 20_000):
                fit(X[:20_000], y[:20_000], test, p, solver)
    for n, p in [(n, p) for n in rows for p in centers if p <= n]:
        yield from candidates(X[:n], y[:n], test, p, longest)
        model, measured = fit(X[:n], y[:n], test, p, "auto")
        yield {"n": n, "p": p, "solver": "auto", "chosen": model.plan_.solver, **measured}


def candidates(
    X: Tensor, y: Tensor, test: tuple[Tensor, Tensor], p: int, longest: float
) -> Iterator[dict]:
    """One row for each candidate of the plan for X."""
    outlook = plan(
        n=len(X),
        d=X.shape[1],
        n_centers=p,
        n_outputs=10,
        kernel=kernels.Laplacian(bandwidth=10.0),
        ridge=0.0,
        device=str(X.device),
        x_bytes=X.dtype.itemsize,
        precision="float16" if X.is_cuda else "float32",
    )
    print(outlook, outlook.plan.rates, sep="\n", flush=True)
    for candidate in outlook.candidates:
        row = {"n": len(X), "p": p, "solver": candidate.label, "note": candidate.reason[:40]}
        if candidate.plan is not None and not candidate.reason:
            predicted = candidate.plan.seconds
            row["predicted_seconds"] = predicted
            if predicted > longest:
                row["note"] = f"predicted above {longest:.0f} s"
            else:
                try:
                    _, measured = fit(X, y, test, p, candidate.solver)
                    row |= {**measured, "predicted_seconds": predicted}
                except torch.OutOfMemoryError:
                    row["note"] = "OUT OF MEMORY"
        yield row


def summary(rows: list[dict]) -> dict:
    """What "auto" took in each cell (n, p), beside the fastest that is as good as the best."""
    cells = []
    for auto in (row for row in rows if row["solver"] == "auto"):
        n, p = auto["n"], auto["p"]
        measured = [
            row for row in rows if (row["n"], row["p"]) == (n, p) and row.get("seconds") is not None
        ]
        best = max(row["accuracy_percent"] for row in measured)
        good = [row for row in measured if row["accuracy_percent"] >= best - POINTS]
        fastest = min(auto["seconds"], *(row["seconds"] for row in good))
        cells.append(
            {
                "n": n,
                "p": p,
                "chosen": auto["chosen"],
                "seconds": auto["seconds"],
                "predicted_seconds": auto["predicted_seconds"],
                "accuracy_percent": auto["accuracy_percent"],
                "best_accuracy_percent": best,
                "fastest_seconds": fastest,
                "auto_over_fastest": auto["seconds"] / fastest,
                "as_good": auto in good,
            }
        )
    return {"cells": cells}
