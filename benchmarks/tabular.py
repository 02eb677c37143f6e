"""KernelRegressor() with no argument beside tuned baselines, on four regression tables.

    KERNELMILL_DATA=folder python -m benchmarks tabular [--data kin40k] [--only KernelRegressor]

Baselines are chosen on 10 % validation rows, then fitted again on all training rows; test rows are
read once, at the end. Features are standardised for the baselines; KernelRegressor gets the table
as it is. RMSE is in units of y's training deviation. `--only` takes beginnings of methods' names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigh, solve
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

from kernelmill import KernelRegressor

from .tasks import table

GAMMAS = np.logspace(-2, 1, 7)  # in units of 1/d, for standardised features
ALPHAS = np.logspace(-6, 0, 7)


def rmse(y, f) -> float:
    return float(np.sqrt(np.mean((y - f) ** 2)))


def nystroem_ridge(X, y, X_test, rows, components=5000) -> np.ndarray:
    """Nystroem + Ridge over a 7 × 7 grid.

    The grid uses Nystroem's features by an eigensystem, which is quicker than its SVD.
    """
    train, held = rows
    best = (np.inf, None, None)
    some = train[: min(components, len(train))]
    for gamma in GAMMAS / X.shape[1]:
        values, vectors = eigh(rbf_kernel(X[some], gamma=gamma), driver="evd")
        normal = vectors / np.sqrt(np.maximum(values, 1e-12))
        Phi, Phi_held = (
            rbf_kernel(X[part], X[some], gamma=gamma) @ normal for part in (train, held)
        )
        mean = Phi.mean(0)
        gram, right = Phi.T @ Phi - len(train) * np.outer(mean, mean), (Phi - mean).T @ y[train]
        for alpha in ALPHAS:
            try:
                weights = solve(gram + alpha * np.eye(len(gram)), right, assume_a="pos")
            except np.linalg.LinAlgError:
                continue
            best = min(
                best, (rmse(y[held], (Phi_held - mean) @ weights + y[train].mean()), gamma, alpha)
            )
    features = Nystroem(gamma=best[1], n_components=min(components, len(X)), random_state=0).fit(X)
    model = Ridge(alpha=best[2]).fit(features.transform(X), y)
    return model.predict(features.transform(X_test))


def kernel_ridge(X, y, X_test, rows, size=5000):
    train, held = rows
    best = (np.inf, None, None)
    some = train[: min(size, len(train))]
    for gamma in GAMMAS / X.shape[1]:
        for alpha in ALPHAS[::2]:
            model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(
                X[some[:2000]], y[some[:2000]] - y[some].mean()
            )
            best = min(best, (rmse(y[held], model.predict(X[held]) + y[some].mean()), gamma, alpha))
    some = np.random.default_rng(0).permutation(len(X))[:size]
    model = KernelRidge(kernel="rbf", gamma=best[1], alpha=best[2]).fit(
        X[some], y[some] - y[some].mean()
    )
    return model.predict(X_test) + y[some].mean()


def cases(
    data: tuple[str, ...] = ("kin40k", "protein", "elevators", "keggdirected"),
    only: tuple[str, ...] = ("",),
) -> Iterator[dict]:
    for name in data:
        X, y, X_test, y_test = (part.astype(np.float64) for part in table(name))
        order = np.random.default_rng(0).permutation(len(X))
        rows = order[len(X) // 10 :], order[: len(X) // 10]
        scaler = StandardScaler().fit(X)
        scaled = scaler.transform(X), y, scaler.transform(X_test), rows
        model, boosting = (
            KernelRegressor(random_state=0),
            HistGradientBoostingRegressor(random_state=0),
        )
        methods = {
            "KernelRegressor()": (
                lambda model=model, X=X, y=y, X_test=X_test: model.fit(X, y).predict(X_test)
            ),
            "KernelRidge, 5,000 rows": lambda scaled=scaled: kernel_ridge(*scaled),
            "Nystroem 5,000 + Ridge, 7 × 7": lambda scaled=scaled: nystroem_ridge(*scaled),
            "HistGradientBoosting": (
                lambda model=boosting, X=X, y=y, X_test=X_test: model.fit(X, y).predict(X_test)
            ),
        }
        for method, run in methods.items():
            if not method.startswith(tuple(only)):
                continue
            start = time.perf_counter()
            predicted = run()
            row = {
                "data": name,
                "method": method,
                "rmse_over_deviation": rmse(y_test, predicted) / float(y.std()),
            }
            row["seconds"] = time.perf_counter() - start
            if method == "KernelRegressor()":
                plan = model.plan_
                row |= {
                    "solver": plan.solver,
                    "centers": plan.p,
                    "kernel": type(model.model_.kernel).__name__,
                }
            yield row
