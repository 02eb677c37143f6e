"""KernelRegressor() with no argument beside tuned baselines, on four regression tables: test RMSE and seconds.

    KERNELMILL_DATA=folder python benchmarks/bench_tabular.py [names …] [--only KernelRegressor]

Baselines are chosen on 10 % validation rows, then fitted again on all training rows; test rows are read once, at the end.
Features are standardised for the baselines; KernelRegressor gets the table as it is. RMSE is in units of y's training deviation.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from scipy.linalg import eigh, solve
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

from common import RESULTS, machine, show, table
from kernelmill import KernelRegressor

GAMMAS = np.logspace(-2, 1, 7)  # in units of 1/d, for standardised features
ALPHAS = np.logspace(-6, 0, 7)


METHODS = ["KernelRegressor()", "KernelRidge, 5,000 rows", "Nystroem 5,000 + Ridge, 7 × 7", "HistGradientBoosting"]


def rmse(y, f) -> float:
    return float(np.sqrt(np.mean((y - f) ** 2)))


def nystroem_ridge(X, y, X_test, rows, components=5000):
    """Nystroem + Ridge over a 7 × 7 grid. The grid uses Nystroem's features by an eigensystem, which is quicker than its SVD."""
    train, held = rows
    best = (np.inf, None, None)
    some = train[: min(components, len(train))]
    for gamma in GAMMAS / X.shape[1]:
        values, vectors = eigh(rbf_kernel(X[some], gamma=gamma), driver="evd")
        normal = vectors / np.sqrt(np.maximum(values, 1e-12))
        Phi, Phi_held = rbf_kernel(X[train], X[some], gamma=gamma) @ normal, rbf_kernel(X[held], X[some], gamma=gamma) @ normal
        mean = Phi.mean(0)
        gram, right = Phi.T @ Phi - len(train) * np.outer(mean, mean), (Phi - mean).T @ y[train]
        for alpha in ALPHAS:
            try:
                weights = solve(gram + alpha * np.eye(len(gram)), right, assume_a="pos")
            except np.linalg.LinAlgError:
                continue
            best = min(best, (rmse(y[held], (Phi_held - mean) @ weights + y[train].mean()), gamma, alpha))
    features = Nystroem(gamma=best[1], n_components=min(components, len(X)), random_state=0).fit(X)
    model = Ridge(alpha=best[2]).fit(features.transform(X), y)
    return model.predict(features.transform(X_test))


def kernel_ridge(X, y, X_test, rows, size=5000):
    train, held = rows
    best = (np.inf, None, None)
    some = train[: min(size, len(train))]
    for gamma in GAMMAS / X.shape[1]:
        for alpha in ALPHAS[::2]:
            model = KernelRidge(kernel="rbf", gamma=gamma, alpha=alpha).fit(X[some[:2000]], y[some[:2000]] - y[some].mean())
            best = min(best, (rmse(y[held], model.predict(X[held]) + y[some].mean()), gamma, alpha))
    some = np.random.default_rng(0).permutation(len(X))[:size]
    model = KernelRidge(kernel="rbf", gamma=best[1], alpha=best[2]).fit(X[some], y[some] - y[some].mean())
    return model.predict(X_test) + y[some].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["kin40k", "protein", "elevators", "keggdirected"])
    parser.add_argument("--only", nargs="+", default=[""], help="methods whose names begin so; rows of others are kept as they are")
    options = parser.parse_args()
    if not any(name.startswith(tuple(options.only)) for name in METHODS):
        parser.error(f"--only {options.only}: expected the beginning of one of {METHODS}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "tabular.json"
    results = json.loads(path.read_text())["rows"] if path.exists() else []
    for name in options.names:
        X, y, X_test, y_test = table(name)
        X, X_test, y, y_test = (a.astype(np.float64) for a in (X, X_test, y, y_test))
        unit = y.std()
        scaler = StandardScaler().fit(X)
        order = np.random.default_rng(0).permutation(len(X))
        rows = (order[len(X) // 10 :], order[: len(X) // 10])
        S, S_test = scaler.transform(X), scaler.transform(X_test)
        model = KernelRegressor(random_state=0)
        methods = {
            "KernelRegressor()": lambda: model.fit(X, y).predict(X_test),  # noqa: B023
            "KernelRidge, 5,000 rows": lambda: kernel_ridge(S, y, S_test, rows),  # noqa: B023
            "Nystroem 5,000 + Ridge, 7 × 7": lambda: nystroem_ridge(S, y, S_test, rows),  # noqa: B023
            "HistGradientBoosting": lambda: HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(X_test),  # noqa: B023
        }
        for method, run in methods.items():
            if not method.startswith(tuple(options.only)):
                continue
            start = time.perf_counter()
            prediction = run()
            seconds = time.perf_counter() - start
            row = {"data": name, "method": method, "rmse": float(rmse(y_test, prediction) / unit), "seconds": seconds}
            if method == "KernelRegressor()":
                row |= {"solver": model.plan_.solver, "centers": model.plan_.p, "kernel": type(model.model_.kernel).__name__}
            print(row, flush=True)
            results = [old for old in results if (old["data"], old["method"]) != (name, method)] + [row | {"machine": machine()}]
            path.write_text(json.dumps({"rows": results}, indent=1) + "\n")
    results.sort(key=lambda row: (row["data"], METHODS.index(row["method"])))
    path.write_text(json.dumps({"rows": results}, indent=1) + "\n")
    shown = [{**row, "threads": row["machine"]["threads"], "commit": row["machine"].get("commit")} for row in results]
    show([{key: row[key] for key in ("data", "method", "rmse", "seconds", "threads", "commit")} for row in shown])


if __name__ == "__main__":
    main()
