"""How many subsample rows the preconditioner needs: the paper says s ≳ log⁴ n are enough.

    python -m reproduce.nystrom_size [--small | --gpu | --paper] [--draw]

On raw pixels. Part "spectrum": the top eigenvalue of the preconditioned kernel on rows outside the
subsample, over their number, against λ_{q+1}/s of the subsample, which the paper's step and batch
trust; several s, and several q at one s. Part "epoch": batch and accuracy on validation rows after
one epoch with the paper's recipe and with the measured one, for each s; a run whose residuals grow
steps back and halves its step, which is noted. Part "rows": the smallest s, in powers of √2, whose
top eigenvalue on all n rows is at most twice that of s = n, beside log⁴ n and √n. Eigensystems and
eigenvalues are float64; training is float32.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from statistics import median

import torch
from torch import Tensor

from kernelmill import KernelClassifier, kernels
from kernelmill.ops import KernelProduct
from kernelmill.planning.memory import tile_bytes
from kernelmill.preconditioner import FRESH_ROWS, fresh_spectrum, precondition, top_eigensystem
from kernelmill.solvers import EigenPro4

from .data import Data, load
from .record import accuracy, axes, largest, save, script, settle, write

NAME = "nystrom_size"
SIZES = {
    "small": {
        "q": 100,
        "s": [200, 500, 1000, 2000, 5000, 8000],
        "at s": 2000,
        "qs": [25, 100, 400],
        "draws": 3,
        "rows": [1000, 2000, 4000, 8000],
        "epoch": {"n": 20_000, "p": 5000, "s": [200, 500, 1000, 2000, 5000]},
    },
    "gpu": {
        "q": 100,
        "s": [200, 500, 1000, 2000, 5000, 10_000, 20_000],
        "at s": 2000,
        "qs": [25, 100, 400],
        "draws": 3,
        "rows": [1000, 2000, 4000, 8000, 16_000, 32_000],
        "epoch": {"n": 500_000, "p": 131_072, "s": [200, 500, 1000, 2000, 5000, 10_000, 20_000]},
    },
    "paper": {
        "q": 1000,
        "s": [2000, 5000, 10_000, 20_000, 40_000],
        "at s": 10_000,
        "qs": [100, 1000],
        "draws": 3,
        "rows": [4000, 8000, 16_000, 32_000],
        "epoch": {"n": 1_000_000, "p": 262_144, "s": [2000, 5000, 10_000, 20_000]},
    },
}


class Held:
    """Float64 kernel values of some rows, computed once: what the preconditioner's functions ask
    of a kernel, for rows given by number.
    """

    dtype = torch.float64

    def __init__(self, K: Tensor):
        self.K, self.device, self.every = K, K.device, torch.arange(len(K), device=K.device)

    def dense(self, A: Tensor, B: Tensor) -> Tensor:
        return self.K if A is B is self.every else self.K[A[:, None], B]

    def diagonal(self, A: Tensor) -> Tensor:
        return self.K.diagonal()[A]


def held(data: Data) -> Held:
    kernel, X = kernels.Laplacian(bandwidth=data.bandwidth), data.X
    K = KernelProduct(
        kernel,
        X.mean(0, dtype=torch.float64),
        "float64",
        X.device,
        tile_bytes(1 << 32, X.device.type),
    )
    return Held(K.dense(points := K.points(X), points))


def top_on(K: Held, X_s: Tensor, X: Tensor, qs: list[int]) -> list[tuple[float, float]]:
    """For each q: λ_{q+1}/s of the subsample, and the top eigenvalue of the preconditioned kernel
    on the rows X, over their number.
    """
    K_ss = K.dense(X_s, X_s)
    values, E = top_eigensystem(K_ss, max(qs))
    w, g, found = (
        torch.ones(len(X), dtype=K.dtype, device=K.device),
        torch.Generator().manual_seed(0),
        [],
    )
    for q in qs:
        pre = precondition(K_ss, values[: q + 1], E[:, :q], values[q].item(), K.dtype)
        found.append(
            (values[q].item() / len(X_s), fresh_spectrum(K, pre.F, X_s, X, w, g).lambda_top)
        )
    return found


def shuffled(n: int, draw: int, device: torch.device) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(draw)).to(device)


def spectrum(K: Held, s: int, qs: list[int], draws: int) -> list[dict]:
    orders = [shuffled(len(K.K), draw, K.device) for draw in range(draws)]
    found = [top_on(K, order[:s], order[-FRESH_ROWS:], qs) for order in orders]
    rows = []
    for q, pairs in zip(qs, zip(*found, strict=True), strict=True):
        own, fresh = zip(*pairs, strict=True)
        ratios = [b / a for a, b in pairs]
        row = {
            "part": "spectrum",
            "s": s,
            "q": q,
            "subsample": median(own),
            "fresh": median(fresh),
            "ratio": median(ratios),
        }
        rows.append(
            row
            | {"each draw, subsample": own, "each draw, fresh": fresh, "each draw, ratio": ratios}
        )
        print(rows[-1], flush=True)
    return rows


def epoch(data: Data, p: int, s: int, q: int, method: str, device: str) -> dict:
    seen: Counter[str] = Counter()
    solver = EigenPro4.paper(s, q) if method == "paper" else EigenPro4(s=s, q=q)
    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=data.bandwidth),
        n_centers=p,
        solver=solver,
        epochs=1,
        ridge=0.0,
        validation_fraction=0.0,
        random_state=0,
        device=device,
        callbacks=lambda event: seen.update([event.kind]),
    )
    settle(device)
    plan = model.fit(data.X, data.y).plan_
    row = {
        "part": "epoch",
        "method": method,
        "n": plan.n,
        "p": p,
        "s": s,
        "q": plan.q,
        "m": plan.m,
        "eta": plan.eta,
    }
    row |= {
        "steps back": seen["step_back"],
        "accuracy": accuracy(model.model_, data.X_valid, data.y_valid),
    }
    print(row, flush=True)
    return row


def smallest(K: Held, n: int, qs: list[int], draws: int) -> list[dict]:
    part, rows = Held(K.K[:n, :n].contiguous()), []
    for q, (_, best) in zip(qs, top_on(part, part.every, part.every, qs), strict=True):
        grid = [s for k in range(2, 40) if q + 1 < (s := round(2 ** (k / 2))) < n] + [n]
        found = []
        for order in (shuffled(n, draw, K.device) for draw in range(draws)):

            def enough(s, order=order, q=q, best=best):
                return top_on(part, order[:s], part.every, [q])[0][1] <= 2 * best

            found.append(grid[bisect_left(grid, True, hi=len(grid) - 1, key=enough)])
        row = {
            "part": "rows",
            "n": n,
            "q": q,
            "top with s = n": best,
            "s": median(found),
            "each draw": found,
        }
        rows.append(row | {"log^4 n": math.log(n) ** 4, "sqrt n": n**0.5})
        print(rows[-1], flush=True)
    return rows


def run(given) -> None:
    size = SIZES[given.size]
    K = held(load("fashion", max(max(size["s"]) + FRESH_ROWS, *size["rows"]), given.device))
    rows = []
    for s in size["s"]:
        rows += spectrum(K, s, size["qs"] if s == size["at s"] else [size["q"]], size["draws"])
    for n in size["rows"]:
        rows += smallest(K, n, [size["q"] // 4, size["q"]], size["draws"])
    write(NAME, given.size, rows)
    del K
    data = load("fashion", size["epoch"]["n"], given.device)
    for s in size["epoch"]["s"]:
        rows += [
            epoch(data, size["epoch"]["p"], s, size["q"], method, given.device)
            for method in ("paper", "measured")
        ]
        write(NAME, given.size, rows)


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return

    def of(part, **want):
        return [
            row
            for row in result["rows"]
            if row["part"] == part and all(row[k] == v for k, v in want.items())
        ]

    figure, (left, middle, right) = axes(3, height=5.2, width=5.4)
    note = {
        "textcoords": "offset points",
        "fontsize": 9,
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    }
    black, red, blue, q = "#000000", "#d62728", "#1f77b4", max(row["q"] for row in of("rows"))

    sizes = [row["s"] for row in of("spectrum", q=q)]
    for key, color, label in (
        ("fresh", black, f"on fresh rows, q = {q}"),
        ("subsample", red, "what the subsample says, λ$_{q+1}$/s"),
    ):
        left.plot(sizes, [row[key] for row in of("spectrum", q=q)], "o-", color=color, label=label)
        for row in of("spectrum"):
            left.plot(
                row["s"],
                row[key],
                "o",
                color=color,
                markerfacecolor=color if row["q"] == q else "white",
            )
    for row in of("spectrum"):
        text, y = (
            (f"{row['ratio']:.1f}×", 4)
            if row["q"] == q
            else (f"{row['ratio']:.1f}×, q = {row['q']}", -3)
        )
        left.annotate(text, (row["s"], row["fresh"]), xytext=(7, y), **note)
        left.plot([row["s"]] * 2, [row["subsample"], row["fresh"]], ":", color="gray", zorder=0)
    left.set(yscale="log", ylabel="top eigenvalue after preconditioning, a row")
    left.set_title(
        "Fresh rows have a larger top eigenvalue\nthan the subsample says (numbers: ratio)"
    )

    for method, color, label, above in (
        ("measured", black, "measured", 9),
        ("paper", red, "the paper's", -17),
    ):
        rows = of("epoch", method=method)
        middle.plot(
            [row["s"] for row in rows],
            [row["accuracy"] for row in rows],
            "-",
            color=color,
            label=f"{label} step and batch",
        )
        for row in rows:
            at = row["s"], row["accuracy"]
            middle.plot(
                *at,
                "o",
                color=color,
                markersize=8,
                markerfacecolor="white" if row["steps back"] else color,
            )
            middle.annotate(
                f"{row['m']:,}", at, xytext=(0, above), ha="center", color=color, **note
            )
    middle.plot(
        [],
        [],
        "o",
        color="gray",
        markerfacecolor="white",
        markersize=8,
        label="hollow: residuals grew, step halved",
    )
    middle.margins(x=0.1, y=0.15)
    title = f"s sets the batch (numbers: m), q = {q}\nn = {rows[0]['n']:,}, p = {rows[0]['p']:,}"
    middle.set(ylabel="validation accuracy, one epoch, %", title=title)

    n = [row["n"] for row in of("rows", q=q)]
    for its, color in zip(sorted({row["q"] for row in of("rows")}), (blue, black), strict=True):
        right.plot(
            n,
            [row["s"] for row in of("rows", q=its)],
            "o-",
            color=color,
            label=f"smallest s, q = {its}",
        )
    right.plot(n, [row["log^4 n"] for row in of("rows", q=q)], "--", color=red, label="log⁴ n")
    right.plot(n, [row["sqrt n"] for row in of("rows", q=q)], ":", color="gray", label="√n")
    right.set(
        yscale="log",
        ylabel="subsample rows s",
        title="Subsample rows that come within\ntwice the top eigenvalue of s = n",
    )
    for panel, ticks, name in (
        (left, sizes, "subsample rows s"),
        (middle, [row["s"] for row in rows], "subsample rows s"),
        (right, n, "rows n"),
    ):
        panel.set(xscale="log", xlabel=name)
        panel.set_xticks(
            ticks, [f"{tick}" if tick < 1000 else f"{tick / 1000:g}k" for tick in ticks]
        )
        panel.set_xticks([], minor=True)
        panel.legend(
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.13),
            ncols=2 if panel is right else 1,
        )
    figure.tight_layout(w_pad=3)
    save(figure, "nystrom")


if __name__ == "__main__":
    script(__doc__, run, draw)
