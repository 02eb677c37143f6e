"""Table 1 and the appendix' cost tables: kernel values and products counted per sample against p,
beside the formulas; measured exponents of time and memory; and the period T that is quickest,
beside T*.

    python -m reproduce.table1_complexity [--small | --gpu | --paper]

Counts are exact and the same on every machine: a kernel that counts its values, and torch's own
counter of products, both on the CPU. Seconds and memory are those of the fits of
`table2_comparison` and of a sweep over T.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import slope
from kernelmill import KernelRegressor, kernels
from kernelmill.solvers import EigenPro3, EigenPro4, Falkon

from .data import load
from .record import METHODS, axes, fit, largest, save, script, write

NAME = "table1_complexity"
COUNTED = {"rows": 8192, "features": 32, "p": [512, 1024, 2048, 4096], "s": 200, "q": 20, "m": 128}
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "data": "fashion",
        "n": 30_000,
        "p": 4096,
        "m": 256,
        "T": [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96],
    },
    "gpu": {
        "data": "fashion",
        "n": 1_100_000,
        "p": 131_072,
        "m": None,
        "T": [16, 32, 64, 96, 128, 192, 256, 384, 512, 1024],
    },
    "paper": {
        "data": "cifar5m",
        "n": 5_000_000,
        "p": 256_000,
        "m": None,
        "T": [16, 32, 64, 96, 128, 192, 256, 384, 512, 1024],
    },
}


class Counting(kernels.Laplacian):
    """The Laplacian kernel, with a count of its values."""

    values = 0

    def evaluate(self, A, B, out=None):
        Counting.values += len(A) * len(B)
        return super().evaluate(A, B, out=out)


def formulas(method: str, n: int, p: int, m: int, s: int, q: int, T: int) -> dict[str, float]:
    """Per sample, one epoch: kernel values and multiply-adds beyond them, from the appendix' table
    line by line; its pass over the centers evaluates p² values and multiplies by them once more
    than it evaluates. Falkon's are of one iteration.
    """
    if method == "Falkon":
        return {"values": p, "products": 2 * p}
    passes = 1 / (T * m)  # of the projection, per sample
    tmp = m * (T - 1) / 2
    return {
        "values": p + s + tmp + passes * p * p,
        "products": (2 * m * p + 2 * m * s + 2 * s * q + p * q) / m + tmp + passes * p * p,
    }


def counted(method: str, p: int) -> dict:
    """One epoch, or for Falkon an iteration beyond the first, of a small regression with one
    output.
    """
    n, d, s, q, m = (COUNTED[key] for key in ("rows", "features", "s", "q", "m"))
    g = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=g)  # type: ignore[call-overload]
    y = torch.tanh(X[:, 0]) + 0.1 * torch.randn(n, generator=g)
    T = max(1, round(math.sqrt(2) * p / m))

    def run(solver: Any, **settings: Any) -> tuple[int, int]:
        at: dict[str, tuple[int, int]] = {}

        def listen(event: Any) -> None:
            at.setdefault(event.kind, (Counting.values, flops.get_total_flops()))
            at["last"] = (Counting.values, flops.get_total_flops())

        model = KernelRegressor(
            kernel=Counting(bandwidth=5.0),
            n_centers=p,
            solver=solver,
            random_state=0,
            device="cpu",
            precision="float32",
            validation_fraction=0.0,
            callbacks=listen,
            **settings,
        )
        with FlopCounterMode(display=False) as flops, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Falkon says that two iterations are few
            model.fit(X.numpy(), y.numpy())
        (a, b), (a0, b0) = at["last"], at["start"]
        return a - a0, b - b0

    if method == "Falkon":
        two, three = (
            run(Falkon(iterations=k, tolerance=0.0, keep=False), ridge=1e-3) for k in (2, 3)
        )
        values, flops_done = three[0] - two[0], three[1] - two[1]
    elif method == "EigenPro 3":
        T = 1
        values, flops_done = run(
            EigenPro3(s=s, q=q, m=m, projection="one_pass", recipe="paper"), ridge=0.0, epochs=1
        )
    else:
        values, flops_done = run(replace(EigenPro4.paper(s=s, q=q), m=m, T=T), ridge=0.0, epochs=1)
    products = (flops_done - 2 * d * values) / 2  # type: ignore[operator]
    expected = formulas(method, n, p, m, s, q, T)  # type: ignore[arg-type]
    return {
        "part": "counts",
        "method": method,
        "p": p,
        "T": T,
        "values per sample": values / n,
        "formula, values": expected["values"],  # type: ignore[operator]
        "products per sample": products / n,
        "formula, products": expected["products"],  # type: ignore[operator]
    }


def exponents(result: dict | None) -> list[dict]:
    """Of seconds and memory against p in the fits of table 2: straight lines through the
    logarithms, of all p and of the two largest.
    """
    rows = []
    for name in dict.fromkeys(row["data"] for row in result["rows"]) if result else []:
        for method in METHODS:
            of = [
                row
                for row in result["rows"]
                if row["data"] == name and row["method"] == method and "seconds" in row
            ]  # type: ignore[index]
            of.sort(key=lambda row: row["p"])
            if len(of) < 2:
                continue
            p, seconds, memory = (
                [row[key] for row in of] for key in ("p", "seconds", "memory MiB")
            )
            last = math.log2(p[-1] / p[-2])
            rows.append(
                {
                    "part": "exponents",
                    "data": name,
                    "method": method,
                    "points": len(of),
                    "seconds": slope(p, seconds),
                    "seconds, last doubling": math.log2(seconds[-1] / seconds[-2]) / last,
                    "memory": slope(p, np.maximum(memory, 1.0)),
                    "memory, last doubling": (
                        math.log2(max(memory[-1], 1.0) / max(memory[-2], 1.0)) / last
                    ),
                }
            )
    return rows


def periods(given: Any) -> list[dict]:
    """Seconds of an epoch of EigenPro 4 as published for each T, the middle of three by turns on a
    CPU.
    """
    size = SIZES[given.size]
    data = load(size["data"], size["n"], given.device)
    rows: dict[int, list[dict]] = {T: [] for T in size["T"]}
    fit(data, size["p"], "EigenPro 4, as published", device=given.device)
    for _ in range(3 if given.device == "cpu" else 1):
        for T in size["T"]:
            row = fit(
                data,
                size["p"],
                "EigenPro 4, as published",
                device=given.device,
                solver=replace(EigenPro4.paper(), m=size["m"], T=T),
            )
            rows[T].append(row)
    middle = []
    for T, of in rows.items():
        row = sorted(of, key=lambda row: row["seconds"] - row["set-up s"])[len(of) // 2]
        T_star = row["p"] / row["m"] * math.sqrt(2)
        middle.append(
            {
                "part": "period",
                "T": T,
                "seconds": row["seconds"] - row["set-up s"],
                "accuracy": row.get("accuracy"),
                "p": row["p"],
                "m": row["m"],
                "n": row["n"],
                "T* printed": T_star,
                "T* of a half pass": row["p"] / row["m"],
            }
        )
    return middle


def run(given: Any) -> None:
    rows = [
        counted(method, p)
        for method in ("EigenPro 4", "EigenPro 3", "Falkon")
        for p in COUNTED["p"]
    ]  # type: ignore[attr-defined]
    for row in rows:
        print(
            {
                key: round(value, 1) if isinstance(value, float) else value
                for key, value in row.items()
            },
            flush=True,
        )
    rows += periods(given)
    write(NAME, given.size, rows)


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return
    figure, (left, right) = axes(2)
    looks = {
        "EigenPro 4": METHODS["EigenPro 4, as published"],
        "EigenPro 3": METHODS["EigenPro 3, as published"],
        "Falkon": METHODS["Falkon"],
    }
    for method, look in looks.items():
        of = [row for row in result["rows"] if row["part"] == "counts" and row["method"] == method]
        p = [row["p"] for row in of]
        left.plot(
            p,
            [row["values per sample"] for row in of],
            look["marker"],
            color=look["color"],
            label=f"{method}, counted",
        )
        left.plot(
            p,
            [row["formula, values"] for row in of],
            color=look["color"],
            linewidth=1,
            label="its formula",
        )
    left.set(
        xscale="log",
        yscale="log",
        xlabel="centers p",
        ylabel="kernel values per sample",
        title="Counted kernel values and the formulas",
    )
    left.set_xticks(COUNTED["p"], [str(p) for p in COUNTED["p"]])  # type: ignore[attr-defined]
    left.minorticks_off()
    left.legend(fontsize=8, frameon=False)
    of = [row for row in result["rows"] if row["part"] == "period"]
    right.plot(
        [row["T"] for row in of],
        [row["seconds"] for row in of],
        "o-",
        color=METHODS["EigenPro 4, as published"]["color"],
    )
    for key, style in (("T* printed", "--"), ("T* of a half pass", ":")):
        right.axvline(
            of[0][key],
            color="black",
            linestyle=style,
            linewidth=1,
            label=f"{key}: {of[0][key]:.0f}",
        )
    right.set(
        xscale="log",
        xlabel="T, batches between projections",
        ylabel="seconds of an epoch",
        ylim=(0, None),
        title=f"Time against T, p = {of[0]['p']:,}, m = {of[0]['m']}",
    )
    right.legend(fontsize=9, frameon=False)
    figure.tight_layout()
    save(figure, "table1")


if __name__ == "__main__":
    script(__doc__, run, draw)
