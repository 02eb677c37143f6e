"""Robustness: 4 kernels × 4 bandwidths × 3 (s, q) × 2 precisions on 12,000 rows of Fashion-MNIST.

    KERNELMILL_DATA=folder python -m benchmarks grid [--part 0 --parts 4]   # parts side by side

A cell compares one epoch of EigenPro4(s, q) with one epoch of the paper's recipe at the same s and
q, with 3,000 centers, mean of three seeds. The paper's accuracy is only given where none of its
runs stepped back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch

from kernelmill import KernelClassifier, kernels
from kernelmill.solvers import EigenPro4

from .tasks import fashion_mnist

KERNELS = {
    "laplacian": kernels.Laplacian,
    "gaussian": kernels.Gaussian,
    "matern32": lambda b: kernels.Matern(b, nu=1.5),
    "rational_quadratic": kernels.RationalQuadratic,
}
FACTORS = (0.3, 1.0, 3.0, 10.0)
SIZES = ((500, 50), (2000, 300), (5000, 1500))


def cases(part: int = 0, parts: int = 1, device: str = "auto") -> Iterator[dict]:
    X, y, X_test, y_test = fashion_mnist()
    some = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:12_000]
    X, y = X[some], y[some]
    median = torch.pdist(X[:1500]).median().item()

    def run(kernel, solver: EigenPro4, precision: str, seed: int) -> tuple[float, int]:
        """Accuracy, and how often the run stepped back."""
        model = KernelClassifier(
            kernel=kernel,
            n_centers=3000,
            solver=solver,
            epochs=1,
            ridge=0.0,
            validation_fraction=0.0,
            random_state=seed,
            precision=precision,
            device=device,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        if not torch.isfinite(model.model_.alpha).all():
            return float("nan"), 1
        backs = sum(row["kind"] == "step_back" for row in model.history_)
        return 100 * model.score(X_test, y_test), backs

    cells = list(product(KERNELS, FACTORS, SIZES, ("float32", "float64")))
    for name, factor, (s, q), precision in cells[part::parts]:
        kernel = KERNELS[name](factor * median)
        ours = [run(kernel, EigenPro4(s=s, q=q), precision, seed) for seed in range(3)]
        paper = [run(kernel, EigenPro4.paper(s=s, q=q), precision, seed) for seed in range(3)]
        converged = not any(backs for _, backs in paper)
        yield {
            "kernel": name,
            "bandwidth_over_median": factor,
            "s": s,
            "q": q,
            "precision": precision,
            "accuracy_percent": float(np.mean([score for score, _ in ours])),
            "step_backs": sum(backs for _, backs in ours),
            "paper_accuracy_percent": (
                float(np.mean([score for score, _ in paper])) if converged else None
            ),
        }


def summary(rows: list[dict]) -> dict:
    compared = [row for row in rows if row["paper_accuracy_percent"] is not None]
    return {
        "cells": len(rows),
        "cells_not_finite": sum(not np.isfinite(row["accuracy_percent"]) for row in rows),
        "cells_with_step_backs": sum(row["step_backs"] > 0 for row in rows),
        "cells_compared": len(compared),
        "worst_difference_points": min(
            row["accuracy_percent"] - row["paper_accuracy_percent"] for row in compared
        ),
    }
