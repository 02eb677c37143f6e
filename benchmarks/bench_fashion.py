"""Fashion-MNIST, 60,000 rows, Laplacian of bandwidth 20: accuracy and time of an epoch in units of one evaluation of K(X, Z).

    KERNELMILL_DATA=folder python benchmarks/bench_fashion.py [--centers 5000] [--direct]

"auto": whatever the plan takes; "exact": EigenPro 4 with the Cholesky projection; "O(p)": with the carried residual, no p² memory; "paper":
EigenPro4.paper(s=2000).
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import torch

from common import RESULTS, fashion_mnist, peak_mib, show, write
from kernelmill import KernelClassifier, kernels
from kernelmill.ops import KernelProduct
from kernelmill.planning import TILE_BYTES
from kernelmill.solvers import EigenPro4


def evaluations(kernel, X, Z) -> list[float]:
    """Seconds to evaluate K(X, Z) once, tile by tile, holding nothing: three times."""
    K = KernelProduct(kernel, Z.double().mean(0), "float32", torch.device("cpu"), TILE_BYTES)
    A, B, times = K.points(X), K.points(Z), []
    for _ in range(3):
        start = time.perf_counter()
        for rows, cols in K.tiles(len(X), len(Z)):
            kernel.evaluate(A[rows], B[cols])
        times.append(time.perf_counter() - start)
    return times


def held(kernel, X, Z) -> float:
    """Seconds to evaluate K(X, Z) once into fresh memory, as a solver must that keeps it."""
    K = KernelProduct(kernel, Z.double().mean(0), "float32", torch.device("cpu"), TILE_BYTES)
    A, B = K.points(X), K.points(Z)
    start = time.perf_counter()
    out = torch.empty(len(X), len(Z))
    for i in range(0, len(X), 4096):
        K.dense(A[i : i + 4096], B, out[i : i + 4096])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, default=5000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="only these, beside what the file has of the others")
    parser.add_argument("--direct", action="store_true", help="also the direct solution: minutes")
    options = parser.parse_args()
    X, y, X_test, y_test = fashion_mnist()
    kernel = kernels.Laplacian(bandwidth=20.0)
    rows = []
    runs = [("auto", "auto", None), ("exact", EigenPro4(projection="cholesky"), 1), ("exact", EigenPro4(projection="cholesky"), 3),
            ("O(p)", EigenPro4(projection="carried"), 1), ("O(p)", EigenPro4(projection="carried"), 3),
            ("paper", EigenPro4.paper(s=2000), 1)]  # fmt: skip
    if options.direct:
        runs.append(("direct", "direct", 1))
    if options.only:
        runs = [run for run in runs if run[0] in options.only]
        rows = [row for row in json.loads((RESULTS / "fashion.json").read_text())["rows"] if row["solver"] not in options.only]
    for seed in range(options.seeds):
        for name, solver, epochs in runs:
            clock = {}
            model = KernelClassifier(
                kernel=kernel, n_centers=options.centers, solver=solver, epochs=epochs, ridge=0.0, validation_fraction=0.0,
                random_state=seed, callbacks=lambda event, clock=clock: clock.update({event.kind: event.seconds}) or False,
            )  # fmt: skip
            units = evaluations(kernel, X, X[: options.centers])
            kept = held(kernel, X, X[: options.centers]) if name == "auto" else None
            start = time.perf_counter()
            model.fit(X, y)
            total = time.perf_counter() - start
            unit = median(units + evaluations(kernel, X, X[: options.centers]))  # before and after: the machine's speed wanders
            rows.append({
                "solver": name, "seed": seed, "epochs": epochs, "accuracy": 100 * model.score(X_test, y_test),
                "epoch / K(X,Z)": clock["end"] / (epochs or 1) / unit, "fit / K(X,Z)": total / unit, "K(X,Z) s": unit,
                "epochs s": clock["end"], "fit s": total, "K(X,Z) held s": kept,
                "took": model.plan_.solver, "predicted s": model.plan_.seconds,
                "peak MiB": peak_mib(),
            })  # fmt: skip
            print(rows[-1], flush=True)
    show([row for row in rows if row.keys() == rows[-1].keys()])
    write("fashion", rows)


if __name__ == "__main__":
    main()
