"""Covertype: KernelClassifier() without an argument beside gradient boosting and 1-nearest-neighbour.

    KERNELMILL_DATA=folder python benchmarks/bench_covertype.py [--only kernelmill boosting "boosting, 1000" "1-nn"]

Columns are used as they are. 1-nearest-neighbour is exact, by distances in float32 (raw columns, and standardised ones).
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from common import RESULTS, machine, show, table
from kernelmill import KernelClassifier

METHODS = ["kernelmill", "boosting", "boosting, 1000", "1-nn", "1-nn, standardised"]


def nearest(X, y, X_test, device: str) -> np.ndarray:
    A, B = (torch.from_numpy(part.astype(np.float32)).to(device) for part in (X, X_test))
    A, B = A - A.mean(0), B - A.mean(0)
    squares = (A * A).sum(1)
    picks = [(squares - 2 * B[i : i + 1000] @ A.T).argmin(1) for i in range(0, len(B), 1000)]
    return y[torch.cat(picks).cpu().numpy()]


def run(method: str, X, y, X_test, y_test) -> dict:
    device, plan = "cuda" if torch.cuda.is_available() else "cpu", None
    start = time.perf_counter()
    if method == "kernelmill":
        model = KernelClassifier(random_state=0, verbose=1).fit(X, y)
        plan = model.plan_
    elif method.startswith("boosting"):
        settings = {"max_iter": 1000, "early_stopping": False} if "1000" in method else {}
        model = HistGradientBoostingClassifier(random_state=0, **settings).fit(X, y)
    fitted = time.perf_counter()
    if method.startswith("1-nn"):
        scale = X.std(0) + 1e-9 if "standardised" in method else 1.0
        predicted = nearest(X / scale, y, X_test / scale, device)
    else:
        predicted = model.predict(X_test)
    row = {"method": method, "accuracy": 100 * float((predicted == y_test).mean()), "fit s": fitted - start,
           "predict s": time.perf_counter() - fitted, "solver": plan and plan.solver, "centers": plan and plan.p,
           "predicted fit s": plan and plan.seconds, "epochs": plan and plan.epochs,
           "device": "cpu" if method.startswith("boosting") else device}  # fmt: skip
    if method == "kernelmill":
        row["kernel"] = type(model.model_.kernel).__name__
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=METHODS)
    parser.add_argument("--validation", action="store_true", help="score on rows taken from the training part")
    parser.add_argument("--name", default="covertype")
    options = parser.parse_args()
    X, y, X_test, y_test = table("covertype")
    if options.validation:
        order = np.random.default_rng(0).permutation(len(X))
        X, y, X_test, y_test = X[order[20_000:]], y[order[20_000:]], X[order[:20_000]], y[order[:20_000]]
    path = RESULTS / f"{options.name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for method in options.only:
        row = run(method, X, y, X_test, y_test) | {"machine": machine()}
        print({key: value for key, value in row.items() if key != "machine"}, flush=True)
        same = (row["method"], row["machine"]["gpu"])
        rows = [old for old in rows if (old["method"], old["machine"]["gpu"]) != same] + [row]
        path.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    keys = ("method", "accuracy", "fit s", "predict s", "solver", "centers", "device")
    show([{key: row[key] for key in keys} for row in rows])


if __name__ == "__main__":
    main()
