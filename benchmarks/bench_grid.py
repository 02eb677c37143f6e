"""Robustness: 4 kernels × 4 bandwidths × 3 (s, q) × float32 and float64, three seeds, on 12,000 rows of Fashion-MNIST with 3,000 centers.

    KERNELMILL_DATA=folder python benchmarks/bench_grid.py [--part 0/4]      # parts run side by side; --merge 4 puts them together

A cell compares one epoch of EigenPro4(s, q) with one epoch of the paper's recipe at the same s and q; "diverged" means that a run
stepped back or ended at chance.
"""

from __future__ import annotations

import argparse
import json
import warnings

import numpy as np
import torch

from common import RESULTS, fashion_mnist, show, write
from kernelmill import KernelClassifier, kernels
from kernelmill.solvers import EigenPro4

KERNELS = {
    "laplacian": kernels.Laplacian, "gaussian": kernels.Gaussian, "matern32": lambda b: kernels.Matern(b, nu=1.5),
    "rational_quadratic": kernels.RationalQuadratic,
}  # fmt: skip
FACTORS = (0.3, 1.0, 3.0, 10.0)
SIZES = ((500, 50), (2000, 300), (5000, 1500))


def run(kernel, solver, precision, seed, X, y, X_test, y_test, device) -> tuple[float, int]:
    model = KernelClassifier(kernel=kernel, n_centers=3000, solver=solver, epochs=1, ridge=0.0, validation_fraction=0.0, random_state=seed,
                             precision=precision, device=device)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    if not torch.isfinite(model.model_.alpha).all():
        return float("nan"), 1
    backs = sum(row["kind"] == "step_back" for row in model.history_)
    return 100 * model.score(X_test, y_test), backs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--merge", type=int, default=0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.merge:
        rows = [row for i in range(options.merge) for row in json.loads((RESULTS / f"grid-part{i}.json").read_text())["rows"]]
        finish(rows)
        return
    part, parts = map(int, options.part.split("/"))
    X, y, X_test, y_test = fashion_mnist()
    some = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:12_000]
    X, y = X[some], y[some]
    median = torch.pdist(X[:1500]).median().item()
    cells = [(k, f, sq, precision) for k in KERNELS for f in FACTORS for sq in SIZES for precision in ("float32", "float64")]
    rows = []
    for k, f, (s, q), precision in cells[part::parts]:
        kernel = KERNELS[k](f * median)
        data = (X, y, X_test, y_test, options.device)
        ours = [run(kernel, EigenPro4(s=s, q=q), precision, seed, *data) for seed in range(3)]
        paper = [run(kernel, EigenPro4.paper(s=s, q=q), precision, seed, *data) for seed in range(3)]
        converged = not any(backs for _, backs in paper)
        rows.append({
            "kernel": k, "bandwidth / median": f, "s": s, "q": q, "precision": precision, "ours": float(np.mean([a for a, _ in ours])),
            "step backs": int(sum(b for _, b in ours)), "paper": float(np.mean([a for a, _ in paper])) if converged else None,
        })  # fmt: skip
        print(rows[-1], flush=True)
    if parts > 1:
        write(f"grid-part{part}", rows)
    else:
        finish(rows)


def finish(rows: list[dict]) -> None:
    show(rows)
    compared = [row["ours"] - row["paper"] for row in rows if row["paper"] is not None]
    nan, backs = sum(not np.isfinite(row["ours"]) for row in rows), sum(row["step backs"] > 0 for row in rows)
    print(
        f"{len(rows)} cells: {nan} NaN, {backs} with a step back, paper converged in {len(compared)}, worst difference {min(compared):+.2f}"
    )
    write("grid", rows)


if __name__ == "__main__":
    main()
