"""The generated task: how much of the gap between the paper's recipe and the direct solution is
closed by one and three epochs. Laplacian of bandwidth 10, mean over the seeds.

    python -m benchmarks teacher [--rows 60000] [--centers 8192] [--seeds 3] [--device cpu]
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kernelmill import KernelClassifier, kernels
from kernelmill.solvers import EigenPro4

from .tasks import teacher

LOW, HIGH = "paper, 1 epoch", "direct"
RUNS = {
    LOW: (EigenPro4.paper(s=2000), 1),
    HIGH: ("direct", 1),
    "EigenPro4, 1 epoch": (EigenPro4(), 1),
    "EigenPro4, 3 epochs": (EigenPro4(), 3),
    "O(p) memory, 1 epoch": (EigenPro4(projection="carried"), 1),
    "O(p) memory, 3 epochs": (EigenPro4(projection="carried"), 3),
}


def cases(
    rows: int = 60_000,
    centers: int = 8192,
    test_rows: int = 200_000,
    seeds: int = 3,
    device: str = "auto",
) -> Iterator[dict]:
    X_test, y_test = teacher(test_rows, seed=99)
    X, y = teacher(rows, seed=0)
    X, X_test = X.float(), X_test.float()
    means: dict[str, float] = {}
    for name, (solver, epochs) in RUNS.items():
        scores, seconds = [], []
        for seed in range(seeds):
            model = KernelClassifier(
                kernel=kernels.Laplacian(bandwidth=10.0),
                n_centers=centers,
                solver=solver,
                epochs=epochs,
                ridge=0.0,
                validation_fraction=0.0,
                random_state=seed,
                device=device,
                precision="float32",
            )
            start = time.perf_counter()
            model.fit(X, y)
            seconds.append(time.perf_counter() - start)
            scores.append(100 * accuracy(model, X_test, y_test))
        means[name] = float(np.mean(scores))
        gap = means.get(HIGH, np.nan) - means[LOW]
        yield {
            "method": name,
            "n": rows,
            "p": centers,
            "accuracy_percent": means[name],
            "gap_closed_percent": 100 * (means[name] - means[LOW]) / gap if gap == gap else 0.0,
            "fit_seconds": float(np.mean(seconds)),
            "accuracy_percent_per_seed": scores,
        }


def accuracy(model: KernelClassifier, X: Tensor, y: Tensor) -> float:
    device = model.model_.alpha.device
    with torch.no_grad():
        parts = [
            model.model_(X[i : i + 20_000].to(device)).argmax(1).cpu()
            for i in range(0, len(X), 20_000)
        ]
    return (torch.cat(parts) == y).double().mean().item()
