"""Time and peak memory of one epoch on a GPU against the number of centers (n = 2 M) and the number of rows, with fitted exponents.

    python benchmarks/bench_scaling.py [--largest 1048576]

One projection method (carried) at every size. The exponent is the slope of log(seconds − fixed cost) over log p from 65,536 on, the fixed
cost being the fit with 1,024 centers: reading, labels, set-up and launches.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from common import show, teacher, write
from gpu import measured_fit


def slope(x, y) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--largest", type=int, default=1_048_576)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_scaling.py needs a CUDA GPU.")
    X, y = teacher(options.rows, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    rows = []

    def run(n: int, p: int) -> dict:
        row, _ = measured_fit(X[:n], y[:n], *test, n_centers=p, bandwidth=10.0)
        rows.append(row)
        print(row, flush=True)
        return row

    for p in (1024, 16_384, 131_072):
        measured_fit(X[:300_000], y[:300_000], *test, n_centers=p, bandwidth=10.0)  # compiles
    fixed = run(options.rows, 1024)["fit s"]
    sizes = [p for p in (16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576) if p <= options.largest]
    runs = [run(options.rows, p) for p in sizes]
    large = [row for row in runs if row["p"] >= 65_536]
    by_rows = [run(n, 131_072) for n in (250_000, 500_000, 1_000_000)] + [row for row in runs if row["p"] == 131_072]
    p = [row["p"] for row in large]
    exponents = {
        "seconds in p": slope(p, [row["fit s"] for row in large]),
        "seconds above the fixed cost in p": slope(p, [row["fit s"] - fixed for row in large]),
        "peak memory in p": slope(p, [row["peak GiB"] for row in large]),
        "seconds in n": slope([row["n"] for row in by_rows], [row["fit s"] for row in by_rows]),
    }
    show(rows)
    print(exponents)
    write("scaling", rows, exponents=exponents, fixed_seconds=fixed)


if __name__ == "__main__":
    main()
