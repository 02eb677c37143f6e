"""The figure "T = 11 against T = 1": accuracy at every iteration, between and after projections,
of EigenPro 4 and EigenPro 3.

    python -m reproduce.figure_projection [--small | --gpu | --paper]

EigenPro 3 is EigenPro 4 with T = 1 (tests/test_identities.py, number 2): both run through the same
loop here, step by step. Accuracy is that of validation rows; the seconds are those of training
alone, without looking.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from kernelmill import kernels
from kernelmill.data import source_of
from kernelmill.distributed.team import Alone
from kernelmill.planning.memory import parse_bytes, tile_bytes
from kernelmill.planning.plan import Plan
from kernelmill.planning.precision import precision_of
from kernelmill.solvers import EigenPro4, Problem, eigenpro4, paper
from kernelmill.solvers.control import NoControl, NoRidge
from kernelmill.solvers.eigenpro_setup import step_now
from kernelmill.solvers.shards import Shards, Temporary

from .data import Data, load
from .record import METHODS, accuracy, axes, read, save, script, write

NAME = "figure_projection"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"data": "fashion", "n": 55_000, "p": 4096, "steps": 88, "m": 512},
    "gpu": {"data": "features", "n": 1_125_000, "p": 100_000, "steps": 110, "m": None},
    "paper": {"data": "webvision", "n": 5_200_000, "p": 100_000, "steps": 220, "m": None},
}
RUNS = {
    "EigenPro 4, T = 11": (
        replace(EigenPro4.paper(), T=11),
        METHODS["EigenPro 4, as published"]["color"],
    ),
    "EigenPro 3 (T = 1)": (
        replace(EigenPro4.paper(), T=1),
        METHODS["EigenPro 3, as published"]["color"],
    ),
    "EigenPro 4, T = 11, residual carried": (
        EigenPro4(T=11, projection="carried", control_variate=False),
        METHODS["kernelmill"]["color"],
    ),
}


def trace(
    data: Data, p: int, steps: int, m: int | None, solver: EigenPro4, device: str
) -> list[dict]:
    """Accuracy and seconds after every step, and after every projection."""
    kernel = kernels.Laplacian(bandwidth=data.bandwidth)
    n, d, c = len(data.X), data.X.shape[1], data.classes
    budget = parse_bytes(None, device)
    base = Plan(
        solver.name,
        n,
        d,
        c,
        p,
        precision=precision_of("auto", 2 if device == "cuda" else 4, d, kernel, device),
        device=device,
        x_bytes=2,
        epochs=1,
        tile_bytes=tile_bytes(budget, device),
        budget=budget,
    )
    plan = solver.plan(base)
    Y = torch.nn.functional.one_hot(data.y, c).to(plan.torch_dtype)
    mean = Y.mean(0)
    source = source_of(data.X, Y, mean=mean, w=None, seed=0, device=device)
    g = torch.Generator().manual_seed(0)
    Z = source.take(torch.randperm(n, generator=g)[:p]).X
    problem = Problem(kernel, source, Z, Alone(), g)
    setup, state = replace(solver, m=m).prepare(problem, plan, None)
    batches = source.batches(setup.plan.m or 1, 0, 0)
    rows: list[dict] = []
    spent, at = 0.0, time.perf_counter()

    def note(kind: str, f: Any) -> None:
        nonlocal spent, at
        if device == "cuda":
            torch.cuda.synchronize()
        spent += time.perf_counter() - at
        score = accuracy(lambda X: f(X) + mean.to(device), data.X_valid, data.y_valid)
        rows.append(
            {
                "step": len([row for row in rows if row["kind"] == "step"]) + (kind == "step"),
                "kind": kind,
                "seconds": spent,
                "accuracy": score,
            }
        )
        at = time.perf_counter()

    class Watched(Shards):
        """After each step the model between projections is looked at: centers, temporary centers,
        subsample.
        """

        def temporary(self) -> Temporary:
            K, tmp = self.K, super().temporary()
            plain = tmp.append

            def f(X: Tensor) -> Tensor:
                x = K.points(X)
                found = K.matmul(x, self.Z, state.alpha) + K.matmul(x, tmp.points, tmp.alpha)
                return found if tmp.alpha_s is None else found + K.matmul(x, setup.X_s, tmp.alpha_s)

            def append(*row: Any) -> None:
                plain(*row)
                note("step", f)

            tmp.append = append  # type: ignore[method-assign]
            return tmp

    done, centers = 0, Watched(setup, Alone())
    while done < steps:
        T = min(setup.plan.T or 1, steps - done)
        if solver.recipe == "paper":
            h, _ = paper.steps(
                islice(batches, T), step_now(setup.plan, state), state, problem, centers
            )
        else:
            h, _ = eigenpro4.steps(islice(batches, T), state, centers, NoControl(), NoRidge())
        theta, state.r = setup.project(state.r + h)
        state.alpha += theta
        note("projection", lambda X: setup.K.matmul(setup.K.points(X), setup.Z, state.alpha))
        done += T
    print(
        f"m = {setup.plan.m}, {done} steps, {spent:.1f} s, {rows[-1]['accuracy']:.2f} %", flush=True
    )
    return [{**row, "m": setup.plan.m} for row in rows]


def run(given: Any) -> None:
    size = SIZES[given.size]
    data = load(size["data"], size["n"], given.device)
    data = (
        replace(data, X_valid=data.X_valid[:2000], y_valid=data.y_valid[:2000])
        if given.size == "small"
        else data
    )
    rows = []
    for name, (solver, _) in RUNS.items():
        print(name, flush=True)
        rows += [
            {"run": name, **row}
            for row in trace(data, size["p"], size["steps"], size["m"], solver, given.device)
        ]
    write(NAME, given.size, rows, data=size["data"], n=len(data.X), p=size["p"])


def draw() -> None:
    results = [found for size in SIZES if (found := read(NAME, size))]
    if not results:
        return
    figure, panels = axes(1 + len(results), height=4.4, width=5.4)
    for panel, result, key in zip(
        panels, [results[0], *results], ["seconds", *["step"] * len(results)], strict=True
    ):
        low = 100.0
        for name, (_, color) in RUNS.items():
            of = [row for row in result["rows"] if row["run"] == name]
            after = [row for row in of if row["kind"] == "projection"]
            every = after if "T = 1)" in name else of
            low = min(low, sorted(row["accuracy"] for row in after)[len(after) // 8])
            panel.plot(
                [row[key] for row in every],
                [row["accuracy"] for row in every],
                color=color,
                linewidth=1.3,
                label=name,
            )
            if "T = 11" in name:
                panel.plot(
                    [row[key] for row in after],
                    [row["accuracy"] for row in after],
                    "o",
                    color=color,
                    markersize=4,
                )
        best = max(row["accuracy"] for row in result["rows"])
        where = f"{result['data']}, p = {result['p']:,}, m = {result['rows'][0]['m']:,}"
        panel.set(
            xlabel="iteration" if key == "step" else "seconds of training",
            ylim=(max(0.0, low - 4), best + 1),
            title=where,
        )
        if key == "seconds":
            panel.set_xscale("log")
    panels[0].set_ylabel("accuracy on validation rows, %")
    panels[1].legend(frameon=False, loc="lower right", title="dots: just after a projection")
    figure.tight_layout()
    save(figure, "projection")


if __name__ == "__main__":
    script(__doc__, run, draw)
