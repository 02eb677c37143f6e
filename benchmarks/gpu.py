"""One measured fit on a GPU, for the benchmarks: seconds, peak memory and accuracy, with the plan's prediction beside them."""

from __future__ import annotations

import time

import torch

from kernelmill import KernelClassifier, kernels
from kernelmill.projection import Pass
from kernelmill.solvers import EigenPro4

PASSES: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []


def _noted(call):
    """Projection passes leave two marks on the stream: their time is read afterwards, and nothing waits for them."""

    def noted(self, r):
        marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        marks[0].record()
        result = call(self, r)
        marks[1].record()
        PASSES.append(marks)
        return result

    return noted


Pass.__call__ = _noted(Pass.__call__)  # type: ignore[method-assign]


def measured_fit(X, y, X_test, y_test, *, n_centers: int, bandwidth: float, epochs: int = 1, precision: str = "auto", solver=None, **more):
    """A row of the table. Everything from the call of fit to its return is in the seconds; X may be on the GPU or in host memory."""
    seconds: dict[str, float] = {}
    PASSES.clear()

    def listen(event):
        seconds[event.kind] = time.perf_counter() - start

    model = KernelClassifier(
        kernel=kernels.Laplacian(bandwidth=bandwidth), n_centers=n_centers, solver=solver or EigenPro4(projection="carried"), epochs=epochs,
        ridge=0.0, precision=precision, random_state=0, callbacks=listen, **more,
    )  # fmt: skip
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    model.fit(X, y)
    torch.cuda.synchronize()
    total = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() - before
    with torch.no_grad():
        accuracy = 100 * (model.model_(X_test).argmax(1) == y_test.to(model.model_.alpha.device)).double().mean().item()
    plan = model.plan_
    projecting = sum(first.elapsed_time(last) for first, last in PASSES) / 1e3
    row = {
        "n": len(X), "d": X.shape[1], "p": plan.p, "precision": plan.precision, "X on": X.device.type, "fit s": total,
        "set-up s": seconds["start"], "accuracy": accuracy, "peak GiB": peak / 2**30, "predicted GiB": plan.bytes / 2**30,
        "m": plan.m, "T": plan.T, "q": plan.q, "m_Z": plan.m_Z,
        "projections": len(PASSES), "projecting s": projecting, "block kept": plan.keep_block,
    }  # fmt: skip
    return row, model
