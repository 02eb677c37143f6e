"""Covertype: KernelClassifier() without an argument, gradient boosting, 1-nearest-neighbour.

    KERNELMILL_DATA=folder python -m benchmarks covertype [--only kernelmill boosting "1-nn"]

Columns are used as they are. 1-nearest-neighbour is exact, by distances in float32 (raw columns,
and standardised ones). `--validation` scores rows of the training part; give it `--results`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from kernelmill import KernelClassifier

from .tasks import table

METHODS = ("kernelmill", "boosting", "boosting, 1000", "1-nn", "1-nn, standardised")


def cases(only: tuple[str, ...] = METHODS, validation: bool = False) -> Iterator[dict]:
    X, y, X_test, y_test = table("covertype")
    if validation:
        order = np.random.default_rng(0).permutation(len(X))
        train, held = order[20_000:], order[:20_000]
        X, y, X_test, y_test = X[train], y[train], X[held], y[held]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for method in only:
        if method == "kernelmill":
            row = kernelmill(X, y, X_test, y_test, device)
        elif method.startswith("boosting"):
            row = boosting(
                X,
                y,
                X_test,
                y_test,
                {"max_iter": 1000, "early_stopping": False} if "1000" in method else {},
            )
        else:
            row = nearest(
                X, y, X_test, y_test, device, X.std(0) + 1e-9 if "standardised" in method else 1.0
            )
        yield {"method": method, **row}


def kernelmill(X, y, X_test, y_test, device: str) -> dict:
    start = time.perf_counter()
    model = KernelClassifier(random_state=0, verbose=1).fit(X, y)
    fitted = time.perf_counter()
    plan = model.plan_
    return {
        **scored(model.predict(X_test), y_test, start, fitted),
        "device": device,
        "solver": plan.solver,
        "centers": plan.p,
        "epochs": plan.epochs,
        "predicted_seconds": plan.seconds,
        "kernel": type(model.model_.kernel).__name__,
    }


def boosting(X, y, X_test, y_test, settings: dict) -> dict:
    start = time.perf_counter()
    model = HistGradientBoostingClassifier(random_state=0, **settings).fit(X, y)
    fitted = time.perf_counter()
    return {**scored(model.predict(X_test), y_test, start, fitted), "device": "cpu"}


def nearest(X, y, X_test, y_test, device: str, scale) -> dict:
    start = time.perf_counter()
    A, B = (torch.from_numpy((part / scale).astype(np.float32)).to(device) for part in (X, X_test))
    A, B = A - A.mean(0), B - A.mean(0)
    squares = (A * A).sum(1)
    picks = [(squares - 2 * B[i : i + 1000] @ A.T).argmin(1) for i in range(0, len(B), 1000)]
    return {**scored(y[torch.cat(picks).cpu().numpy()], y_test, start, start), "device": device}


def scored(predicted: np.ndarray, y_test: np.ndarray, start: float, fitted: float) -> dict:
    return {
        "accuracy_percent": 100 * float((predicted == y_test).mean()),
        "fit_seconds": fitted - start,
        "predict_seconds": time.perf_counter() - fitted,
    }
