"""Predicted seconds of a plan, from the machine's measured rates: one function per method, each term a line of its loop."""

from __future__ import annotations

import math
from dataclasses import replace

from .planning import Plan, period
from .rates import Rates


def factoring(p: float, rates: Rates) -> float:
    """One Cholesky factor."""
    return p * rates.column + p**3 / 3 / rates.factor


def values(count: float, plan: Plan, rates: Rates) -> float:
    """`count` kernel values, evaluated once."""
    return values64(count, plan, rates) if plan.precision == "float64" and plan.fine else count / rates.block


def values64(count: float, plan: Plan, rates: Rates) -> float:
    """The same in float64 and held: twice the work on a CPU, and on a GPU plain torch instead of the fused kernels."""
    if not plan.on_gpu:
        return count / rates.block * (1 if plan.precision == "float64" and not plan.fine else 2)
    return count * (2 * plan.d / rates.products + 5 * 16 / rates.read)


def direct(plan: Plan, rates: Rates) -> float:
    n, p = plan.n, plan.p
    if plan.every_row:
        return values64(n * n, plan, rates) + factoring(n, rates)
    whitening = (1 if plan.on_gpu else 3) * n * p * p / rates.products
    return values64((n + p) * p, plan, rates) + 2 * factoring(p, rates) + whitening + 2 * n * p * p / rates.products


def falkon(plan: Plan, rates: Rates) -> float:
    n, p, c, item = plan.n, plan.p, plan.c, plan.itemsize
    # Until they are as near as the tolerance asks: fewer where the centers are most of the rows, more where targets are smooth.
    iterations = min(plan.epochs, 20 if plan.regression else 10 if 2 * p < n else 5)
    factors = 2 if plan.ridge else 1
    setup = factors * (values64(p * p, plan, rates) + factoring(p, rates))
    solves = 4 * 8 * p * p / 2 / rates.read + (4 * 3 * p / 1024 * rates.launch if plan.on_gpu else 0)
    columns = max(1.0, c / 10)
    traffic = 2 * n * p * item / rates.read * columns
    written = n * p * item / (rates.read / 4)  # fresh memory is slower to write than held memory is to read
    blocks = 12 * n / plan.sweep_rows * rates.launch
    if plan.keep_all:
        return setup + values(n * p, plan, rates) + written + traffic / 2 + iterations * (traffic + solves + blocks)
    once = values(n * p, plan, rates)
    again = once + traffic if plan.keep_block else 2 * once
    return setup + once + traffic / 2 + iterations * (again + solves + blocks)


def eigenpro4(plan: Plan, rates: Rates) -> float:
    n, p, c, item = plan.n, plan.p, plan.c, plan.itemsize
    s, q, fresh = plan.s or 0, plan.q or 0, plan.fresh
    # Sizes that only the spectrum will tell are guessed: the batch grows with the eigenvectors that are taken off.
    m = plan.m or min(p, max(64, 3 * q))
    T = plan.T or period(replace(plan, m=m))
    cycle, single = min(n, T * m), 2 * rates.products  # float32 operations a second
    eigensystem = (12 * q * s * s if s > 4000 else 9 * s**3) / rates.products
    setup = (
        values64(s * s, plan, rates)
        + eigensystem
        + values(fresh * fresh + p * s + fresh * s, plan, rates)
        + (2 * (fresh + 2 * p) * s * q + 60 * fresh * fresh * 2) / single
    )
    kept = 2 * item / rates.read * max(1.0, c / 10)
    a_row = p / rates.block * (1 if plan.keep_block or not plan.on_gpu else 2) + (p * kept if plan.keep_block else 0)
    a_row += cycle / 2 / rates.block + 4 * s * q / single / (4 if plan.on_gpu else 1)
    cycles = math.ceil(n / cycle)
    if plan.projection == "cholesky":
        setup += values64(p * p, plan, rates) + factoring(p, rates)
        project = 2 * 8 * p * p / 2 / rates.read
    else:
        m_Z = plan.m_Z or min(p, 512)
        project = p * p / 2 * (1 / rates.block + kept) + p / m_Z * (30 * rates.launch + 4 * p * q / single / max(1, p / m_Z))
        setup += p / m_Z * (m_Z**3 / rates.factor) + values64(p * m_Z, plan, rates)
    steps = math.ceil(n / m) * 60 * rates.launch
    passes = cycles * plan.epochs - 1 + (plan.epochs - 1 if plan.control_variate else 0)
    return setup + plan.epochs * (n * a_row + steps) + max(0, passes) * project
