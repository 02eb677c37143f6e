"""What EigenPro 4 carries from round to round, and how it is seen that a round went well: by the
loss of some fixed rows, the probe, after its projection.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from .. import losses
from ..data import Batch, Source
from ..distributed.team import Communicator, count, shard
from ..losses import Loss
from ..planning.plan import Plan
from .base import MAX_GROWTH, State, target_energy
from .eigenpro_setup import Setup
from .shards import Shards

PROBE_ROWS = 1000
# Times its loss before a cycle, and of the loss of predicting nothing, that a probe may have after
# it; and of the latter alone.
GROWTH, MORE, WORST = 2.0, 0.05, 1.1
# The same for the last weights, above which the best ones are taken instead.
WORSE, BY_MORE = 1.25, 0.02


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
    probe: float | None = None  # mean loss of the probe's rows after the last projection
    nothing: float = 0.0  # the same of predicting nothing
    # (p, c) weights of the lowest one so far. After a step back they may be of a lower one still.
    alpha_best: Tensor | None = None
    lowest: float = 0.0  # which

    SHARED = {"plan", "g_last", "replaced", "alpha_best"}
    PASSING = {"replaced"}

    @property
    def seen(self) -> int:
        return self.epoch * self.plan.n + self.position

    def settled(self) -> Self:
        """The best weights, where the last ones are clearly worse, or worse than nothing."""
        if self.probe is None or self.alpha_best is None:
            return self
        enough = min(WORSE * self.lowest + BY_MORE * self.nothing, self.nothing)
        if self.probe <= max(enough, self.lowest):
            return self
        return replace(self, alpha=self.alpha_best.clone(), probe=self.lowest)

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


def probe_rows(source: Source, loss: Loss, most: int) -> Batch:
    """About so many rows from all over the data. Those with a large loss where nothing is
    predicted are drawn more often and weigh less for it, so that a rare class is there.
    """
    rows = losses.sample_rows(source)
    if len(rows) <= most:
        return source.take(rows)
    Y, w = (part.double() for part in source.targets(rows))
    each = w * loss.value(torch.zeros_like(Y), Y)
    chance = 0.5 / len(rows) + 0.5 * each / each.sum().clamp(min=torch.finfo(each.dtype).tiny)
    places = (torch.arange(most).to(each) + 0.5) / most * chance.sum()
    drawn = torch.searchsorted(chance.cumsum(0), places).clamp(max=len(rows) - 1)
    drawn, times = torch.unique(drawn, return_counts=True)
    batch = source.take(rows[drawn.cpu()])
    weight = times / (most * chance[drawn])
    return replace(batch, w=batch.w * (weight / len(rows)).to(batch.w))


class Probe:
    """Some rows of the data, the same ones after every projection."""

    def __init__(self, source: Source, centers: Shards):
        self._centers = centers
        self._rows = centers.rows(probe_rows(source, centers.setup.loss, PROBE_ROWS))

    def losses(self, alpha: Tensor) -> tuple[float, float]:
        """Of the model with these weights and of predicting nothing, for a row."""
        X, Y, w = self._rows
        centers, loss = self._centers, self._centers.setup.loss
        tally = Tally(loss)
        f = centers.sum(centers.K.matmul(X, centers.Z, alpha))
        e = loss.gradient(f, Y)
        tally.add(f, Y, w, e, w * e)
        total, nothing, weight = centers.mean(*tally.total())
        return total / weight, nothing / weight

    def begin(self, state: EigenPro4State) -> None:
        """What the probe says of the weights that a run begins with. Those of another model are
        not kept as the best ones: a larger ridge makes them worse.
        """
        if state.probe is None:
            state.probe, state.nothing = self.losses(state.alpha)
            if self._centers.sum(state.alpha.abs().sum()) > 0:
                state.probe = max(state.probe, state.nothing)
            else:
                state.alpha_best, state.lowest = state.alpha.clone(), state.probe

    def accepts(self, state: EigenPro4State) -> bool:
        """Whether the weights after a projection are no worse than those before, or than nothing,
        but for chance; of the best ones a copy is kept.
        """
        before, (now, nothing) = state.probe or 0.0, self.losses(state.alpha)
        state.probe = now
        if not now <= max(before, WORST * nothing) or not now <= GROWTH * before + MORE * nothing:
            return False
        if state.alpha_best is not None and now < state.lowest:
            state.alpha_best.copy_(state.alpha)
            state.lowest = now
        return True


def is_healthy(state: EigenPro4State, tally: Tally, centers: Shards, probe: Probe) -> bool:
    """Whether the losses of a cycle, each before its own step, stayed below those of predicting
    nothing, and the model after the projection is no worse than the one before.
    """
    plan, total = state.plan, tally.total()
    loss, energy, weight, bad = centers.mean(*total, (~torch.isfinite(state.alpha)).sum().to(total))
    state.loss = loss / weight
    state.epoch_loss, state.epoch_weight = state.epoch_loss + loss, state.epoch_weight + weight
    # Judged against nothing on these rows and on the data: a short last cycle or one with an
    # outlier is no divergence.
    expected = max(energy, state.energy * max(weight, (plan.T or 1) * (plan.m or 1) / 4))
    return bad == 0 and loss <= MAX_GROWTH * expected and probe.accepts(state)


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
