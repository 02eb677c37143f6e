"""Every precision × bandwidths 1, 5, 20, 100 × q 100, 500, 2000 on the generated task, p = 65,536: no NaN, and how far below float32.

python benchmarks/bench_precision.py [--rows 100000]
"""

from __future__ import annotations

import argparse
import sys

import torch

from common import show, teacher, write
from gpu import measured_fit
from kernelmill.ops import PRECISIONS
from kernelmill.solvers import EigenPro4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--centers", type=int, default=65_536)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_precision.py needs a CUDA GPU.")
    X, y = teacher(options.rows, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    X, rows = X.float(), []
    for bandwidth in (1.0, 5.0, 20.0, 100.0):
        for q in (100, 500, 2000):
            row: dict = {"bandwidth": bandwidth, "q": q}
            for precision in PRECISIONS:
                solver = EigenPro4(s=max(4000, 2 * q), q=q, projection="carried")
                got, model = measured_fit(X, y, *test, n_centers=options.centers, bandwidth=bandwidth, precision=precision, solver=solver)
                row[precision] = got["accuracy"] if torch.isfinite(model.model_.alpha).all() else float("nan")
            row["worst below float32"] = max(row["float32"] - row[precision] for precision in PRECISIONS)
            rows.append(row)
            print(row, flush=True)
            write("precision", rows, n=options.rows, p=options.centers)
    show(rows)


if __name__ == "__main__":
    main()
