"""Predicted seconds of the EigenPro solvers: each term is a line of a loop."""

from __future__ import annotations

import math
from dataclasses import replace

from ..distributed.team import LEAST_TILE_ROWS, TILES
from ..planning.costs import always, factoring, values, values64
from ..planning.machine import Rates
from ..planning.plan import Plan
from .eigenpro_sizes import keeps_factors, pass_rows, period


def eigenpro_setup(plan: Plan, rates: Rates) -> float:
    """The eigensystem of the subsample, its part on the centers, the step measured on fresh
    rows.
    """
    p, s, q, fresh = plan.own, plan.s or 0, plan.q or 0, plan.fresh
    eigensystem = (12 * q * s * s if s > 4000 else 9 * s**3) / rates.products
    return (
        values64(s * s, plan, rates)
        + eigensystem
        + values(fresh * fresh + p * s + fresh * s, plan, rates)
        + (2 * (fresh + 2 * p) * s * q + 60 * fresh * fresh * 2) / (2 * rates.products)
        + (8_000 * rates.launch if plan.on_gpu else 0)  # mostly the eigensolver's
    )


def batch_of(plan: Plan) -> int:
    """The batch, which only the spectrum will tell, guessed: it grows with the eigenvectors
    that are taken off.
    """
    return plan.m or min(plan.p, max(64, 3 * (plan.q or 0)))


def eigenpro2_seconds(plan: Plan, rates: Rates) -> float:
    n, q, m = plan.n, plan.q or 0, batch_of(plan)
    kept = 2 * plan.itemsize / rates.read * max(1.0, plan.c / 10)
    epoch = (
        n * plan.own / 2 * ((1 if plan.keep_block or not plan.on_gpu else 2) / rates.block + kept)
        + n * (m + 2 * q) / rates.block
    )
    epoch = max(epoch, n / m * (200 if plan.on_gpu else 30) * rates.launch) + n / m * pass_sums(
        plan, rates, m, epoch * m / n
    )
    return always(plan) + eigenpro_setup(plan, rates) + plan.epochs * epoch


def step_sums(plan: Plan, rates: Rates, m: int, computing: float) -> float:
    """What a step waits for sums over ranks, beyond the `computing` they run beside:
    predictions by tiles, k, last residuals; then v.
    """
    if rates.network is None or plan.ranks == 1:
        return 0.0
    columns = plan.c + 1 + plan.c * plan.control_variate
    tiles = max(1, min(TILES, m // LEAST_TILE_ROWS))
    tile = rates.network.seconds(m / tiles * columns * plan.itemsize, plan.ranks)
    batch = rates.network.seconds(m * plan.d * plan.x_bytes, plan.ranks)
    beside = (tiles - 1) * tile + batch
    return (
        tile
        + rates.network.seconds((plan.q or 0) * plan.c * plan.itemsize, plan.ranks)
        + max(0.0, beside - computing)
    )


def pass_sums(plan: Plan, rates: Rates, m: int, computing: float) -> float:
    """The same for a batch of m centers of a projection pass: its residuals, its solution where
    a factor is kept; the next batch's centers and the coarse grid's part come meanwhile.
    """
    if rates.network is None or plan.ranks == 1:
        return 0.0
    few = rates.network.seconds(m * plan.c * plan.itemsize, plan.ranks)
    solved = (
        rates.network.seconds(2 * m * plan.c * plan.itemsize, plan.ranks)
        if plan.solver != "eigenpro2" and keeps_factors(plan)
        else 0.0
    )
    beside = rates.network.seconds(
        m * (plan.features * plan.feature_bytes + plan.itemsize), plan.ranks
    )
    beside += rates.network.seconds((plan.q or 0) * plan.c * plan.itemsize, plan.ranks)
    return few + solved + max(0.0, beside - computing)


def eigenpro4_seconds(plan: Plan, rates: Rates) -> float:
    setup = eigenpro_setup(plan, rates)
    if plan.projection == "cholesky":
        setup += values64(plan.p**2, plan, rates) + factoring(plan.p, rates)
    else:
        m_Z = plan.m_Z or pass_rows(plan)
        setup += math.ceil(plan.p / m_Z) / plan.ranks * (m_Z**3 / rates.factor) + values64(
            plan.own * m_Z, plan, rates
        )
    return always(plan) + setup + eigenpro4_epochs(plan, rates)


def eigenpro4_epochs(plan: Plan, rates: Rates) -> float:
    """Steps and projections of all epochs."""
    n, p, c, s, q, item = plan.n, plan.own, plan.c, plan.s or 0, plan.q or 0, plan.itemsize
    m = batch_of(plan)
    T = plan.T or period(replace(plan, m=m))
    cycle, single = min(n, T * m), 2 * rates.products  # float32 operations a second
    kept = 2 * item / rates.read * max(1.0, c / 10)
    a_row = p / rates.block * (1 if plan.keep_block or not plan.on_gpu else 2) + (
        p * kept if plan.keep_block else 0
    )
    a_row += (cycle / 2 / rates.block + 4 * s * q / single / (4 if plan.on_gpu else 1)) / plan.ranks
    # K(X_m, X_s), of which one process has the columns already.
    a_row += s / rates.block / plan.ranks * (plan.ranks > 1)
    # A GPU computes while the next step is launched: the longer of the two counts.
    step = max(m * a_row, 220 * rates.launch) if plan.on_gpu else m * a_row + 60 * rates.launch
    step += step_sums(plan, rates, m, step)
    cycles = math.ceil(n / cycle)
    if plan.projection == "cholesky":
        project = 2 * 8 * plan.p**2 / 2 / rates.read
    else:
        m_Z = plan.m_Z or pass_rows(plan)
        batches = math.ceil(plan.p / m_Z)
        batch = max(
            m_Z * p / 2 * (1 / rates.block + kept) + 4 * m_Z * q / plan.ranks / single,
            100 * rates.launch,
        )
        project = batches * (batch + pass_sums(plan, rates, m_Z, batch))
    passes = cycles * plan.epochs + (plan.epochs - 1 if plan.control_variate else 0)
    return plan.epochs * n / m * step + passes * project
