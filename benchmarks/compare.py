"""All solvers on one dataset: accuracy against seconds and peak memory, as a table and a picture.

    KERNELMILL_DATA=folder python -m benchmarks compare [--data fashion] [--rows 20000]

`--data` is "fashion" or the name of an .npz file; columns of a table are standardised, and a
regression is scored by R². Every solver runs in a process of its own, with its defaults, on
the same rows and the same kernel; curves are scores of 5,000 rows held out of training, over the
seconds of the fit without the scoring. Methods whose centers are the rows get all rows, and their
accuracy is that of more centers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernelmill import KernelClassifier, KernelRegressor, kernels
from kernelmill.solvers import (
    NYTRO,
    SGPR,
    ASkotch,
    Direct,
    EigenPro1,
    EigenPro2,
    EigenPro3,
    EigenPro4,
    Falkon,
    Pegasos,
)

from .measure import Peak
from .tasks import fashion_mnist, table

HELD = 5000
SOLVERS = {
    "auto": "auto",
    "direct": Direct(),
    "Falkon": Falkon(),
    "Falkon, logistic": Falkon("logistic"),
    "EigenPro 4": EigenPro4(),
    "EigenPro 4, O(p)": EigenPro4(projection="carried"),
    "EigenPro 4, paper": EigenPro4.paper(),
    "EigenPro 3": EigenPro3(),
    "NYTRO": NYTRO(),
    "SGPR": SGPR(),
    "ASkotch": ASkotch(),
    "EigenPro 2": EigenPro2(),
    "EigenPro 1": EigenPro1(),
    "Pegasos": Pegasos(),
}
EVERY_ROW = {"ASkotch", "EigenPro 2", "EigenPro 1", "Pegasos"}
EPOCHS = {"EigenPro 3": 1, "EigenPro 4, paper": 5, "Pegasos": 10, "ASkotch": 10}
PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
Rows = tuple[np.ndarray, np.ndarray]


def load(name: str, rows: int) -> tuple[Rows, Rows, Rows]:
    """Training rows, rows held out, and test rows; columns of a table are standardised."""
    if name == "fashion":
        X, y, X_test, y_test = (part.numpy() for part in fashion_mnist())
    else:
        X, y, X_test, y_test = table(name)
        mean, deviation = X.mean(0), X.std(0) + 1e-12
        X, X_test = ((part - mean) / deviation for part in (X, X_test))
    order = np.random.default_rng(0).permutation(len(X))
    train, held = order[HELD : HELD + rows], order[:HELD]
    return (
        (X[train].astype(np.float32), y[train]),
        (X[held].astype(np.float32), y[held]),
        (X_test.astype(np.float32), y_test),
    )


def cases(
    data: str = "fashion",
    rows: int = 20_000,
    centers: int = 2000,
    bandwidth: float = 20.0,
    ridge: float = 0.1,
    solvers: tuple[str, ...] = tuple(SOLVERS),
) -> Iterator[dict]:
    regression = load(data, 10)[0][1].dtype.kind == "f"
    left_out = ("Pegasos", "Falkon, logistic") if regression else ("SGPR",)
    for solver in (name for name in solvers if name not in left_out):
        settings = dict(
            data=data, solver=solver, n=rows, centers=centers, bandwidth=bandwidth, ridge=ridge
        )
        command = [sys.executable, "-m", "benchmarks.compare", json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{solver}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        else:
            yield json.loads(done.stdout.splitlines()[-1])


def fit(data: str, solver: str, n: int, centers: int, bandwidth: float, ridge: float) -> dict:
    """One row: a fit in a process of its own."""
    (X, y), held, test = load(data, n)
    curve, spent = [], 0.0
    model = (KernelRegressor if y.dtype.kind == "f" else KernelClassifier)(
        kernel=kernels.Laplacian(bandwidth=bandwidth),
        n_centers=None if solver in EVERY_ROW else centers,
        solver=SOLVERS[solver],
        epochs=EPOCHS.get(solver),
        ridge=ridge if solver != "EigenPro 4, paper" else 0.0,
        random_state=0,
    )

    def listen(event) -> None:
        nonlocal spent
        if event.kind == "epoch" and event.alpha is not None:
            begun = time.perf_counter()
            curve.append((begun - start - spent, event.alpha.clone()))
            spent += time.perf_counter() - begun

    model.set_params(callbacks=listen)
    start = time.perf_counter()
    with Peak() as peak:
        model.fit(X, y)
    seconds = time.perf_counter() - start - spent
    final = model.model_.alpha.clone()
    times, scores = [], []
    for at, alpha in [*curve[:: max(1, len(curve) // 40)], (seconds, final)]:
        model.model_.alpha.copy_(alpha.to(final))
        times.append(at)
        scores.append(100 * model.score(*held))
    return {
        "data": data,
        "solver": solver,
        "n": n,
        "p": model.plan_.p,
        "bandwidth": bandwidth,
        "ridge": model.ridge_,
        "epochs": model.n_iter_,
        "held_out_percent": scores[-1],
        "test_percent": 100 * model.score(*test),
        "seconds": seconds,
        "peak_mib": peak.mib,
        "chosen": model.plan_.solver,
        "curve_seconds": times,
        "curve_percent": scores,
    }


def draw(rows: list[dict]) -> None:
    for data in dict.fromkeys(row["data"] for row in rows):
        draw_one(data, [row for row in rows if row["data"] == data])


def draw_one(data: str, rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10.5, 5.5))
    colors = plt.get_cmap("tab20").colors
    curves = [row for row in rows if row["solver"] != "direct"]
    for color, row in zip(colors, curves, strict=False):
        style = "--" if row["solver"] in EVERY_ROW else "-"
        axes.plot(
            row["curve_seconds"],
            row["curve_percent"],
            style,
            marker="o",
            markersize=3,
            color=color,
            label=row["solver"],
        )
    for row in rows:
        if row["solver"] == "direct":
            label = f"direct ({row['seconds']:.0f} s)"
            axes.axhline(row["held_out_percent"], color="black", linewidth=1, label=label)
    best = max(row["held_out_percent"] for row in rows)
    first = rows[0]
    title = f"{data}: {first['n']:,} rows, {first['p']:,} centers, Laplacian {first['bandwidth']:g}"
    axes.set(
        xscale="log",
        xlabel="seconds of the fit",
        ylabel="score on 5,000 rows held out, %",
        title=title,
    )
    axes.set_ylim(max(0.0, best - 15), best + 1)
    axes.grid(alpha=0.3)
    axes.legend(
        fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        title="dashed: every row\nis a center",
        title_fontsize=8,
    )
    figure.tight_layout()
    figure.savefig(PICTURES / f"compare-{data}.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    print(json.dumps(fit(**json.loads(sys.argv[1]))))
