"""One measured fit on a GPU: seconds, peak memory and accuracy, beside the plan's prediction."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from kernelmill import KernelClassifier, kernels
from kernelmill.projection import Pass
from kernelmill.solvers import EigenPro4

SIDE = 8192  # of the plain products

Marks = list[tuple[torch.cuda.Event, torch.cuda.Event]]


def seconds(work: Callable[[], object], runs: int = 3) -> float:
    """The median."""
    took = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return median(took)


def beside() -> dict:
    """The clock and plain products, in the same minute."""
    rates = {}
    for name, dtype in (("product", torch.float64), ("half_product", torch.float16)):
        A = torch.rand(SIDE, SIDE, device="cuda").to(dtype)
        rates[f"{name}_tflops"] = 2 * SIDE**3 / seconds(lambda A=A: A @ A) / 1e12
    ask = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    clock = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
    return {"clock_mhz": int(clock[0]) if clock and clock[0].isdigit() else None, **rates}


@contextmanager
def timed_passes() -> Iterator[Marks]:
    """Two events around each projection pass: read afterwards, so that nothing waits for them."""
    marks: Marks = []
    plain = Pass.__call__

    def timed(self: Pass, r: Tensor):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        result = plain(self, r)
        last.record()
        marks.append((first, last))
        return result

    with patch.object(Pass, "__call__", timed):
        yield marks


def measured_fit(
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    y_test: Tensor,
    *,
    n_centers: int,
    bandwidth: float,
    precision: str = "auto",
    solver: EigenPro4 | None = None,
) -> tuple[dict, KernelClassifier]:
    """A row of the table, and the model of one epoch.

    The seconds are those from the call of fit to its return; X may be on the GPU or in host memory.
    """
    seconds: dict[str, float] = {}

    def listen(event):
        seconds[event.kind] = time.perf_counter() - start

    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=bandwidth),
        n_centers=n_centers,
        solver=solver or EigenPro4(projection="carried"),
        epochs=1,
        ridge=0.0,
        precision=precision,
        random_state=0,
        callbacks=listen,
    )
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with timed_passes() as passes:
        model.fit(X, y)
    torch.cuda.synchronize()
    total = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() - before
    with torch.no_grad():
        right = model.model_(X_test).argmax(1) == y_test.to(model.model_.alpha.device)
    plan = model.plan_
    row = {
        "n": len(X),
        "d": X.shape[1],
        "p": plan.p,
        "precision": plan.precision,
        "x_device": X.device.type,
        "fit_seconds": total,
        "setup_seconds": seconds["start"],
        "accuracy_percent": 100 * right.double().mean().item(),
        "peak_gib": peak / 2**30,
        "predicted_gib": plan.bytes / 2**30,
        "m": plan.m,
        "cycle_batches": plan.T,
        "q": plan.q,
        "projection_rows": plan.m_Z,
        "projections": len(passes),
        "projecting_seconds": sum(a.elapsed_time(b) for a, b in passes) / 1e3,
        "block_kept": plan.keep_block,
    }
    return row, model
