"""Heads on frozen features: sweep and fit of a kernel head beside logistic regression with its own
sweep.

    KERNELMILL_DATA=folder python -m benchmarks heads [--only features text]

Both choose by the same rows, those that `sweep` keeps out of the training rows, then train on all
training rows; no choice is made by test rows. Logistic regression has standardised
features and L-BFGS, which is the quickest of scikit-learn's solvers for many classes; one C after
the other, each from the weights of the last, until its tolerance or 1,000 iterations.
`python -m reproduce.data fetch` gets the data.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from kernelmill import KernelClassifier, sweep
from kernelmill.estimators.sweep import HELD_SHARE, MOST_HELD

ROWS = {"features": 10_000, "text": 40_000}
PENALTIES = tuple(float(value) for value in np.geomspace(1e-4, 0.1, 7))  # C of LogisticRegression
CENTERS, SEED = {"features": None, "text": 8000}, 0  # None: as many as the plan takes


def cases(only: tuple[str, ...] = ("features", "text")) -> Iterator[dict]:
    from reproduce.data import load

    few = np.random.default_rng(0).normal(size=(200, 3))
    KernelClassifier(kernel="laplacian").fit(few, few[:, 0] > 0)  # what a first fit imports
    for name in only:
        data = load(name, ROWS[name])
        X, X_test = data.X.float().numpy(), data.X_test.float().numpy()
        y, y_test = data.y.numpy(), data.y_test.numpy()
        about = {"data": name, "rows": len(X), "features": X.shape[1], "classes": data.classes}
        for method in ("laplacian", "gaussian", "logistic"):
            head, found = (
                linear_head(X, y)
                if method == "logistic"
                else kernel_head(method, X, y, CENTERS[name])
            )
            start = time.perf_counter()
            said = head(X_test)
            yield {
                **about,
                "method": method,
                **found,
                "total_seconds": found["sweep_seconds"] + found["fit_seconds"],
                "predict_seconds": time.perf_counter() - start,
                "test_rows": len(y_test),
                "accuracy_percent": 100 * float(np.mean(said == y_test)),
            }


def kernel_head(kernel: str, X: np.ndarray, y: np.ndarray, centers: int | None) -> tuple:
    start = time.perf_counter()
    given = KernelClassifier(kernel=kernel, n_centers=centers, random_state=SEED)
    found = sweep(given, X, y)
    swept = time.perf_counter()
    model = found.estimator.fit(X, y)
    done = time.perf_counter()
    return model.predict, {
        "tried": found.scores.size,
        "held_out_rows": found.rows,
        "held_out_percent": 100 * float(found.scores.max()),
        "chosen": f"bandwidth {found.best['bandwidth']:g}, ridge {found.best['ridge']:g}",
        "sweep_rows": found.sizes["rows"],
        "sweep_centers": found.sizes["centers"],
        "centers": model.model_.n_centers,
        "solver": model.plan_.solver,
        "sweep_seconds": swept - start,
        "fit_seconds": done - swept,
    }


def linear_head(X: np.ndarray, y: np.ndarray) -> tuple:
    share = min(HELD_SHARE, MOST_HELD / len(X))
    reader = KernelClassifier(validation_fraction=share, random_state=SEED)
    held = reader._hold_out(len(X), share, None, y)  # the rows that `sweep` keeps out
    kept = np.setdiff1d(np.arange(len(X)), held)
    start = time.perf_counter()
    scores, unfinished = {}, 0
    scale = StandardScaler().fit(X[kept])
    rows, rows_held = scale.transform(X[kept]), scale.transform(X[held])
    model = LogisticRegression(max_iter=1000, warm_start=True)
    for penalty in PENALTIES:
        unfinished += fit(model.set_params(C=penalty), rows, y[kept])
        scores[penalty] = model.score(rows_held, y[held])
    swept = time.perf_counter()
    best = max(scores, key=scores.__getitem__)
    scale = StandardScaler().fit(X)
    model = LogisticRegression(max_iter=1000, C=best)
    unfinished += fit(model, scale.transform(X), y)
    done = time.perf_counter()
    return lambda rows: model.predict(scale.transform(rows)), {
        "tried": len(PENALTIES),
        "held_out_rows": len(held),
        "held_out_percent": 100 * scores[best],
        "chosen": f"C {best:g}",
        "not_converged": unfinished,
        "sweep_seconds": swept - start,
        "fit_seconds": done - swept,
    }


def fit(model: LogisticRegression, X: np.ndarray, y: np.ndarray) -> bool:
    """Fits; whether iterations ended before the tolerance was met."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(X, y)
    return any(issubclass(one.category, ConvergenceWarning) for one in said)
