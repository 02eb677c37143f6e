"""Every candidate of solver="auto" on a grid of (n, p), with the seconds that were predicted, and "auto" itself.

    python benchmarks/bench_auto.py [--rows 20000 200000 2000000] [--centers 5000 20000 80000 320000] [--longest 60]

The teacher task (generated, d = 1280, 10 classes), Laplacian of bandwidth 10, no ridge. Candidates that are predicted above `longest`
seconds, or do not fit, are listed and not run. On a GPU the first fits, which compile kernels, are not counted.
"""

from __future__ import annotations

import argparse
import time

import torch

from common import show, teacher, write
from kernelmill import KernelClassifier, kernels, plan


def fitted(X, y, test, p: int, solver) -> tuple[float, float, KernelClassifier]:
    model = KernelClassifier(kernel=kernels.Laplacian(bandwidth=10.0), n_centers=p, solver=solver, ridge=0.0, random_state=0)
    on_gpu = X.is_cuda
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    seconds = []
    while len(seconds) < 5 and sum(seconds) < 3:  # short fits more than once: the quickest counts
        start = time.perf_counter()
        model.fit(X, y)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        accuracy = 100 * (model.model_(test[0]).argmax(1).cpu() == test[1].cpu()).double().mean().item()
    return min(seconds), accuracy, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 200_000, 2_000_000])
    parser.add_argument("--centers", type=int, nargs="+", default=[5_000, 20_000, 80_000, 320_000])
    parser.add_argument("--features", type=int, default=1280)
    parser.add_argument("--longest", type=float, default=60.0)
    parser.add_argument("--name", default="auto")
    options = parser.parse_args()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    X, y = teacher(max(options.rows), 0, device, d=options.features)
    test = teacher(20_000, 99, device, d=options.features)
    if device == "cpu":
        X, test = X.float(), (test[0].float(), test[1])
    rows, cells = [], []
    kernel = kernels.Laplacian(bandwidth=10.0)
    for solver in ("falkon", "eigenpro4", "direct") if device != "cpu" else ():
        for p in (5_000, 20_000):
            fitted(X[:20_000], y[:20_000], test, p, solver)
    for n in options.rows:
        for p in options.centers:
            if p > n:
                continue
            outlook = plan(
                n=n, d=options.features, n_centers=p, n_outputs=10, kernel=kernel, ridge=0.0, device=device, x_bytes=X.dtype.itemsize,
                precision="float16" if device != "cpu" else "float32",
            )  # fmt: skip
            print(outlook, flush=True)
            print(outlook.plan.rates, flush=True)
            times = {}
            for candidate in outlook.candidates:
                row = {"n": n, "p": p, "solver": candidate.label, "predicted s": None, "measured s": None, "ratio": None, "accuracy": None,
                       "iterations": None, "note": candidate.reason[:40]}  # fmt: skip
                if candidate.plan is not None and not candidate.reason:
                    row["predicted s"] = candidate.plan.seconds
                    if candidate.plan.seconds > options.longest:
                        row["note"] = f"predicted above {options.longest:.0f} s"
                    else:
                        try:
                            seconds, accuracy, model = fitted(X[:n], y[:n], test, p, candidate.solver)
                            row |= {"measured s": seconds, "ratio": seconds / candidate.plan.seconds, "accuracy": accuracy,
                                    "iterations": model.n_iter_}  # fmt: skip
                            times[candidate.label] = (seconds, accuracy)
                        except torch.OutOfMemoryError:
                            row["note"] = "OUT OF MEMORY"
                rows.append(row)
                print(row, flush=True)
            seconds, accuracy, model = fitted(X[:n], y[:n], test, p, "auto")
            best = max([accuracy, *(a for _, a in times.values())])
            fastest = min([seconds, *(s for s, a in times.values() if a >= best - 0.3)])
            cells.append({"n": n, "p": p, "auto": model.plan_.solver, "auto s": seconds, "accuracy": accuracy,
                          "predicted s": model.plan_.seconds,
                          "best accuracy": best, "fastest s": fastest, "auto / fastest": seconds / fastest,
                          "good": accuracy >= best - 0.3})  # fmt: skip
            print(cells[-1], flush=True)
            write(options.name, rows, cells=cells)
    show(rows)
    show(cells)


if __name__ == "__main__":
    main()
