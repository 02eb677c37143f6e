"""Whether more rows, more centers and another seed do what they should: error on rows of the training file that are kept out of it.

    KERNELMILL_DATA=folder python benchmarks/bench_growth.py [--seeds 10]

Finds tables as KERNELMILL_DATA/tables/NAME.train.parquet; test files are not read.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from common import data_folder, write
from kernelmill import KernelClassifier, KernelRegressor

TARGETS = {"hotel": "is_canceled", "diamonds": "price", "cards": "Default"}
ROWS, CENTERS = (1250, 2500, 5000), (300, 1000, 3000)


def error(train: pd.DataFrame, held: pd.DataFrame, target: str, **settings) -> float:
    """Log loss of classes, mean squared error over the variance of numbers."""
    if train[target].nunique() > 10:
        return 1 - KernelRegressor(**settings).fit(train, target).score(held, target)
    model = KernelClassifier(**settings).fit(train, target)
    codes = np.searchsorted(model.classes_, held[target].to_numpy())
    return float(-np.log(np.maximum(model.predict_proba(held)[np.arange(len(held)), codes], 1e-12)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    results = []
    for name, target in TARGETS.items():
        table = pd.read_parquet(data_folder() / "tables" / f"{name}.train.parquet").sample(frac=1, random_state=0)
        held, rest = table[:5000], table[5000:]
        cases = [("rows", n, dict(n=n, n_centers=None, random_state=0)) for n in ROWS]
        cases += [("centers", p, dict(n=5000, n_centers=p, random_state=0)) for p in CENTERS]
        cases += [("seed", seed, dict(n=5000, n_centers=1500, random_state=seed)) for seed in range(asked.seeds)]
        for what, value, settings in cases:
            n = settings.pop("n")
            results.append({"table": name, "varied": what, "value": value, "error": error(rest[:n], held, target, **settings)})
            print(*results[-1].values(), flush=True)
    write("growth", results)


if __name__ == "__main__":
    main()
