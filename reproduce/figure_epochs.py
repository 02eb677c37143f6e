"""The multi-epoch figure: accuracy per epoch of EigenPro 4 and EigenPro 3, for several numbers of
centers.

    python -m reproduce.figure_epochs [--small | --gpu | --paper]

Accuracy is that of validation rows after each epoch; a run ends after the epoch in which it passes
its "longest" seconds. Both methods are as published, with the same subsample; beside them this
library's EigenPro 4, whose step falls to zero over the epochs it was given.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from kernelmill import KernelClassifier, kernels
from kernelmill.solvers import EigenPro3, EigenPro4

from .data import Data, load
from .record import METHODS, accuracy, axes, largest, save, script, settle, write

NAME = "figure_epochs"
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "data": {"features": 10_000, "text": 20_000},
        "p": [1024, 4096],
        "epochs": 10,
        "s": 1000,
        "q": 100,
        "longest": 300,
    },
    "gpu": {
        "data": {"features": 250_000},
        "p": [8192, 65_536],
        "epochs": 8,
        "s": 10_000,
        "q": 1000,
        "longest": 100,
    },
    "paper": {
        "data": {"imagenet": 1_280_000, "webvision": 5_200_000, "librispeech": 10_000_000},
        "p": [100_000, 500_000, 1_200_000],
        "epochs": 20,
        "s": 10_000,
        "q": 1000,
        "longest": 6 * 3600,
        "bandwidth": {"imagenet": 16.0, "webvision": 20.0, "librispeech": 20.0},
    },
}
RUNS = {
    "EigenPro 4, as published": METHODS["EigenPro 4, as published"]["color"],
    "EigenPro 3, as published": METHODS["EigenPro 3, as published"]["color"],
    "EigenPro 4, this library": METHODS["kernelmill"]["color"],
}
REACHED = 0.5  # points below the best epoch: from there on a run counts as converged


def solver_of(name: str, s: int, q: int) -> Any:
    if name == "EigenPro 3, as published":
        return EigenPro3(s=s, q=q, projection="one_pass", recipe="paper")
    return (
        EigenPro4.paper(s=s, q=q)
        if name == "EigenPro 4, as published"
        else EigenPro4(s=s, q=q, projection="carried")
    )


def curve(data: Data, p: int, name: str, size: dict, device: str) -> list[dict]:
    rows: list[dict] = []
    back = 0

    def listen(event: Any) -> bool:
        nonlocal back
        back += event.kind == "step_back"
        if event.kind == "epoch" and event.alpha is not None:
            weights.append((event.seconds, event.alpha.to("cpu", copy=True)))
            return bool(event.seconds > size["longest"])
        return False

    weights: list[tuple[float, Any]] = []
    settle(device)
    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=data.bandwidth),
        n_centers=p,
        solver=solver_of(name, size["s"], size["q"]),
        epochs=size["epochs"],
        ridge=0.0,
        validation_fraction=0.0,
        random_state=0,
        device=device,
        callbacks=listen,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a run that gives up says so in its row
        model.fit(data.X, data.y)
    for epoch, (seconds, alpha) in enumerate(weights, 1):
        model.model_.alpha.copy_(alpha.to(model.model_.alpha))
        score = accuracy(model.model_, data.X_valid, data.y_valid)
        rows.append(
            {
                "data": data.name,
                "run": name,
                "n": len(data.X),
                "p": p,
                "epoch": epoch,
                "accuracy": score,
                "seconds": seconds,
            }
        )
    for row in rows:
        row |= {"m": model.plan_.m, "T": model.plan_.T, "step backs": back}
    best = max(row["accuracy"] for row in rows)
    first = next(row["epoch"] for row in rows if row["accuracy"] >= best - REACHED)
    print(
        f"{data.name}, p = {p}, {name}: {rows[0]['accuracy']:.2f} → {best:.2f} (reached in epoch"
        f" {first}), {rows[-1]['seconds']:.1f} s",
        flush=True,
    )
    return rows


def run(given: Any) -> None:
    size, rows = SIZES[given.size], []
    for name, n in size["data"].items():
        data = load(name, n, given.device, needed=False)
        if data is None:
            continue
        data = replace(data, bandwidth=size.get("bandwidth", {}).get(name, data.bandwidth))
        for p in size["p"]:
            for each in RUNS:
                rows += curve(data, p, each, size, given.device)
                write(NAME, given.size, rows)


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return
    names = list(dict.fromkeys(row["data"] for row in result["rows"]))
    figure, panels = axes(len(names), height=4.6, width=6.2)
    for panel, name in zip(panels, names, strict=True):
        sizes = sorted({row["p"] for row in result["rows"] if row["data"] == name})
        scores = []
        for each, color in RUNS.items():
            for p, style in zip(sizes, (":", "-", "--"), strict=False):
                of = [
                    row
                    for row in result["rows"]
                    if row["data"] == name and row["run"] == each and row["p"] == p
                ]
                panel.plot(
                    [row["epoch"] for row in of],
                    [row["accuracy"] for row in of],
                    style,
                    color=color,
                    marker="o",
                    markersize=3,
                    label=f"{each}, p = {p:,}",
                )
                scores += [row["accuracy"] for row in of]
        low = sorted(scores)[len(scores) // 10]
        panel.set(
            xlabel="epoch",
            ylim=(low - 2, max(scores) + 0.5),
            title=f"{name}, n = {max(row['n'] for row in result['rows'] if row['data'] == name):,}",
        )
    panels[0].set_ylabel("accuracy on validation rows, %")
    panels[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    save(figure, "epochs")


if __name__ == "__main__":
    script(__doc__, run, draw)
