"""Epochs of EigenPro 1 and 2: one pass of `projection.Pass` over (X, Y), every row a center."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator, gather, shard
from ..kernels import Kernel
from ..planning import Plan, with_step
from ..preconditioner import build, measured_step, row_steps
from ..projection import Pass
from .base import MAX_GROWTH, SMALLEST_SCALE, OnEvent, Reporter, State
from .setup import first, fresh_rows, on_centers, product


def epochs_of_passes(
    kernel: Kernel,
    source: Source,
    Z: Tensor,
    plan: Plan,
    comm: Communicator,
    generator: torch.Generator,
    on_event: OnEvent,
    state: State | None,
    m: int | None,
) -> State:
    """Z holds the source's rows in the source's order, this rank's share."""
    K = product(kernel, Z, plan, comm)
    points = K.points(Z)
    X_s = first(comm, points, plan.s or 0)
    begun_before = plan.eta is not None and plan.tau is None  # a plan of before the ridge set a level
    level = 0.0 if begun_before else plan.ridge * len(X_s) / plan.n
    pre, spectrum = comm.same(lambda: build(K, X_s, plan.q or 0, fresh_rows(source, K, plan.fresh, generator), generator, level))
    M, k = on_centers(K, points, X_s, pre.F)
    k_X = gather(comm, k, 0, plan.p)
    if plan.eta is None:
        step = measured_step(spectrum, k_X.max().item(), plan.p, m, overstep=1.0)
        plan = with_step(plan, m=step.m, T=1, eta=step.eta, q=pre.q, beta=step.beta, tau=pre.tau, lambda_top=spectrum.lambda_top)
    targets, whole = (part.to(k_X) for part in source.targets(torch.arange(source.n)))
    Y, shift = targets[shard(comm)].clone(), plan.ridge / whole[shard(comm)]  # the ridge makes it (K + λ/w) α = y
    steps = 1 / (1 / row_steps(plan.eta or 0.0, k_X, 1.0) + plan.ridge / whole)
    epoch = Pass(K, points, M, pre.F[shard(comm)], len(X_s), plan.p, plan.m or 1, plan.keep_block, comm, steps, shift=shift)
    state = state or State(plan, torch.zeros_like(Y), Y.clone())
    report, norm = Reporter(plan, on_event), comm.all_sum((Y * Y).sum()).item()
    good = state.copy()
    report("start", state.epoch, 0, alpha=state.alpha)
    try:
        while state.epoch < plan.epochs and not state.stopped:
            try:
                delta, left = replace(epoch, steps=state.step_scale * steps)(state.r)
            except torch.OutOfMemoryError:
                if not epoch.keep or comm.size > 1:
                    raise
                epoch = replace(epoch, keep=False)
                report("less_memory", state.epoch, 0, note="out of memory: this epoch again, with nothing kept")
                continue
            size = comm.all_sum((left * left).sum()).item()
            if not size <= MAX_GROWTH * norm:
                state = replace(good.copy(), step_scale=state.step_scale / 2)
                report("step_back", state.epoch, 0, note="residuals grew: the step is halved")
                state.stopped = "" if state.step_scale >= SMALLEST_SCALE else "the residuals grew at every step size"
                continue
            state.alpha, state.r, state.epoch = state.alpha + delta, left, state.epoch + 1
            state.loss = size / plan.n
            good = state.copy()
            if report("epoch", state.epoch, 0, loss=state.loss, alpha=state.alpha, state=state):
                state.stopped = "a callback asked for it"
    except KeyboardInterrupt:
        if comm.size > 1:
            raise
        state = replace(good, stopped="it was interrupted")
        report("interrupted", state.epoch, 0, alpha=state.alpha, state=state)
    report("end", state.epoch, 0, loss=state.loss, alpha=state.alpha, state=state)
    return state
