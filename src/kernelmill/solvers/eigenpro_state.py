"""What EigenPro 4 carries from round to round, and how it is seen that a round went well."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Self

import torch
from torch import Tensor

from ..data import Source
from ..distributed.team import Communicator, count, shard
from ..losses import Loss
from ..planning.plan import Plan
from .base import MAX_GROWTH, State, target_energy
from .eigenpro_setup import Setup
from .shards import Shards


@dataclass
class ProjectedState(State):
    """Weights between two projections."""

    r: Tensor = field(kw_only=True)  # (p, c) what K(Z,Z) α still lacks on Z
    energy: float = 0.0  # mean weighted loss of predicting nothing
    epoch_loss: float = 0.0  # of this epoch so far: a weighted sum, and the weight
    epoch_weight: float = 0.0

    @classmethod
    def of(cls, plan: Plan, alpha: Tensor) -> Self:
        return cls(plan, alpha, r=torch.zeros_like(alpha))


@dataclass
class EigenPro4State(ProjectedState):
    """The same, and what the steps need beside it."""

    f_s: Tensor | None = None  # (s, c) values on the subsample; only with a ridge
    # (p, c) mean gradient of the last epoch, on Z; only with the control variate.
    D: Tensor | None = None
    D_next: Tensor | None = None  # the same of this epoch, so far
    # (n, c) gradient of each row when last seen. A step back may reread rows, which is harmless.
    g_last: Tensor | None = None
    # In g_last: after how many rows, where, what was there.
    replaced: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    SHARED = {"plan", "g_last", "replaced"}
    PASSING = {"replaced"}

    @property
    def seen(self) -> int:
        return self.epoch * self.plan.n + self.position

    def revert(self) -> None:
        for seen, rows, g in reversed(self.replaced):
            if seen > self.seen and self.g_last is not None:
                self.g_last[rows] = g


class Tally:
    """Sums over the rows of a cycle, which stay on the device: loss, loss of predicting nothing,
    weight.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._sums: list[Tensor] = []

    def add(self, f: Tensor, Y: Tensor, w: Tensor, e: Tensor, g: Tensor) -> None:
        self._sums += [
            self._loss.total(f, Y, w, e, g),
            self._loss.total_of_nothing(Y, w),
            torch.sum(w),
        ]

    def total(self) -> Tensor:
        return torch.stack(self._sums).view(-1, 3).sum(0)


def is_healthy(state: EigenPro4State, tally: Tally, centers: Shards) -> bool:
    """Whether the loss of a cycle stayed below that of predicting nothing; the one synchronisation
    of a cycle.
    """
    plan, total = state.plan, tally.total()
    loss, energy, weight, bad = centers.mean(*total, (~torch.isfinite(state.alpha)).sum().to(total))
    state.loss = loss / weight
    state.epoch_loss, state.epoch_weight = state.epoch_loss + loss, state.epoch_weight + weight
    # Judged against nothing on these rows and on the data: a short last cycle or one with an
    # outlier is no divergence.
    expected = max(energy, state.energy * max(weight, (plan.T or 1) * (plan.m or 1) / 4))
    return bad == 0 and loss <= MAX_GROWTH * expected


def is_settled(state: EigenPro4State, source: Source, centers: Shards) -> bool:
    """Whether the final weights predict some of the rows no worse than zero would: the last cycle
    has no next one to show it.
    """
    tally, rows = Tally(centers.setup.loss), source.some(1000)
    X, Y, w = centers.rows(rows)
    f = centers.sum(centers.K.matmul(X, centers.Z, state.alpha))
    e = centers.setup.loss.gradient(f, Y)
    tally.add(f, Y, w, e, w * e)
    loss, energy, weight = centers.mean(*tally.total())
    return loss <= MAX_GROWTH * max(state.energy * weight, energy)


def complete(
    state: EigenPro4State | None, setup: Setup, source: Source, comm: Communicator
) -> EigenPro4State:
    """A state to start or go on from: zero, or the given one with whatever its plan asks for and
    it lacks.
    """
    plan, K = setup.plan, setup.K
    zeros = partial(torch.zeros, dtype=K.dtype, device=K.device)
    state = state or EigenPro4State.of(plan, zeros(len(setup.Z), plan.c))
    state.plan, state.energy = plan, state.energy or target_energy(source, setup.loss, state.alpha)
    if state.position >= source.n:  # interrupted between an epoch's last cycle and its end
        next_epoch(state)
    if plan.ridge and state.f_s is None:
        state.f_s = comm.all_sum(K.matmul(setup.X_s, setup.Z, state.alpha))[shard(comm)].clone()
    if plan.control_variate and state.g_last is None:
        state.D_next, state.g_last = (
            zeros(len(setup.Z), plan.c),
            zeros(count(comm, source.n), plan.c),
        )
    return state


def next_epoch(state: EigenPro4State) -> None:
    state.epoch, state.position, state.epoch_loss, state.epoch_weight = state.epoch + 1, 0, 0.0, 0.0
    if state.D_next is not None:
        state.D, state.D_next = state.D_next, torch.zeros_like(state.D_next)
