"""The appendix: where EigenPro 4-Exact (Algorithm 2) goes, and what noise in the targets does to
it.

    python -m reproduce.appendix_fixed_point [--small | --gpu | --paper] [--draw]

Part "rounds": the distance, round by round, to the limit of the first proposition, (K_ZX K_XX⁻¹
K_XZ)⁻¹ K_ZX K_XX⁻¹ y, and to that of the second, K⁺(X,Z) y, which is least squares. Beside it the
algorithm as it is printed, where β_t is overwritten and not added to; its own limit, where it has
one, is (K_ZZ + K_ZX K_XX⁻¹ K_XZ)⁻¹ K_ZX K_XX⁻¹ y. Part "noise": with y = K(X,Z) β* + ξ, the mean
of β_t against β*, and the mean of ‖β_t − β*‖²/σ² against the trace formula, over many draws of ξ.
Everything is float64, on uniform rows of a cube. Centers are drawn independently of the rows; part
"rounds" has them once more from the rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelmill import kernels
from kernelmill.data import ArraySource
from kernelmill.distributed.team import Alone
from kernelmill.planning.plan import Plan
from kernelmill.solvers import EigenPro4Exact, OnEvent, Problem, drive

from .record import axes, largest, save, script, write

NAME = "appendix_fixed_point"
D, KERNEL, SIGMA = 3, kernels.Laplacian(bandwidth=1.0), 0.3
SIZES = {
    "small": {
        "rounds": (800, 100, 2000),
        "noise": [(200, 10), (200, 20), (200, 40), (400, 20), (800, 10)],
        "draws": 2000,
    },
    "gpu": {
        "rounds": (4000, 800, 4000),
        "noise": [(500, 20), (500, 50), (1000, 50), (2000, 100), (4000, 20)],
        "draws": 4000,
    },
}
SIZES["paper"] = SIZES["gpu"]  # the paper has no numbers of its own here
UNFINISHED = 1e-5  # part "noise" runs until no direction has more than this left of its way


def exact(
    X: Tensor, Y: Tensor, Z: Tensor, rounds: int, on_event: OnEvent = lambda event: False
) -> Tensor:
    """β of the library's EigenPro 4-Exact after so many rounds.

    Targets are taken as they are, without centering.
    """
    solver = EigenPro4Exact()
    plan = solver.plan(
        Plan(solver.name, len(X), D, Y.shape[1], len(Z), device=str(X.device), epochs=rounds)
    )
    source = ArraySource(X, Y, mean=Y.new_zeros(Y.shape[1]), seed=0)
    return drive(
        solver, Problem(KERNEL, source, Z, Alone(), torch.Generator()), plan, on_event
    ).state.alpha


def matrices(X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """K_XZ, W = K_XX⁻¹ K_XZ, A = K_ZX W, B = K_ZZ⁻¹ Wᵀ, and the slowest factor of a round, the top
    eigenvalue of I − K_ZZ⁻¹ A.
    """
    K_XZ, K_ZZ = KERNEL(X, Z), KERNEL(Z, Z)
    W = torch.linalg.solve(KERNEL(X, X), K_XZ)
    A = K_XZ.T @ W
    L = torch.linalg.cholesky(K_ZZ)
    half = torch.linalg.solve_triangular(L, (A + A.T) / 2, upper=False)
    slowest = (
        1 - torch.linalg.eigvalsh(torch.linalg.solve_triangular(L, half.T, upper=False))[0].item()
    )
    return K_XZ, W, A, torch.linalg.solve(K_ZZ, W.T), slowest


def cube(n: int, g: torch.Generator, device: str) -> Tensor:
    return torch.rand(n, D, generator=g, dtype=torch.float64).to(device)


def by_round(n: int, p: int, rounds: int, independent: bool, device: str) -> list[dict]:
    g = torch.Generator().manual_seed(0)
    X, new = cube(n, g, device), cube(1000, g, device)
    Z = cube(p, g, device) if independent else X[:p]
    truth = lambda x: torch.sin(4 * x.sum(1, keepdim=True))  # noqa: E731
    y = truth(X) + SIGMA * torch.randn(n, 1, generator=g, dtype=torch.float64).to(device)
    K_XZ, W, A, B, slowest = matrices(X, Z)
    K_new = KERNEL(new, Z)
    limits = {
        "first": torch.linalg.solve(A, W.T @ y),
        "second": torch.linalg.lstsq(K_XZ, y).solution,
        "overwritten": torch.linalg.solve(KERNEL(Z, Z) + A, W.T @ y),
    }
    about = {"centers": "independent of X" if independent else "rows of X", "n": n, "p": p}
    far = lambda a, b: ((a - b).norm() / b.norm()).item()  # noqa: E731
    errors = {
        f"{name}, training error": (K_XZ @ beta - y).square().mean().item()
        for name, beta in limits.items()
    }
    errors |= {
        f"{name}, error to the truth": (K_new @ beta - truth(new)).square().mean().item()
        for name, beta in limits.items()
    }
    rows: list[dict] = [{"part": "limits", **about, "slowest factor of a round": slowest, **errors}]
    shown = {*range(1, 31), *(round(10 ** (i / 10)) for i in range(15, 60)), rounds - 1, rounds}

    def note(update: str, t: int, beta: Tensor) -> bool:
        if t in shown:
            to = {f"to {name}, weights": far(beta, limit) for name, limit in limits.items()}
            to |= {
                f"to {name}, predictions": far(K_new @ beta, K_new @ limit)
                for name, limit in limits.items()
            }
            rows.append({"part": "rounds", **about, "update": update, "round": t, **to})
        return False

    exact(
        X,
        y,
        Z,
        rounds,
        lambda event: event.kind == "epoch" and note("added", event.epoch, event.alpha),
    )
    residual = y
    for t in range(1, rounds + 1):  # Algorithm 2 as printed
        beta = B @ residual
        residual = y - K_XZ @ beta
        note("overwritten", t, beta)
    for row in (rows[0], *(row for row in rows[1:] if row["round"] == rounds)):
        print(
            {
                key: f"{value:.3g}" if isinstance(value, float) else value
                for key, value in row.items()
            },
            flush=True,
        )
    return rows


def noise(n: int, p: int, draws: int, device: str) -> list[dict]:
    """All draws are outputs of one run, both kinds of noise in it."""
    g = torch.Generator().manual_seed(n + p)
    X, Z = cube(n, g, device), cube(p, g, device)
    K_XZ, W, A, _, slowest = matrices(X, Z)
    rounds = math.ceil(math.log(UNFINISHED) / math.log(slowest))
    truth = torch.randn(p, 1, generator=g, dtype=torch.float64).to(device)
    kinds = {
        "normal": torch.randn(n, draws, generator=g, dtype=torch.float64),
        "signs": torch.randint(0, 2, (n, draws), generator=g).double() * 2 - 1,
    }
    off = (
        exact(X, K_XZ @ truth + SIGMA * torch.cat(list(kinds.values()), 1).to(device), Z, rounds)
        - truth
    )
    # The limit is R y: covariance σ² R Rᵀ, and its trace is the proposition's.
    R = torch.linalg.solve(A, W.T)
    formula, root = R.square().sum().item(), torch.linalg.cholesky(R @ R.T)
    least_squares = torch.linalg.pinv(K_XZ).square().sum().item()
    rows = []
    for kind, part in zip(kinds, off.split(draws, 1), strict=True):
        # p independent numbers that are standard normal if the mean of β is β*
        z = (
            torch.linalg.solve_triangular(root, part.mean(1, keepdim=True), upper=False)
            * draws**0.5
            / SIGMA
        )
        sums = part.square().sum(0) / SIGMA**2
        row = {
            "part": "noise",
            "n": n,
            "p": p,
            "noise": kind,
            "draws": draws,
            "rounds": rounds,
            "slowest factor of a round": slowest,
            "formula": formula,
            "simulated": sums.mean().item(),
            "standard error": sums.std().item() / draws**0.5,
            "mean of β less β*, in standard errors, root mean square": (
                z.square().mean().sqrt().item()
            ),
            "mean of β less β*, in standard errors, largest": z.abs().max().item(),
            "least squares would have": least_squares,
        }
        row["off, in standard errors"] = (row["simulated"] - formula) / row["standard error"]
        print(
            {
                key: f"{value:.4g}" if isinstance(value, float) else value
                for key, value in row.items()
            },
            flush=True,
        )
        rows.append(row)
    return rows


def run(given) -> None:
    size = SIZES[given.size]
    rows = [
        row
        for independent in (True, False)
        for row in by_round(*size["rounds"], independent, given.device)
    ]
    for n, p in size["noise"]:
        rows += noise(n, p, size["draws"], given.device)
        write(NAME, given.size, rows, d=D, kernel="Laplacian, bandwidth 1", sigma=SIGMA)


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return
    figure, (left, right) = axes(2, height=4.4, width=6.0)
    rounds = [
        row
        for row in result["rows"]
        if row["part"] == "rounds" and row["centers"] == "independent of X"
    ]
    lines = [
        ("added", "to first, predictions", "to the first proposition's limit", "#000000", "-"),
        ("added", "to first, weights", "the same, weights and not predictions", "#000000", "--"),
        (
            "added",
            "to second, predictions",
            "to the second proposition's limit (least squares)",
            "#1f77b4",
            "-",
        ),
        (
            "overwritten",
            "to first, predictions",
            "as printed, β overwritten: to the first limit",
            "#d62728",
            "-",
        ),
    ]
    for update, key, label, color, style in lines:
        rows = [row for row in rounds if row["update"] == update]
        left.plot(
            [row["round"] for row in rows],
            [row[key] for row in rows],
            style,
            color=color,
            linewidth=1.8,
            label=label,
        )
    title = (
        f"It goes to the first limit, not to the second\nn = {rounds[0]['n']:,}, p ="
        f" {rounds[0]['p']:,}"
    )
    left.set(xscale="log", yscale="log", xlabel="round", ylabel="relative distance", title=title)
    left.legend(frameon=False, loc="lower left", fontsize=9)
    noisy = [row for row in result["rows"] if row["part"] == "noise"]
    values = [row[key] for row in noisy for key in ("formula", "least squares would have")]
    right.plot(
        [min(values), max(values)],
        [min(values), max(values)],
        color="gray",
        linewidth=1,
        label="equal",
    )
    for kind, marker, color in (("normal", "o", "#000000"), ("signs", "x", "#d62728")):
        rows = [row for row in noisy if row["noise"] == kind]
        x, y, error = (
            [row[key] for row in rows] for key in ("formula", "simulated", "standard error")
        )
        label = f"simulated, noise: {kind}"
        right.errorbar(
            x,
            y,
            yerr=[2 * e for e in error],
            fmt=marker,
            color=color,
            capsize=4,
            fillstyle="none",
            markersize=9,
            label=label,
        )
    right.plot(
        x,
        [row["least squares would have"] for row in rows],
        "v",
        color="#1f77b4",
        label="what the second limit would have",
    )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="variance by the trace formula, in units of σ²",
        ylabel="variance of β, in units of σ²",
    )
    right.set_title(
        f"The variance formula holds, for the first limit\n{noisy[0]['draws']:,} draws a point,"
        " bars: 2 standard errors"
    )
    right.legend(frameon=False, loc="upper left", fontsize=9)
    figure.tight_layout(w_pad=3)
    save(figure, "appendix")


if __name__ == "__main__":
    script(__doc__, run, draw)
