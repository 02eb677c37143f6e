"""What the scripts share: the size they run at, one measured fit, results as JSON, and the look of
the pictures.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Peak, machine
from kernelmill import KernelClassifier, kernels
from kernelmill.errors import InputError
from kernelmill.solvers import EigenPro3, EigenPro4, Falkon

from .data import Data

ROOT = Path(__file__).parent
RESULTS = ROOT / "results"
PICTURES = ROOT.parent / "docs" / "pictures"
SIZES = ("small", "gpu", "paper")
COMMIT = machine()["commit"]
LEAST_STEPS = 20  # timed before the rest is extrapolated

# The methods of the paper's tables, and this library's. Colors are the same in every picture.
METHODS: dict[str, dict[str, Any]] = {
    "EigenPro 4, as published": {
        "solver": lambda: EigenPro4.paper(),
        "ridge": 0.0,
        "color": "#d62728",
        "marker": "o",
    },
    "kernelmill": {
        "solver": lambda: "auto",
        "ridge": None,
        "epochs": None,
        "color": "#000000",
        "marker": "*",
    },
    "kernelmill, one epoch": {
        "solver": lambda: "auto",
        "ridge": None,
        "color": "#9467bd",
        "marker": "P",
    },
    "Falkon": {
        "solver": lambda: Falkon(),
        "ridge": None,
        "epochs": None,
        "color": "#2ca02c",
        "marker": "^",
    },
    "EigenPro 3, best projection": {
        "solver": lambda: EigenPro3(),
        "ridge": 0.0,
        "color": "#17becf",
        "marker": "D",
    },
    "EigenPro 3, as published": {
        "solver": lambda: EigenPro3(s=1000, q=100, projection="one_pass", recipe="paper"),
        "ridge": 0.0,
        "color": "#1f77b4",
        "marker": "s",
    },
}


def options(doc: str | None, **more: Any) -> argparse.Namespace:
    """--paper for the paper's own sizes, --gpu for one large GPU and half an hour, --small for two
    cores; else by the machine.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    for name in SIZES:
        size.add_argument(f"--{name}", dest="size", action="store_const", const=name)
    parser.add_argument(
        "--draw", action="store_true", help="only draw the picture again, from the stored results"
    )
    for name, settings in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    given = parser.parse_args()
    given.size = given.size or ("gpu" if torch.cuda.is_available() else "small")
    given.device = "cuda" if torch.cuda.is_available() else "cpu"
    return given


def script(
    doc: str | None,
    run: Callable[[argparse.Namespace], None],
    draw: Callable[[], None],
    **more: Any,
) -> None:
    """A script's whole life: run at the size that was asked for, then draw."""
    given = options(doc, **more)
    if not given.draw:
        run(given)
    draw()


def write(name: str, size: str, rows: list[dict], **extra: Any) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{size}.json"
    command = " ".join(
        [f"python -m reproduce.{name}", *(shlex.quote(word) for word in sys.argv[1:])]
    )
    path.write_text(
        json.dumps({**machine(), "command": command, "size": size, **extra, "rows": rows}, indent=1)
        + "\n"
    )
    print(f"written: {path.relative_to(ROOT.parent)}", flush=True)


def read(name: str, size: str) -> dict | None:
    """A stored result, or None."""
    path = RESULTS / f"{name}-{size}.json"
    return json.loads(path.read_text()) if path.exists() else None


def largest(name: str) -> dict | None:
    """The stored result of the largest size."""
    return next((found for size in reversed(SIZES) if (found := read(name, size))), None)


def accuracy(
    model: Callable[[torch.Tensor], torch.Tensor],
    X: torch.Tensor,
    y: torch.Tensor,
    rows: int = 20_000,
) -> float:
    """In percent."""
    with torch.no_grad():
        right = sum(
            (model(X[i : i + rows]).argmax(1) == y[i : i + rows]).sum().item()
            for i in range(0, len(X), rows)
        )
    return 100 * right / len(X)


def settle(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def extrapolated(marks: list[tuple[int, float]], rows: int) -> float:
    """Seconds for so many rows: the first mark's as they were, for something may have been made
    once, and the rate since then.
    """
    (first, at), (last, now) = marks[0], marks[-1]
    return at + (rows - first) * (now - at) / (last - first) if last > first else rows * now / last


def fit(
    data: Data,
    p: int,
    method: str,
    *,
    device: str,
    epochs: int | None = 1,
    longest: float = float("inf"),
    solver: Any = None,
    **settings: Any,
) -> dict:
    """A row: seconds of the whole fit, accuracy on test rows, peak memory beyond the data, steps.

    A fit that would take more than `longest` seconds is stopped after LEAST_STEPS steps, its
    seconds are extrapolated and marked, and it gets no accuracy; one that does not fit into memory
    says so.
    """
    how = METHODS[method]
    timed: dict[str, float] = {}
    marks: list[tuple[int, float]] = []  # rows done, seconds since the start

    def watch(event: Any) -> bool:
        if event.kind == "step_back":
            timed["back"] = timed.get("back", 0) + 1
        if event.kind == "start":
            timed["set-up"], timed["at"] = time.perf_counter() - start, time.perf_counter()
            return False
        if event.kind != "projection" or event.state is None or "seconds" in timed:
            return False
        now = time.perf_counter() - timed["at"]
        marks.append((event.rows, now))
        if event.rows >= LEAST_STEPS * event.state.plan.m:
            whole = timed["set-up"] + extrapolated(marks, event.rows_total)
            if whole > longest:
                timed["seconds"], timed["steps"] = whole, event.rows / event.state.plan.m
                return True
        return False

    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=data.bandwidth),
        n_centers=p,
        solver=solver or how["solver"](),
        epochs=how.get("epochs", epochs),
        ridge=how["ridge"],
        random_state=0,
        device=device,
        callbacks=watch,
        **{"validation_fraction": 0.0, **settings},
    )
    settle(device)
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    row: dict[str, Any] = {
        "data": data.name,
        "method": method,
        "n": len(data.X),
        "d": data.X.shape[1],
        "c": data.classes,
        "p": p,
    }
    start = time.perf_counter()
    try:
        with Peak() as peak:
            model.fit(data.X, data.y)
            if device == "cuda":
                torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    except (InputError, torch.OutOfMemoryError) as error:
        if isinstance(error, InputError) and "may be used" not in str(error):
            raise
        row |= {"out of memory": str(error).split(";")[0], "commit": COMMIT}
        print(row, flush=True)
        return row
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20 if device == "cuda" else peak.mib
    plan = model.plan_
    row |= {
        "seconds": timed.get("seconds", seconds),
        "set-up s": timed.get("set-up"),
        "memory MiB": memory,
        "m": plan.m,
        "T": plan.T,
        "s": plan.s,
        "q": plan.q,
        "epochs": model.n_iter_,
        "took": plan.solver,
        "projection": plan.projection,
        "step backs": timed.get("back", 0),
        "commit": COMMIT,
    }
    if "seconds" in timed:
        row["steps timed"] = round(timed["steps"])
    else:
        row["validation"] = accuracy(model.model_, data.X_valid, data.y_valid)
        row["accuracy"] = accuracy(model.model_, data.X_test, data.y_test)
    print(
        {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()},
        flush=True,
    )
    return row


def axes(count: int = 1, height: float = 4.2, width: float = 5.6):
    """A figure with `count` panels side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
        }
    )
    figure, panels = plt.subplots(1, count, figsize=(width * count, height), squeeze=False)
    return figure, list(panels[0])


def save(figure: Any, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"reproduction-{name}.png", dpi=110, bbox_inches="tight")
    print(f"drawn: docs/pictures/reproduction-{name}.png", flush=True)
