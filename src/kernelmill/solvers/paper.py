"""EigenPro 4 as the paper prints it: the subsample is drawn from the data, and its rows are
temporary centers too; one step size for all rows, no decay, no ridge, no control variate. Kept
to show what the corrections in docs/algorithm.md are worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from ..data import Batch
from ..distributed.team import by_tiles
from .base import Diverged, Problem, Report
from .eigenpro_setup import Setup, step_now
from .eigenpro_state import EigenPro4State, Probe, Tally, is_healthy, next_epoch
from .shards import Blocks, Shards, Temporary


def rounds_as_printed(
    problem: Problem, setup: Setup, state: EigenPro4State, centers: Shards
) -> Iterator[Report]:
    """Algorithm 1 of the paper, with the sign of h put right."""
    plan, probe = setup.plan, Probe(problem.source, centers)
    probe.begin(state)
    while state.epoch < plan.epochs:
        batches = problem.source.batches(plan.m or 1, state.epoch, state.position)
        eta = step_now(plan, state)
        while state.position < plan.n:
            h, tally = steps(islice(batches, plan.T), eta, state, problem, centers)
            theta, state.r = setup.project(state.r + h)
            state.alpha += theta
            if not is_healthy(state, tally, centers, probe):
                raise Diverged(eta)
            yield Report("projection", state.copy(), state.loss, eta)
        mean_loss = state.epoch_loss / state.epoch_weight
        next_epoch(state)
        yield Report("epoch", state.copy(), mean_loss, eta)


def steps(
    batches: Iterable[Batch], eta: float, state: EigenPro4State, problem: Problem, centers: Shards
) -> tuple[Tensor, Tally]:
    """h, what the steps do to the model's values on the centers."""
    K, setup, mine = centers.K, centers.setup, centers.mine
    X_s = setup.X_s[mine]  # rows of the data, this rank's share
    h, tmp, tally = torch.zeros_like(state.alpha), centers.temporary(), Tally(setup.loss)
    tmp.alpha_s = alpha_s = state.alpha.new_zeros(centers.s, h.shape[1])
    for batch in batches:
        X_m, Y_m, w_m = centers.rows(batch)
        K_mZ, K_ms = centers.block(X_m, tmp), K.dense(X_m, X_s)
        f = predict(problem, K_mZ, K_ms, state.alpha, alpha_s, tmp)
        e = f - Y_m
        g = w_m * e
        tally.add(f, Y_m, w_m, e, g)
        step = eta * g
        v = centers.sum(centers.F.T @ (K_ms.T @ step))
        alpha_s += centers.F @ v
        h -= K_mZ.transposed(step)
        h += setup.M @ v
        tmp.append(X_m[mine], -step[mine])
        state.position += len(batch)
    return h, tally


def predict(
    problem: Problem, K_mZ: Blocks, K_ms: Tensor, alpha: Tensor, alpha_s: Tensor, tmp: Temporary
) -> Tensor:
    """The auxiliary model on a batch: centers, temporary centers and subsample, summed over
    ranks.
    """

    def share(rows: slice) -> Tensor:
        f = K_mZ.add(rows) @ alpha + K_mZ.K.matmul(K_mZ.X[rows], tmp.points, tmp.alpha)
        f += K_ms[rows] @ alpha_s
        return f

    return by_tiles(problem.comm, len(K_mZ.X), share)
