"""Time against accuracy: the number of centers, the kernel, and few or many epochs; on validation rows of kin40k, protein and covertype.
Writes results/choosing.json and the pictures of docs/choosing.md.

python benchmarks/bench_choosing.py [centers] [kernel] [epochs]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from common import RESULTS, show, table, write
from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.solvers import EigenPro4

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
CENTERS = [125, 250, 500, 1000, 2000, 4000, 8000]
TASKS = {"kin40k": KernelRegressor, "protein": KernelRegressor, "covertype": KernelClassifier}


def split(name: str, rows: int = 30_000) -> tuple[np.ndarray, ...]:
    """Training and validation rows, both of the training part."""
    X, y, _, _ = table(name)
    order = np.random.default_rng(0).permutation(len(X))
    train, held = order[:rows], order[rows : rows + 5000]
    return X[train].astype(np.float32), y[train], X[held].astype(np.float32), y[held]


def fitted(name: str, **settings) -> tuple[float, float, Any]:
    X, y, V, v = split(name)
    start = time.perf_counter()
    model = TASKS[name](random_state=0, **settings).fit(X, y)
    return model.score(V, v), time.perf_counter() - start, model


def main() -> None:
    names, stored = sys.argv[1:] or list(PARTS), RESULTS / "choosing.json"
    before = json.loads(stored.read_text())["rows"] if stored.exists() else []
    rows = [row for row in before if row["what"] not in names]  # a part can be measured again
    for name in names:
        found = [{"what": name, **row} for row in PARTS[name]()]
        show(found)
        rows += found
    write("choosing", rows)
    draw(rows)


def by_centers() -> Iterator[dict]:
    for name in TASKS:
        for p in CENTERS:
            score, seconds, model = fitted(name, n_centers=p)
            yield {"data": name, "centers": p, "score": score, "seconds": seconds, "solver": model.plan_.solver}


def by_kernel() -> Iterator[dict]:
    for name in TASKS:
        for kernel in ("auto", "laplacian", "gaussian", "matern"):
            score, seconds, model = fitted(name, n_centers=2000, kernel=kernel)
            yield {"data": name, "kernel": kernel, "score": score, "seconds": seconds, "chosen": model.model_.kernel.name}


def by_epochs() -> Iterator[dict]:
    for name in TASKS:
        kernel = fitted(name, n_centers=500)[2].model_.kernel
        for epochs in (1, 2, 3, 5, 10, 20):
            score, seconds, _ = fitted(name, n_centers=4000, kernel=kernel, solver=EigenPro4(), epochs=epochs)
            yield {"data": name, "epochs": epochs, "score": score, "seconds": seconds}


PARTS = {"centers": by_centers, "kernel": by_kernel, "epochs": by_epochs}


def draw(rows: list[dict]) -> None:
    PICTURES.mkdir(exist_ok=True)
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "kernelmill"})
    pictures = (("centers", "centers", True), ("centers", "seconds", True), ("epochs", "epochs", False))
    for what, across, log in pictures:
        figure, axes = plt.subplots(1, 3, figsize=(9.5, 2.8), layout="constrained")
        for ax, name in zip(axes, TASKS, strict=True):
            found = [row for row in rows if row["what"] == what and row["data"] == name]
            ax.plot([row[across] for row in found], [row["score"] for row in found], marker="o", color="#1f6feb")
            if log:
                ax.set_xscale("log")
                ax.set_xticks([125, 500, 2000, 8000] if across == "centers" else [3, 10, 30, 60])
                ax.xaxis.set_major_formatter("{x:,.0f}")
                ax.minorticks_off()
            if across == "seconds":
                for row in found[::2]:
                    ax.annotate(f"{row['centers']:,}", (row["seconds"], row["score"]), (5, -11), textcoords="offset points", fontsize=8)
            ax.set_title(name, loc="left")
            ax.set_xlabel("seconds of fit, two cores" if across == "seconds" else across)
            ax.set_ylabel("accuracy" if TASKS[name] is KernelClassifier else "R²")
            ax.grid(axis="y", alpha=0.3)
        figure.savefig(PICTURES / f"{what}-{across}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
