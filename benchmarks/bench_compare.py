"""All solvers on one dataset: accuracy against seconds and peak memory, as a table, JSON and a picture.

    KERNELMILL_DATA=folder python benchmarks/bench_compare.py [--data fashion] [--rows 20000] [--centers 2000] [--bandwidth 20]

`--data` is "fashion" or the name of an .npz file; columns of a table are standardised, and a regression is scored by R². Every solver runs
in a process of its own, with its defaults, on the same rows and the same kernel; curves are scores of 5,000 rows kept out of training, over
the seconds of the fit without the scoring. Methods whose centers are the rows get all rows, and their accuracy is that of more centers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from common import RESULTS, Peak, fashion_mnist, show, table, write
from kernelmill import KernelClassifier, KernelRegressor, kernels
from kernelmill.solvers import NYTRO, SGPR, ASkotch, Direct, EigenPro1, EigenPro2, EigenPro3, EigenPro4, Falkon, Pegasos

HELD = 5000
SOLVERS = {
    "auto": "auto", "direct": Direct(), "Falkon": Falkon(), "Falkon, logistic": Falkon("logistic"), "EigenPro 4": EigenPro4(),
    "EigenPro 4, O(p)": EigenPro4(projection="carried"), "EigenPro 4, paper": EigenPro4.paper(), "EigenPro 3": EigenPro3(),
    "NYTRO": NYTRO(), "SGPR": SGPR(), "ASkotch": ASkotch(), "EigenPro 2": EigenPro2(), "EigenPro 1": EigenPro1(), "Pegasos": Pegasos(),
}  # fmt: skip
EVERY_ROW = {"ASkotch", "EigenPro 2", "EigenPro 1", "Pegasos"}
EPOCHS = {"EigenPro 3": 1, "EigenPro 4, paper": 5, "Pegasos": 10, "ASkotch": 10}


def data(name: str, rows: int):
    """Training rows, rows kept out, and test rows; columns of a table standardised by the training rows."""
    if name == "fashion":
        X, y, X_test, y_test = (part.numpy() for part in fashion_mnist())
    else:
        X, y, X_test, y_test = table(name)
        mean, deviation = X.mean(0), X.std(0) + 1e-12
        X, X_test = ((part - mean) / deviation for part in (X, X_test))
    order = np.random.default_rng(0).permutation(len(X))
    train = order[HELD : HELD + rows]
    return (
        (X[train].astype(np.float32), y[train]),
        (X[order[:HELD]].astype(np.float32), y[order[:HELD]]),
        (X_test.astype(np.float32), y_test),
    )


def one(name: str, options) -> dict:
    """One fit, in a process of its own."""
    (X, y), (X_held, y_held), (X_test, y_test) = data(options.data, options.rows)
    regression = y.dtype.kind == "f"
    Estimator = KernelRegressor if regression else KernelClassifier
    curve, spent = [], 0.0
    model = Estimator(
        kernel=kernels.Laplacian(bandwidth=options.bandwidth), n_centers=None if name in EVERY_ROW else options.centers,
        solver=SOLVERS[name], epochs=EPOCHS.get(name), ridge=options.ridge if name != "EigenPro 4, paper" else 0.0, random_state=0,
    )  # fmt: skip

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
    kept = model.model_.alpha.clone()
    points = []
    for at, alpha in curve[:: max(1, len(curve) // 40)]:
        model.model_.alpha.copy_(alpha.to(kept))
        points.append((at, 100 * model.score(X_held, y_held)))
    model.model_.alpha.copy_(kept)
    points.append((seconds, 100 * model.score(X_held, y_held)))
    return {
        "solver": name, "p": model.plan_.p, "epochs": model.n_iter_, "held out": points[-1][1], "test": 100 * model.score(X_test, y_test),
        "fit s": seconds, "peak MiB beyond data": peak.mib, "ridge": model.ridge_, "took": model.plan_.solver, "curve": points,
    }  # fmt: skip


def draw(rows: list[dict], path: Path, title: str, score: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10.5, 5.5))
    colors = plt.get_cmap("tab20").colors
    for i, row in enumerate(row for row in rows if row["solver"] != "direct"):
        curve = np.array(row["curve"])
        dashed = "--" if row["solver"] in EVERY_ROW else "-"
        axes.plot(curve[:, 0], curve[:, 1], dashed, marker="o", markersize=3, color=colors[i % 20], label=row["solver"])
    direct = next((row for row in rows if row["solver"] == "direct"), None)
    if direct:
        axes.axhline(direct["held out"], color="black", linewidth=1, label=f"direct ({direct['fit s']:.0f} s)")
    best = max(row["held out"] for row in rows)
    axes.set(xscale="log", xlabel="seconds of the fit", ylabel=score, ylim=(max(0.0, best - 15), best + 1), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), title="dashed: every row\nis a center", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--bandwidth", type=float, default=20.0)
    parser.add_argument("--ridge", type=float, default=0.1)
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options)))
        return
    (_, y), _, _ = data(options.data, 10)
    regression = y.dtype.kind == "f"
    rows = []
    for name in options.solvers:
        if name in (("Pegasos", "Falkon, logistic") if regression else ("SGPR",)):
            continue
        call = [sys.executable, __file__, "--one", name]
        for key in ("data", "rows", "centers", "bandwidth", "ridge"):
            call += [f"--{key}", str(getattr(options, key))]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print({key: value for key, value in rows[-1].items() if key != "curve"}, flush=True)
    show([{key: value for key, value in row.items() if key != "curve"} for row in rows])
    stem = f"compare_{options.data}"
    write(stem, rows)
    score = "R² of 5,000 rows kept out, %" if regression else "accuracy on 5,000 rows kept out, %"
    sizes = f"{options.rows:,} rows, {options.centers:,} centers, Laplacian {options.bandwidth:g}"
    title = f"{options.data}: {sizes}, {torch.get_num_threads()} threads"
    draw(rows, RESULTS.parent.parent / "docs" / "pictures" / f"{stem.replace('_', '-')}.png", title, score)


if __name__ == "__main__":
    main()
