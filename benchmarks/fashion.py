"""Fashion-MNIST, Laplacian of bandwidth 20: accuracy, and time in evaluations of K(X, Z).

    KERNELMILL_DATA=folder python -m benchmarks fashion [--seeds 3] [--only auto exact]

"auto": whatever the plan takes; "exact": EigenPro 4 with the Cholesky projection; "O(p)": with the
carried residual, no p² memory; "paper": EigenPro4.paper(s=2000); "direct" takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

from kernelmill import KernelClassifier, kernels
from kernelmill.ops import KernelProduct
from kernelmill.planning.memory import TILE_BYTES
from kernelmill.solvers import EigenPro4

from .measure import peak_mib
from .tasks import fashion_mnist

RUNS = [
    ("auto", "auto", None),
    ("exact", EigenPro4(projection="cholesky"), 1),
    ("exact", EigenPro4(projection="cholesky"), 3),
    ("O(p)", EigenPro4(projection="carried"), 1),
    ("O(p)", EigenPro4(projection="carried"), 3),
    ("paper", EigenPro4.paper(s=2000), 1),
    ("direct", "direct", 1),
]
KERNEL = kernels.Laplacian(bandwidth=20.0)


def product(Z: Tensor) -> KernelProduct:
    return KernelProduct(KERNEL, Z.double().mean(0), "float32", torch.device("cpu"), TILE_BYTES)


def evaluations(X: Tensor, Z: Tensor) -> list[float]:
    """Seconds to evaluate K(X, Z) once, tile by tile, holding nothing: three times."""
    K = product(Z)
    A, B, times = K.points(X), K.points(Z), []
    for _ in range(3):
        start = time.perf_counter()
        for rows, cols in K.tiles(len(X), len(Z)):
            KERNEL.evaluate(A[rows], B[cols])
        times.append(time.perf_counter() - start)
    return times


def held(X: Tensor, Z: Tensor) -> float:
    """Seconds to evaluate K(X, Z) once into fresh memory, as a solver must that keeps it."""
    K = product(Z)
    A, B = K.points(X), K.points(Z)
    start = time.perf_counter()
    out = torch.empty(len(X), len(Z))
    for i in range(0, len(X), 4096):
        K.dense(A[i : i + 4096], B, out[i : i + 4096])
    return time.perf_counter() - start


def cases(
    centers: int = 5000, seeds: int = 1, only: tuple[str, ...] = ("auto", "exact", "O(p)", "paper")
) -> Iterator[dict]:
    X, y, X_test, y_test = fashion_mnist()
    for seed in range(seeds):
        for name, solver, epochs in (run for run in RUNS if run[0] in only):
            clock: dict[str, float] = {}

            def listen(event, clock=clock) -> None:
                clock[event.kind] = event.seconds

            model = KernelClassifier(
                kernel=KERNEL,
                n_centers=centers,
                solver=solver,
                epochs=epochs,
                ridge=0.0,
                validation_fraction=0.0,
                random_state=seed,
                callbacks=listen,
            )
            units = evaluations(X, X[:centers])
            kept = held(X, X[:centers]) if name == "auto" else None
            start = time.perf_counter()
            model.fit(X, y)
            total = time.perf_counter() - start
            # Before and after: the machine's speed wanders.
            unit = median(units + evaluations(X, X[:centers]))
            yield {
                "solver": name,
                "seed": seed,
                "epochs": epochs,
                "accuracy_percent": 100 * model.score(X_test, y_test),
                "evaluation_seconds": unit,
                "held_evaluation_seconds": kept,
                "epochs_seconds": clock["end"],
                "fit_seconds": total,
                "epoch_over_evaluation": clock["end"] / (epochs or 1) / unit,
                "fit_over_evaluation": total / unit,
                "chosen": model.plan_.solver,
                "predicted_seconds": model.plan_.seconds,
                "peak_mib": peak_mib(),
            }
