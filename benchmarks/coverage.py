"""90 % intervals of regressions without an argument, beside gradient boosting of two quantiles.

    KERNELMILL_DATA=folder python -m benchmarks coverage [--data diamonds turbine]

The share of test rows inside, and the mean width over the deviation of the target. Boosting is
HistGradientBoostingRegressor(loss="quantile") at 5 % and 95 %, stopped early, on all training rows;
`conformal boosting` widens its interval by what one tenth of the rows, which it then does not learn
from, asks for (Romano et al., 2019), so that both hold what they promise. Test rows are read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from kernelmill import KernelRegressor

from .tables.data import TABLES
from .tables.encode import Codes

DATA = tuple(name for name, each in TABLES.items() if not each.classes)
METHODS = ("kernelmill", "boosting", "conformal boosting")
COVERAGE = 0.9


def cases(data: tuple[str, ...] = DATA, only: tuple[str, ...] = METHODS) -> Iterator[dict]:
    for name in data:
        train, test = TABLES[name].train(), TABLES[name].test(None)
        for method in only:
            start = time.perf_counter()
            if method == "kernelmill":
                model = KernelRegressor(random_state=0).fit(train.X, train.y)
                seconds = time.perf_counter() - start
                lower, upper = model.predict_interval(test.X, COVERAGE)
                used = model.intervals_
                assert used is not None
                more = {
                    "residuals": len(used.w),
                    "how": used.how,
                    "local": bool(used.slopes.any()),
                    "device": model.plan_.device,
                }
            else:
                lower, upper = boosted(train, test, conformal=method != "boosting")
                seconds, more = time.perf_counter() - start, {"device": "cpu"}
            inside = (lower <= test.y) & (test.y <= upper)
            yield {
                "data": name,
                "method": method,
                "rows": len(train),
                "inside_percent": 100 * float(inside.mean()),
                "width": float((upper - lower).mean() / train.y.std()),
                "fit_seconds": seconds,
                **more,
            }
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def boosted(train, test, conformal: bool) -> tuple[np.ndarray, np.ndarray]:
    codes = Codes.learn(train.X)
    names = list(codes.known)
    X, X_test, y = codes.matrix(train.X), codes.matrix(test.X), train.y
    out = np.zeros(len(y), bool)
    if conformal:
        out[np.random.default_rng(0).permutation(len(y))[: len(y) // 10]] = True
    found = []
    for quantile in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2):
        model = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            categorical_features=names or None,
            max_iter=1000,
            early_stopping=True,
            random_state=0,
        ).fit(X[~out], y[~out])
        found.append((model.predict(X_test), model.predict(X[out]) if conformal else None))
    (lower, low), (upper, high) = found
    if conformal:
        scores = np.sort(np.maximum(low - y[out], y[out] - high))
        more = scores[min(len(scores), int(np.ceil((len(scores) + 1) * COVERAGE))) - 1]
        lower, upper = lower - more, upper + more
    return lower, upper


def summary(rows: list[dict]) -> dict:
    """Means over tables, and on how many our intervals are the narrower ones."""
    methods = dict.fromkeys(row["method"] for row in rows)
    width = {method: {} for method in methods}
    for row in rows:
        width[row["method"]][row["data"]] = row["width"]
    ours = width.get("kernelmill", {})
    return {
        method.replace(" ", "_"): {
            "inside_percent": float(
                np.mean([row["inside_percent"] for row in rows if row["method"] == method])
            ),
            "tables": len(width[method]),
            "ours_is_narrower": sum(
                ours.get(name, np.inf) < w for name, w in width[method].items()
            ),
        }
        for method in methods
    }
