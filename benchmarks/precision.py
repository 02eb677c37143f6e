"""Every precision × 4 bandwidths × 3 q on the generated task: how far each is below float32.

python -m benchmarks precision [--rows 100000] [--centers 65536]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmill.ops import PRECISIONS
from kernelmill.solvers import EigenPro4

from .gpu import measured_fit
from .tasks import teacher


def cases(rows: int = 100_000, centers: int = 65_536) -> Iterator[dict]:
    X, y = teacher(rows, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    X = X.float()
    for bandwidth in (1.0, 5.0, 20.0, 100.0):
        for q in (100, 500, 2000):
            accuracy = {}
            for precision in PRECISIONS:
                solver = EigenPro4(s=max(4000, 2 * q), q=q, projection="carried")
                row, model = measured_fit(
                    X,
                    y,
                    *test,
                    n_centers=centers,
                    bandwidth=bandwidth,
                    precision=precision,
                    solver=solver,
                )
                finite = torch.isfinite(model.model_.alpha).all()
                accuracy[precision] = row["accuracy_percent"] if finite else float("nan")
            yield {
                "n": rows,
                "p": centers,
                "bandwidth": bandwidth,
                "q": q,
                **{f"{precision}_percent": value for precision, value in accuracy.items()},
                "worst_below_float32_points": max(
                    accuracy["float32"] - value for value in accuracy.values()
                ),
            }
