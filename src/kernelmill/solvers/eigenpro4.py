"""EigenPro 4: preconditioned SGD in the RKHS with delayed projections onto the span of the centers, in O(p) memory.

`cycle` is the paper's Algorithm 1 line by line: T steps, then one projection. What differs from the print is measured in
docs/algorithm.md: the subsample is drawn from the centers, so that the preconditioner stays inside their span; step and batch are
measured on fresh rows; the step falls linearly to zero; and from the second epoch on each row's last residual is subtracted from
its new one (a control variate, `Anchor`), so that label noise no longer drives the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from ..data import Batch, Source
from ..distributed import Communicator, count, gather, shard
from ..kernels import Kernel, Points
from ..planning import Plan, eigenpro_sizes, whole
from ..preconditioner import OVERSTEP, diagonal, row_steps
from ..projection import Projection
from .base import MAX_GROWTH, SMALLEST_SCALE, OnEvent, Reporter, Solver, State, target_energy
from .setup import Setup, leaner, measured, printed, step_now


@dataclass(eq=False)
class EigenPro4(Solver):
    """s: subsample rows; q: eigenvectors; m: batch; T: batches between projections; projection: "auto", "cholesky", "carried" or
    "one_pass"; control_variate: subtract last residuals from the second epoch on. None: the plan decides, or it is measured."""

    s: int | None = None
    q: int | None = None
    m: int | None = None
    T: int | None = None
    projection: str = "auto"
    control_variate: bool | None = None
    recipe: str = "measured"
    name = "eigenpro4"
    subsamples = True

    @classmethod
    def paper(cls, s: int = 1000, q: int = 100) -> EigenPro4:
        """The paper's own recipe: subsample of the data, the printed step, one pass from zero, no decay."""
        return cls(s=s, q=q, projection="one_pass", control_variate=False, recipe="paper")

    def plan(self, base: Plan) -> Plan:
        whole("m", self.m, 1)
        whole("T", self.T, 1)
        base = replace(base, recipe=self.recipe)
        return eigenpro_sizes(base, s=self.s, q=self.q, projection=self.projection, control_variate=self.control_variate)

    def solve(
        self,
        kernel: Kernel,
        source: Source,
        Z: Tensor,
        plan: Plan,
        comm: Communicator,
        generator: torch.Generator,
        on_event: OnEvent,
        state: State | None = None,
    ) -> State:
        prepare = printed if plan.recipe == "paper" else measured
        setup, project = prepare(kernel, source, Z, plan, comm, generator, self.m, self.T)
        plan = setup.plan
        state = complete(state, setup, source, comm)
        report, batches, anchor, eta = Reporter(plan, on_event), None, None, 0.0
        # States to step back to. Damage may show late: each further failure goes one state further back, at last to the start.
        trail = [state.copy()]
        undo: list[tuple[Tensor, Tensor]] = []  # residuals that the last cycle replaced, which the trail shares
        report("start", state.epoch, state.position, alpha=state.alpha)
        try:
            while not state.stopped:
                finished = state.epoch == plan.epochs
                good, short = False, False
                try:
                    if finished:
                        good = settled(state, setup, source, comm)
                    else:
                        if batches is None:
                            anchor = anchor_of(state, setup, project, comm)
                            batches = source.batches(plan.m or 1, state.epoch, state.position)
                        eta = step_now(plan, state, anchored=anchor is not None)
                        good = cycle(islice(batches, plan.T), state, anchor, setup, project, comm, undo)
                except torch.OutOfMemoryError:
                    short = True  # dealt with below, when what this cycle held is free again
                if short:
                    setup, project = leaner(setup, project)
                    state, batches, anchor = replace(trail[-1].copy(), plan=setup.plan, step_scale=state.step_scale), None, None
                    report("less_memory", state.epoch, state.position, note="out of memory: this cycle again, with less of it")
                    continue
                if not good:
                    last = trail.pop() if len(trail) > 1 else trail[0]
                    state, batches = replace(last.copy(), step_scale=state.step_scale / 2), None
                    note = "residuals grew: back to earlier weights, with half the step"
                    report("step_back", state.epoch, state.position, eta=eta / 2, note=note)
                    if state.step_scale < SMALLEST_SCALE:
                        state.stopped = "the residuals grew at every step size"
                    continue
                if finished:
                    break
                trail = [trail[0], *trail[1:][-1:], state.copy()]
                if report("projection", state.epoch, state.position, loss=state.loss, eta=eta, alpha=state.alpha, state=state):
                    state.stopped = "a callback asked for it"
                if state.position >= source.n:
                    mean_loss, batches = state.epoch_loss / state.epoch_weight, None
                    next_epoch(state)
                    trail[-1] = state.copy()
                    if report("epoch", state.epoch, 0, loss=mean_loss, eta=eta, alpha=state.alpha, state=state):
                        state.stopped = "a callback asked for it"
        except KeyboardInterrupt:
            seen, kept = (each.epoch * source.n + each.position for each in (state, trail[-1]))
            if seen != kept and state.g_last is not None:  # residuals of a cycle whose weights are given up
                for rows, g in reversed(undo):
                    state.g_last[rows] = g
            state = replace(trail[-1], stopped="it was interrupted")
            report("interrupted", state.epoch, state.position, alpha=state.alpha, state=state)
        report("end", state.epoch, state.position, loss=state.loss, alpha=state.alpha, state=state)
        return state


def settled(state: State, setup: Setup, source: Source, comm: Communicator) -> bool:
    """Whether the final weights predict some of the rows no worse than zero would: the last cycle has no next one to show it."""
    K = setup.K
    rows = source.some(1000)
    e = comm.all_sum(K.matmul(K.points(rows.X), setup.Z, state.alpha)) - rows.Y.to(state.alpha)
    w = rows.w.to(e)[:, None]
    expected = max(state.energy, ((w * rows.Y.to(e) ** 2).sum() / w.sum()).item())
    return ((w * e * e).sum() / w.sum()).item() <= MAX_GROWTH * expected


def complete(state: State | None, setup: Setup, source: Source, comm: Communicator) -> State:
    """A state to start or go on from: zero, or the given one with whatever its plan asks for and it lacks."""
    plan, K = setup.plan, setup.K
    zeros = partial(torch.zeros, dtype=K.dtype, device=K.device)
    state = state or State(plan, zeros(len(setup.Z), plan.c), zeros(len(setup.Z), plan.c))
    state.plan, state.energy = plan, state.energy or target_energy(source)
    if state.position >= source.n:  # interrupted between an epoch's last cycle and its end
        next_epoch(state)
    if plan.ridge and state.f_s is None:
        state.f_s = comm.all_sum(K.matmul(setup.X_s, setup.Z, state.alpha))
    if plan.control_variate and state.g_last is None:
        state.D_next, state.g_last = zeros(len(setup.Z), plan.c), zeros(source.n, plan.c)
    return state


@dataclass
class Temporary:
    """Z_tmp and α_tmp: this rank's share of the rows seen since the last projection, in buffers made once."""

    x: Tensor
    sq: Tensor
    weights: Tensor
    used: int = 0

    def append(self, X: Points, weights: Tensor) -> None:
        rows = slice(self.used, self.used + len(X))
        self.x[rows], self.sq[rows], self.weights[rows] = X.x, X.sq, weights
        self.used += len(X)

    @property
    def points(self) -> Points:
        return Points(self.x[: self.used], self.sq[: self.used])

    @property
    def alpha(self) -> Tensor:
        return self.weights[: self.used]


def cycle(
    batches: Iterable[Batch],
    state: State,
    anchor: Anchor | None,
    setup: Setup,
    project: Projection,
    comm: Communicator,
    undo: list[tuple[Tensor, Tensor]] | None = None,
) -> bool:
    """T steps and the projection, in place. False where the residuals grew past the targets: the state is then spoiled."""
    K, Z, X_s, F, plan = setup.K, setup.Z, setup.X_s, setup.F, setup.plan
    alpha, r, mine, own_s = state.alpha, state.r, shard(comm), count(comm, len(setup.X_s))
    room = (plan.T or 1) * (plan.m or 1)
    tmp = Temporary(Z.x.new_empty(room, Z.x.shape[1]), Z.sq.new_empty(room), alpha.new_empty(room, plan.c))
    h = torch.zeros_like(alpha)
    # X_s among the centers: its weights are α's own first rows, and its columns of K_mZ are there already.
    alpha_s, F_s = (alpha[:own_s], F[mine]) if setup.nested else (alpha.new_zeros(len(X_s), plan.c), F)
    block = K.room(plan.m or 1, len(Z)) if plan.keep_block else None
    sums: list[Tensor] = []  # loss, energy of the targets and weight of each batch: added up on the device, read once
    seen = []

    for batch in batches:
        m, eta = len(batch), step_now(plan, state, anchored=anchor is not None)
        X_m, Y_m, w_m = K.points(batch.X), batch.Y.to(alpha), batch.w.to(alpha)[:, None]
        K_mZ = K.block(X_m, Z, block)
        e = comm.all_sum(K_mZ @ alpha + K.matmul(X_m, tmp.points, tmp.alpha)) - Y_m
        K_ms = K_mZ[:, : len(X_s)] if setup.nested and own_s == len(X_s) else K.dense(X_m, X_s)
        if not setup.nested:
            e += K_ms @ alpha_s
        g = w_m * e
        sums += [torch.sum(e * g), torch.sum(w_m * Y_m * Y_m), torch.sum(w_m)]

        change = anchor.difference(batch, g) if anchor else g
        if plan.recipe == "paper":
            step = eta * change
        else:
            k = w_m[:, 0] * diagonal(K, X_m, K_ms, F, setup.rough)
            step = row_steps(eta, k, (1.0 if anchor else OVERSTEP) * state.step_scale)[:, None] * change
        v = F.T @ (K_ms.T @ step)

        if state.f_s is not None:  # ridge: f ← f − ρ P f, all of it known already
            rho = eta * plan.ridge * m / plan.n
            u = rho * (F.T @ state.f_s)
            for part in (alpha, r, h, tmp.alpha, state.f_s):
                part *= 1 - rho
            state.f_s += setup.pre.KF @ (u + v) - K_ms.T @ step
            v = v + u
        if anchor:
            anchor.step(eta * m, state)
        alpha_s += F_s @ v
        if not setup.nested:
            h += setup.M @ v
        if state.D_next is None or state.epoch + 1 == plan.epochs:
            h -= K_mZ.T @ step
        else:  # one pass over the block for both: this batch's h, and its part of the mean gradient for the next epoch
            both = K_mZ.T @ torch.cat([step, g / plan.n], 1)
            h -= both[:, : plan.c]
            state.D_next += both[:, plan.c :]
        if state.g_last is not None:
            seen.append((batch.rows, g))
        tmp.append(X_m[mine], -step[mine])
        state.position += m

    del block, tmp  # their memory is the projection's now
    K_mZ = K_ms = None
    theta, left = project(r + h)
    alpha += theta
    if state.f_s is not None:
        state.f_s += gather(comm, (r - left)[:own_s], 0, len(X_s))
    state.r = left
    # The one synchronisation of a cycle: its sums, and whether the weights are finite.
    loss, energy, weight, bad = torch.cat([torch.stack(sums).view(-1, 3).sum(0), (~torch.isfinite(alpha)).sum()[None]]).tolist()
    state.loss = loss / weight
    # Judged against the targets of these rows and of the data: a short last cycle or one with an outlier is no divergence.
    expected = max(energy, state.energy * max(weight, room / 4))
    good = bad == 0 and loss <= MAX_GROWTH * expected
    state.epoch_loss, state.epoch_weight = state.epoch_loss + loss, state.epoch_weight + weight
    if good and state.g_last is not None:
        if undo is not None:
            undo[:] = [(rows, state.g_last[rows]) for rows, _ in seen]
        for rows, g in seen:
            state.g_last[rows] = g
    return good


@dataclass
class Anchor:
    """The control variate of one epoch. A step on g − g_last plus the mean of K(·,x) g_last has the same mean as a step on g, and
    its noise vanishes as residuals settle; so the run tends to the direct solution without a vanishing step."""

    g_last: Tensor  # (n, c), shared with the state
    psi: Tensor  # (p, c) weights of P K(·,X) g_last / n, as far as it was projected
    r: Tensor  # (p, c) what was not
    f_s: Tensor  # (s, c) values of the projected part on the subsample

    def difference(self, batch: Batch, g: Tensor) -> Tensor:
        return g - self.g_last[batch.rows]

    def step(self, size: float, state: State) -> None:
        state.alpha -= size * self.psi
        state.r -= size * self.r
        if state.f_s is not None:
            state.f_s -= size * self.f_s


def anchor_of(state: State, setup: Setup, project: Projection, comm: Communicator) -> Anchor | None:
    """From the mean gradient D of the last epoch: K(Z,Z) ψ = D, less the preconditioner's part on the subsample."""
    if state.D is None or state.g_last is None:
        return None
    s, own_s = len(setup.X_s), count(comm, len(setup.X_s))
    psi, r = project(state.D)
    u = setup.F.T @ gather(comm, state.D[:own_s], 0, s)
    f_s = gather(comm, (state.D - r)[:own_s], 0, s) - setup.pre.KF @ u
    psi[:own_s] -= setup.F[shard(comm)] @ u
    return Anchor(state.g_last, psi, r, f_s)


def next_epoch(state: State) -> None:
    state.epoch, state.position, state.epoch_loss, state.epoch_weight = state.epoch + 1, 0, 0.0, 0.0
    if state.D_next is not None:
        state.D, state.D_next = state.D_next, torch.zeros_like(state.D_next)
