"""Time against score: number of centers, kernel, epochs; on validation rows of three tables.

    KERNELMILL_DATA=folder python -m benchmarks choosing [--only centers kernel epochs]

Draws the pictures of docs/choosing.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.solvers import EigenPro4

from .tasks import table

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
CENTERS = [125, 250, 500, 1000, 2000, 4000, 8000]
TASKS = {"kin40k": KernelRegressor, "protein": KernelRegressor, "covertype": KernelClassifier}


def cases(only: tuple[str, ...] = ("centers", "kernel", "epochs")) -> Iterator[dict]:
    varied = {"centers": by_centers, "kernel": by_kernel, "epochs": by_epochs}
    for part in only:
        for data in TASKS:
            for row in varied[part](data):
                yield {"varied": part, "data": data, **row}


def split(name: str, rows: int = 30_000) -> tuple[np.ndarray, ...]:
    """Training and validation rows, both of the training part."""
    X, y, _, _ = table(name)
    order = np.random.default_rng(0).permutation(len(X))
    train, held = order[:rows], order[rows : rows + 5000]
    return X[train].astype(np.float32), y[train], X[held].astype(np.float32), y[held]


def fit(data: str, **settings) -> tuple[KernelClassifier | KernelRegressor, dict]:
    X, y, V, v = split(data)
    start = time.perf_counter()
    model = TASKS[data](random_state=0, **settings).fit(X, y)
    score = model.score(V, v)
    return model, {"score": score, "seconds": time.perf_counter() - start}


def by_centers(data: str) -> Iterator[dict]:
    for p in CENTERS:
        model, measured = fit(data, n_centers=p)
        yield {"centers": p, **measured, "solver": model.plan_.solver}


def by_kernel(data: str) -> Iterator[dict]:
    for kernel in ("auto", "laplacian", "gaussian", "matern"):
        model, measured = fit(data, n_centers=2000, kernel=kernel)
        yield {"kernel": kernel, **measured, "chosen": model.model_.kernel.name}


def by_epochs(data: str) -> Iterator[dict]:
    kernel = fit(data, n_centers=500)[0].model_.kernel
    for epochs in (1, 2, 3, 5, 10, 20):
        _, measured = fit(data, n_centers=4000, kernel=kernel, solver=EigenPro4(), epochs=epochs)
        yield {"epochs": epochs, **measured}


def draw(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "kernelmill",
        }
    )
    for varied, across in (("centers", "centers"), ("centers", "seconds"), ("epochs", "epochs")):
        figure, axes = plt.subplots(1, 3, figsize=(9.5, 2.8), layout="constrained")
        for ax, name in zip(axes, TASKS, strict=True):
            draw_one(
                ax,
                name,
                across,
                [row for row in rows if (row["varied"], row["data"]) == (varied, name)],
            )
        figure.savefig(PICTURES / f"{varied}-{across}.svg", metadata={"Date": None})
        plt.close(figure)


def draw_one(ax, name: str, across: str, rows: list[dict]) -> None:
    ticks = {"centers": [125, 500, 2000, 8000], "seconds": [3, 10, 30, 60]}
    labels = {"seconds": "seconds of fit, two cores"}
    ax.plot(
        [row[across] for row in rows], [row["score"] for row in rows], marker="o", color="#1f6feb"
    )
    if across in ticks:
        ax.set_xscale("log")
        ax.set_xticks(ticks[across])
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.minorticks_off()
    if across == "seconds":
        for row in rows[::2]:
            point = row["seconds"], row["score"]
            ax.annotate(
                f"{row['centers']:,}", point, (5, -11), textcoords="offset points", fontsize=8
            )
    ax.set_title(name, loc="left")
    ax.set_xlabel(labels.get(across, across))
    ax.set_ylabel("accuracy" if TASKS[name] is KernelClassifier else "R²")
    ax.grid(axis="y", alpha=0.3)
