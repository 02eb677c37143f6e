"""EigenPro 4: preconditioned SGD in the RKHS with delayed projections onto the span of the centers, in O(p) memory.

`cycle` is the paper's Algorithm 1 line by line: T steps, then one projection. What differs from the print is measured in
docs/algorithm.md: the subsample is drawn from the centers, so that the preconditioner stays inside their span; step and batch are
measured on fresh rows; the step falls linearly to zero; and from the second epoch on each row's last residual is subtracted from
its new one (a control variate, `Anchor`), so that label noise no longer drives the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..data import Batch, Source
from ..distributed import Communicator, by_tiles, count, shard
from ..kernels import Points
from ..ops import KernelProduct, transposed_product
from ..planning import Plan, eigenpro_sizes, whole
from ..preconditioner import OVERSTEP, diagonal, row_steps
from .base import MAX_GROWTH, Diverged, Problem, Report, Solver, State, target_energy
from .setup import Setup, measured, printed, step_now

Look = Callable[[Callable[[Tensor], Tensor]], object]


@dataclass
class EigenPro4State(State):
    """Weights between two projections, and what the steps need beside them."""

    r: Tensor = field(kw_only=True)  # (p, c) what K(Z,Z) α still lacks on Z
    energy: float = 0.0  # mean weighted squared target, the loss of predicting nothing
    epoch_loss: float = 0.0  # of this epoch so far: a weighted sum, and the weight
    epoch_weight: float = 0.0
    f_s: Tensor | None = None  # (s, c) values on the subsample; only with a ridge
    D: Tensor | None = None  # (p, c) mean gradient of the last epoch, on Z; only with the control variate
    D_next: Tensor | None = None  # the same of this epoch, so far
    g_last: Tensor | None = None  # (n, c) residual of each row when last seen. A step back may reread rows, which is harmless
    replaced: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)  # in g_last: after how many rows, where, what was there

    SHARED = {"plan", "g_last", "replaced"}
    PASSING = {"replaced"}

    @classmethod
    def of(cls, plan: Plan, alpha: Tensor) -> EigenPro4State:
        return cls(plan, alpha, r=torch.zeros_like(alpha))

    @property
    def seen(self) -> int:
        return self.epoch * self.plan.n + self.position

    def revert(self) -> None:
        for seen, rows, g in reversed(self.replaced):
            if seen > self.seen and self.g_last is not None:
                self.g_last[rows] = g


@dataclass(eq=False)
class EigenPro4(Solver):
    """s: subsample rows; q: eigenvectors; m: batch; T: batches between projections; projection: "auto", "cholesky", "carried" or
    "one_pass"; control_variate: subtract last residuals from the second epoch on. None: the plan decides, or it is measured.

    It ends after its epochs, which regularise: five, the default below a million rows, bring the loss on the training rows to within a
    tenth of the targets' variance of the direct solution's."""

    s: int | None = None
    q: int | None = None
    m: int | None = None
    T: int | None = None
    projection: str = "auto"
    control_variate: bool | None = None
    recipe: str = "measured"
    name = "eigenpro4"
    state = EigenPro4State
    subsamples = True
    sharded = True

    @classmethod
    def paper(cls, s: int = 1000, q: int = 100) -> EigenPro4:
        """The paper's own recipe: subsample of the data, the printed step, one pass from zero, no decay."""
        return cls(s=s, q=q, projection="one_pass", control_variate=False, recipe="paper")

    def plan(self, base: Plan) -> Plan:
        whole("m", self.m, 1)
        whole("T", self.T, 1)
        base = replace(base, recipe=self.recipe)
        return eigenpro_sizes(base, s=self.s, q=self.q, projection=self.projection, control_variate=self.control_variate)

    def prepare(self, problem: Problem, plan: Plan, state: EigenPro4State | None) -> tuple[Setup, EigenPro4State]:
        setup = (printed if plan.recipe == "paper" else measured)(problem, plan, self.m, self.T)
        return setup, complete(state, setup, problem.source, problem.comm)

    def rounds(self, problem: Problem, setup: Setup, state: EigenPro4State) -> Iterator[Report]:
        state, source, comm, plan, eta = state.copy(), problem.source, problem.comm, setup.plan, 0.0
        while state.epoch < plan.epochs:
            anchor = anchor_of(state, setup, comm)
            batches = source.batches(plan.m or 1, state.epoch, state.position)
            while state.position < source.n:
                eta = step_now(plan, state, anchored=anchor is not None)
                if not cycle(islice(batches, plan.T), state, anchor, setup, comm):
                    raise Diverged(eta)
                yield Report("projection", state.copy(), state.loss, eta)
            mean_loss = state.epoch_loss / state.epoch_weight
            next_epoch(state)
            yield Report("epoch", state.copy(), mean_loss, eta)
        if not settled(state, setup, source, comm):
            raise Diverged(eta)


def settled(state: EigenPro4State, setup: Setup, source: Source, comm: Communicator) -> bool:
    """Whether the final weights predict some of the rows no worse than zero would: the last cycle has no next one to show it."""
    K = setup.K
    rows = source.some(1000)
    e = comm.all_sum(K.matmul(K.points(rows.X), setup.Z, state.alpha)) - rows.Y.to(state.alpha)
    w = rows.w.to(e)[:, None]
    loss, energy = agreed(comm, [(w * e * e).sum() / w.sum(), (w * rows.Y.to(e) ** 2).sum() / w.sum()])
    return loss <= MAX_GROWTH * max(state.energy, energy)


def agreed(comm: Communicator, numbers: list[Tensor]) -> list[float]:
    """The mean over ranks of numbers that are the same on each but for rounding, so that all decide alike."""
    return (comm.all_sum(torch.stack(numbers)) / comm.size).tolist()


def complete(state: EigenPro4State | None, setup: Setup, source: Source, comm: Communicator) -> EigenPro4State:
    """A state to start or go on from: zero, or the given one with whatever its plan asks for and it lacks."""
    plan, K = setup.plan, setup.K
    zeros = partial(torch.zeros, dtype=K.dtype, device=K.device)
    state = state or EigenPro4State.of(plan, zeros(len(setup.Z), plan.c))
    state.plan, state.energy = plan, state.energy or target_energy(source)
    if state.position >= source.n:  # interrupted between an epoch's last cycle and its end
        next_epoch(state)
    if plan.ridge and state.f_s is None:
        state.f_s = comm.all_sum(K.matmul(setup.X_s, setup.Z, state.alpha))[shard(comm)].clone()
    if plan.control_variate and state.g_last is None:
        state.D_next, state.g_last = zeros(len(setup.Z), plan.c), zeros(count(comm, source.n), plan.c)
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
    state: EigenPro4State,
    anchor: Anchor | None,
    setup: Setup,
    comm: Communicator,
) -> bool:
    """T steps and the projection, in place. False where the residuals grew past the targets: the state is then spoiled."""
    h, total, seen = steps(batches, state, anchor, setup, comm)
    theta, left = setup.project(state.r + h)
    state.alpha += theta
    if state.f_s is not None:
        state.f_s += (state.r - left)[: len(state.f_s)]
    state.r = left
    # The one synchronisation of a cycle: its sums, and whether the weights are finite.
    loss, energy, weight, bad = agreed(comm, [*total, (~torch.isfinite(state.alpha)).sum().to(total)])
    state.loss = loss / weight
    # Judged against the targets of these rows and of the data: a short last cycle or one with an outlier is no divergence.
    expected = max(energy, state.energy * max(weight, (setup.plan.T or 1) * (setup.plan.m or 1) / 4))
    good = bad == 0 and loss <= MAX_GROWTH * expected
    state.epoch_loss, state.epoch_weight = state.epoch_loss + loss, state.epoch_weight + weight
    if good and state.g_last is not None:
        state.replaced.clear()
        for rows, change in seen:
            if comm.size == 1:
                state.replaced.append((state.seen, rows, state.g_last[rows]))
            state.g_last.index_add_(0, rows, change)
    return good


def steps(
    batches: Iterable[Batch], state: EigenPro4State, anchor: Anchor | None, setup: Setup, comm: Communicator, look: Look | None = None
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """T steps: h, what they did to the model's values on Z; their loss, energy of the targets and weight; and how last residuals change.
    `look` is called after each with the auxiliary model, temporary centers included."""
    K, Z, X_s, plan, c = setup.K, setup.Z, setup.X_s, setup.plan, setup.plan.c
    alpha, r, mine, own_s = state.alpha, state.r, shard(comm), count(comm, len(setup.X_s))
    F, F_own, KF_own = setup.F, setup.F[mine], setup.pre.KF[mine]
    room = (plan.T or 1) * -(-(plan.m or 1) // comm.size)
    tmp = Temporary(Z.x.new_empty(room, Z.x.shape[1]), Z.sq.new_empty(room), alpha.new_empty(room, c))
    h = torch.zeros_like(alpha)
    # X_s among the centers: its weights are α's own first rows, and its columns of K_mZ are there already.
    alpha_s = alpha[:own_s] if setup.nested else alpha.new_zeros(own_s, c)
    memory = K.room(plan.m or 1, len(Z)) if plan.keep_block else None
    sums: list[Tensor] = []  # three of each batch: added up on the device, read once
    seen: list[tuple[Tensor, Tensor]] = []

    def shares(X_m: Points, K_mZ: Blocks, K_ms: Tensor | None, last: Tensor | None, rows: slice) -> Tensor:
        """This rank's part of what is summed over ranks: predictions, k of every size-th row, and the last residuals it keeps."""
        x, block = X_m[rows], K_mZ.add(rows)
        f = block @ alpha + K.matmul(x, tmp.points, tmp.alpha)
        if K_ms is not None:
            f += K_ms[rows] @ alpha_s
        k = f.new_zeros(len(x), 1)
        if plan.recipe != "paper":
            K_own = block[:, : len(X_s)] if setup.nested and comm.size == 1 else K.dense(x[mine], X_s)
            k[mine, 0] = diagonal(K, x[mine], K_own, F, setup.rough)
        return torch.cat([f, k, *([] if last is None else [last[rows]])], 1)

    def auxiliary(X: Tensor) -> Tensor:
        x = K.points(X)
        f = K.matmul(x, Z, alpha) + K.matmul(x, tmp.points, tmp.alpha)
        return comm.all_sum(f if setup.nested else f + K.matmul(x, X_s[mine], alpha_s))

    for batch in batches:
        m, eta = len(batch), step_now(plan, state, anchored=anchor is not None)
        X_m, Y_m, w_m = K.points(batch.X), batch.Y.to(alpha), batch.w.to(alpha)[:, None]
        K_mZ, K_ms = Blocks(K, X_m, Z, memory), None if setup.nested else K.dense(X_m, X_s[mine])
        last = Last(state.g_last, batch.rows, comm)
        summed = by_tiles(comm, m, partial(shares, X_m, K_mZ, K_ms, last.values))
        e, k = summed[:, :c] - Y_m, summed[:, c]
        g = w_m * e
        sums += [torch.sum(e * g), torch.sum(w_m * Y_m * Y_m), torch.sum(w_m)]

        change = g - summed[:, c + 1 :] if anchor else g
        if plan.recipe == "paper":
            step = eta * change
        else:
            step = row_steps(eta, w_m[:, 0] * k, (1.0 if anchor else OVERSTEP) * state.step_scale)[:, None] * change
        if state.D_next is None or state.epoch + 1 == plan.epochs:
            added = K_mZ.transposed(step)
        else:  # one pass over the block for both: this batch's h, and its part of the mean gradient for the next epoch
            both = K_mZ.transposed(torch.cat([step, g / plan.n], 1))
            added = both[:, :c]
            state.D_next += both[:, c:]

        # The preconditioner: v = Fᵀ K(X_s, X_m) step, of which each rank has its own rows of X_s.
        f_s = added[:own_s] if K_ms is None else K_ms.T @ step
        if state.f_s is None:
            v = comm.all_sum(F_own.T @ f_s)
        else:  # ridge: f ← f − ρ P f, all of it known already
            rho = eta * plan.ridge * m / plan.n
            v = comm.all_sum(F_own.T @ (f_s + rho * state.f_s))
            for part in (alpha, r, h, tmp.alpha, state.f_s):
                part *= 1 - rho
            state.f_s += KF_own @ v - f_s
        if anchor:
            anchor.step(eta * m, state)
        alpha_s += F_own @ v
        h -= added
        if not setup.nested:
            h += setup.M @ v
        if last.values is not None:
            seen.append(last.change(g, summed[:, c + 1 :]))
        tmp.append(X_m[mine], -step[mine])
        state.position += m
        if look:
            look(auxiliary)

    return h, torch.stack(sums).view(-1, 3).sum(0), seen


class Blocks:
    """K(X_m, Z), evaluated some rows at a time in memory that every batch uses again; then multiplied once more."""

    def __init__(self, K: KernelProduct, X: Points, Z: Points, memory: Tensor | None):
        self._K, self._X, self._Z, self._memory = K, X, Z, memory
        self._parts: list[tuple[slice, Any]] = []

    def add(self, rows: slice) -> Any:
        wide = -(-len(self._Z) // 8) * 8  # rows of whole 16 bytes
        memory = None if self._memory is None else self._memory[rows.start * wide : rows.stop * wide]
        self._parts.append((rows, self._K.block(self._X[rows], self._Z, memory)))
        return self._parts[-1][1]

    def transposed(self, g: Tensor) -> Tensor:
        """K(X_m, Z)ᵀ g."""
        (rows, block), *others = self._parts
        out = transposed_product(block, g[rows])
        for rows, block in others:
            out += transposed_product(block, g[rows])
        return out


class Last:
    """The residuals that the rows of a batch had when last seen, each on the rank that keeps it, and zeros elsewhere."""

    def __init__(self, g_last: Tensor | None, rows: Tensor, comm: Communicator):
        self.values = None
        if g_last is not None:
            rows = rows.to(g_last.device)
            self._own = (rows % comm.size == comm.rank)[:, None]
            self._at = (rows // comm.size).clamp(max=max(0, len(g_last) - 1))
            self.values = g_last[self._at] * self._own if len(g_last) else g_last.new_zeros(len(rows), g_last.shape[1])

    def change(self, g: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Where, and by how much, this rank's residuals change: nothing for the rows of others."""
        return self._at, (g - last) * self._own


@dataclass
class Anchor:
    """The control variate of one epoch. A step on g − g_last plus the mean of K(·,x) g_last has the same mean as a step on g, and
    its noise vanishes as residuals settle; so the run tends to the direct solution without a vanishing step."""

    psi: Tensor  # (p, c) weights of P K(·,X) g_last / n, as far as it was projected
    r: Tensor  # (p, c) what was not
    f_s: Tensor  # (s, c) values of the projected part on the subsample

    def step(self, size: float, state: EigenPro4State) -> None:
        state.alpha -= size * self.psi
        state.r -= size * self.r
        if state.f_s is not None:
            state.f_s -= size * self.f_s


def anchor_of(state: EigenPro4State, setup: Setup, comm: Communicator) -> Anchor | None:
    """From the mean gradient D of the last epoch: K(Z,Z) ψ = D, less the preconditioner's part on the subsample."""
    if state.D is None or state.g_last is None:
        return None
    own_s, F_own = count(comm, len(setup.X_s)), setup.F[shard(comm)]
    psi, r = setup.project(state.D)
    u = comm.all_sum(F_own.T @ state.D[:own_s])
    f_s = (state.D - r)[:own_s] - setup.pre.KF[shard(comm)] @ u
    psi[:own_s] -= F_own @ u
    return Anchor(psi, r, f_s)


def next_epoch(state: EigenPro4State) -> None:
    state.epoch, state.position, state.epoch_loss, state.epoch_weight = state.epoch + 1, 0, 0.0, 0.0
    if state.D_next is not None:
        state.D, state.D_next = state.D_next, torch.zeros_like(state.D_next)
