"""What `make demo` shows: default models on what scikit-learn ships, then EigenPro 4 against the
direct solution on a larger generated set, with time and memory, and a picture of the learning
curve.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from kernelmill import KernelClassifier, KernelRegressor, kernels
from kernelmill.solvers import EigenPro4

OUTPUT = Path("demo-output")


def generated(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ten noisy classes from a random network on 12 of 40 features: large enough that centers
    matter.
    """
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, 40)).astype(np.float32)
    hidden = np.tanh(X[:, :12] @ np.random.default_rng(1).normal(size=(12, 60)) / 2)
    scores = hidden @ np.random.default_rng(2).normal(size=(60, 10))
    return X, (scores + g.normal(size=scores.shape)).argmax(1)


def on_small_data(console: Console) -> None:
    table = Table(
        "data",
        "rows × features",
        "score on test rows",
        "what was chosen",
        "seconds",
        title="No argument at all",
    )
    data = {
        "digits": (load_digits, KernelClassifier),
        "breast cancer": (load_breast_cancer, KernelClassifier),
        "diabetes": (load_diabetes, KernelRegressor),
    }
    for name, (load, Model) in data.items():
        A, B, a, b = train_test_split(*load(return_X_y=True), random_state=0)
        start = time.perf_counter()
        model = Model(random_state=0).fit(A, a)
        seconds = time.perf_counter() - start
        kind = "accuracy" if Model is KernelClassifier else "R²"
        chosen = (
            f"{model.model_.kernel.name} kernel, ridge {model.plan_.ridge:.1g},"
            f" {model.plan_.solver} solver"
        )
        table.add_row(
            name,
            f"{len(A)} × {A.shape[1]}",
            f"{model.score(B, b):.3f} {kind}",
            chosen,
            f"{seconds:.1f}",
        )
    console.print(table)


def on_larger_data(console: Console) -> None:
    X, y = generated(70_000)
    A, B, a, b = X[:60_000], X[60_000:], y[:60_000], y[60_000:]
    title = "60,000 generated rows, 40 features, 10 noisy classes, 3,000 centers"
    table = Table("solver", "epochs", "test accuracy", "seconds", "peak memory so far", title=title)
    curves = {}
    for label, solver, epochs in (
        ("EigenPro 4, the paper's recipe", EigenPro4.paper(), 6),
        ("EigenPro 4, kernelmill's defaults", EigenPro4(), 6),
        ("direct solution", "direct", 1),
    ):
        model = KernelClassifier(
            kernel=kernels.Laplacian(bandwidth=8.0),
            n_centers=3000,
            ridge=0.0,
            solver=solver,
            epochs=epochs,
            validation_fraction=0.05,
            random_state=0,
            verbose=1,
        )
        start = time.perf_counter()
        model.fit(A, a)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        table.add_row(
            label,
            str(epochs) if epochs > 1 else "–",
            f"{100 * model.score(B, b):.2f} %",
            f"{seconds:.1f}",
            f"{peak:.2f} GiB",
        )
        curves[label] = [
            (row["seconds"], 100 * row["validation_score"])
            for row in model.history_
            if row["kind"] == "epoch"
        ]
    console.print(table)
    draw(curves)
    console.print(f"The learning curve is in {OUTPUT / 'learning_curve.png'}.")


def draw(curves: dict[str, list[tuple[float, float]]]) -> None:
    OUTPUT.mkdir(exist_ok=True)
    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    for (label, points), color in zip(
        curves.items(), ("tab:gray", "tab:blue", "black"), strict=True
    ):
        seconds, accuracy = zip(*points, strict=True)
        if len(points) == 1:
            axes.axhline(accuracy[0], color=color, linestyle="--", linewidth=1)
            axes.annotate(
                f"{label} ({seconds[0]:.0f} s)",
                (0.01, accuracy[0]),
                xycoords=("axes fraction", "data"),
                xytext=(0, 4),
                textcoords="offset points",
                color=color,
            )
        else:
            axes.plot(seconds, accuracy, marker="o", color=color, label=label)
    axes.set(
        xlabel="seconds of training, one marker per epoch",
        ylabel="accuracy on held-out rows, %",
        xlim=(0, None),
    )
    axes.set_title("Six epochs of EigenPro 4 and the direct solution")
    axes.margins(y=0.12)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUTPUT / "learning_curve.png", dpi=150)


if __name__ == "__main__":
    console = Console(width=120)
    on_small_data(console)
    on_larger_data(console)
