"""Time and peak memory of one epoch on a GPU against the number of centers (n = 2 M) and the number of rows, with fitted exponents.

    python benchmarks/bench_scaling.py [--largest 1048576]

One projection method (carried), and from 65,536 centers on one preconditioner (s = 8,000, q = 800), so that only p changes. The fixed cost
(labels, set-up, launches) is the intercept of the straight line in p that fits the seconds best, in relative error; beside it stands
the free fit of fixed + b·p^exponent, and the steepest doubling. `--refit` fits the stored rows again.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import torch

from common import RESULTS, line, show, slope, teacher, write
from gpu import measured_fit
from kernelmill.solvers import EigenPro4


def free_fit(x, y) -> float:
    """The intercept of fixed + b·x^exponent with which log(y − fixed) is most nearly straight in log x."""

    def misfit(fixed: float) -> float:
        exponent, log_b = np.polyfit(np.log(x), np.log(np.subtract(y, fixed)), 1)
        return float((((fixed + np.exp(log_b) * np.power(x, exponent)) / y - 1) ** 2).sum())

    return float(min(np.linspace(0, 0.95 * min(y), 200), key=misfit))


def fits(rows: list[dict]) -> dict:
    large = [row for row in rows if row["p"] >= 65_536 and row["n"] == rows[0]["n"]]
    by_rows = [row for row in rows if row["p"] == 131_072]
    p, seconds = [row["p"] for row in large], [row["fit s"] for row in large]
    fixed, free = line(p, seconds), free_fit(p, seconds)
    return {
        "seconds in p": slope(p, seconds),
        "fixed seconds": fixed,
        "seconds above the fixed cost in p": slope(p, np.subtract(seconds, fixed)),
        "steepest doubling of p": float(np.diff(np.log2(seconds)).max()),
        "free fit, fixed seconds": free,
        "free fit, exponent": slope(p, np.subtract(seconds, free)),
        "peak memory in p": slope(p, [row["peak GiB"] for row in large]),
        "seconds in n": slope([row["n"] for row in by_rows], [row["fit s"] for row in by_rows]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--largest", type=int, default=1_048_576)
    parser.add_argument("--refit", action="store_true")
    options = parser.parse_args()
    if options.refit:
        path = RESULTS / "scaling.json"
        stored = json.loads(path.read_text())
        path.write_text(json.dumps({**stored, "exponents": fits(stored["rows"])}, indent=1) + "\n")
        print(fits(stored["rows"]))
        return
    if not torch.cuda.is_available():
        sys.exit("bench_scaling.py needs a CUDA GPU.")
    X, y = teacher(options.rows, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    rows = []

    def run(n: int, p: int) -> dict:
        solver = EigenPro4(projection="carried", s=8000, q=800) if p >= 65_536 else None
        row, _ = measured_fit(X[:n], y[:n], *test, n_centers=p, bandwidth=10.0, solver=solver)
        rows.append(row)
        print(row, flush=True)
        return row

    for p in (16_384, 131_072):
        measured_fit(X[:300_000], y[:300_000], *test, n_centers=p, bandwidth=10.0)  # compiles
    sizes = [p for p in (16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576) if p <= options.largest]
    for p in sizes:
        run(options.rows, p)
    for n in (250_000, 500_000, 1_000_000):
        run(n, 131_072)
    show(rows)
    print(fits(rows))
    write("scaling", rows, exponents=fits(rows))


if __name__ == "__main__":
    main()
