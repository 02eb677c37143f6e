"""What more rows, more centers and another seed do: error on rows held out of training.

    KERNELMILL_DATA=folder python -m benchmarks growth [--seeds 10]

Finds tables as KERNELMILL_DATA/tables/NAME.train.parquet; test files are not read. The error is the
log loss of classes, and the mean squared error over the variance of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kernelmill import KernelClassifier, KernelRegressor

from .tasks import data_folder

TARGETS = {"hotel": "is_canceled", "diamonds": "price", "cards": "Default"}
ROWS, CENTERS = (1250, 2500, 5000), (300, 1000, 3000)


def error(train: pd.DataFrame, held: pd.DataFrame, target: str, **settings) -> float:
    if train[target].nunique() > 10:
        return 1 - KernelRegressor(**settings).fit(train, target).score(held, target)
    model = KernelClassifier(**settings).fit(train, target)
    codes = np.searchsorted(model.classes_, held[target].to_numpy())
    right = model.predict_proba(held)[np.arange(len(held)), codes]
    return float(-np.log(np.maximum(right, 1e-12)).mean())


def cases(seeds: int = 10) -> Iterator[dict]:
    for name, target in TARGETS.items():
        path = data_folder() / "tables" / f"{name}.train.parquet"
        table = pd.read_parquet(path).sample(frac=1, random_state=0)
        held, rest = table[:5000], table[5000:]
        for n in ROWS:
            found = error(rest[:n], held, target, random_state=0)
            yield {"table": name, "varied": "rows", "value": n, "error": found}
        for p in CENTERS:
            found = error(rest[:5000], held, target, n_centers=p, random_state=0)
            yield {"table": name, "varied": "centers", "value": p, "error": found}
        for seed in range(seeds):
            found = error(rest[:5000], held, target, n_centers=1500, random_state=seed)
            yield {"table": name, "varied": "seed", "value": seed, "error": found}
