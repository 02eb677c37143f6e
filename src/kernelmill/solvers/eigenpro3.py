"""EigenPro 3: a projection after every step.

EigenPro 4 with T = 1, kept as the plain statement of what that one delays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import losses
from ..data import Batch
from ..distributed.team import Communicator, count
from ..losses import Loss
from ..planning.arguments import whole
from ..planning.plan import Plan
from ..preconditioner import OVERSTEP, diagonal, row_steps
from .base import MAX_GROWTH, Diverged, Problem, Report, Solver, check_loss, target_energy
from .eigenpro_setup import Setup, prepare_measured, prepare_printed, step_now
from .eigenpro_sizes import eigenpro_sizes
from .eigenpro_state import ProjectedState

# Times its lowest loss that an epoch may have at the end before the
# weights of the best one are taken.
DRIFT = 4.0
# Steps, or as many as evaluate REPORT_VALUES kernel values: with a million
# centers one step takes seconds.
REPORT_EVERY = 50
REPORT_VALUES = 10**11


@dataclass(eq=False)
class EigenPro3(Solver[Setup, ProjectedState]):
    """EigenPro 4 with a projection after every step.

    Each step costs a projection: O(p²) a batch. With the default epochs as near to the direct
    solution as EigenPro4.

    Parameters
    ----------
    s : int, optional
        Rows of the subsample that the preconditioner is computed from. None: the plan decides.
    q : int, optional
        Eigenvectors that are brought down. None: the plan decides.
    m : int, optional
        Rows of a batch. None: it is measured.
    projection : str
        How to get back into the span of the centers: "auto", "cholesky", "carried" or "one_pass".
    recipe : str
        "measured": step and batch are measured, and the step falls to zero. "paper": as published.
    loss : str or Loss
        Any smooth one of `losses`.
    """

    s: int | None = None
    q: int | None = None
    m: int | None = None
    projection: str = "auto"
    recipe: str = "measured"
    loss: losses.Given = "square"
    name = "eigenpro3"
    state = ProjectedState
    subsamples = True
    sharded = True

    @property
    def takes_ridge(self) -> bool:  # type: ignore[override]
        return self.recipe == "measured"

    def takes(self, loss: Loss) -> bool:
        return loss.is_smooth if self.recipe == "measured" else loss.name == "square"

    def plan(self, base: Plan) -> Plan:
        whole("m", self.m, 1)
        check_loss(self, base)
        base = replace(base, recipe=self.recipe)
        return eigenpro_sizes(
            base, s=self.s, q=self.q, projection=self.projection, control_variate=False
        )

    def prepare(
        self, problem: Problem, plan: Plan, state: ProjectedState | None
    ) -> tuple[Setup, ProjectedState]:
        if plan.recipe == "paper":
            setup = prepare_printed(problem, plan, self.m, 1)
        else:
            setup = prepare_measured(problem, plan, self.q, self.m, 1, losses.resolve(self.loss))
        K, plan = setup.K, setup.plan
        state = state or ProjectedState.of(
            plan, torch.zeros(len(setup.Z), plan.c, dtype=K.dtype, device=K.device)
        )
        state.energy = state.energy or target_energy(problem.source, setup.loss, state.alpha)
        return setup, state

    def rounds(self, problem: Problem, setup: Setup, state: ProjectedState) -> Iterator[Report]:
        plan, n = setup.plan, problem.source.n
        state, best = state.copy(), state.copy()
        every = max(1, min(REPORT_EVERY, REPORT_VALUES // plan.p**2))
        room = setup.K.room(plan.m or 1, len(setup.Z), passing=True) if plan.keep_block else None
        while state.epoch < plan.epochs:
            eta = None
            for i, batch in enumerate(
                problem.source.batches(plan.m or 1, state.epoch, state.position)
            ):
                eta = step_now(plan, state)
                step(batch, eta, state, setup, problem.comm, room)
                if i % every < every - 1 and state.position < n:
                    continue
                state.loss = state.epoch_loss / state.epoch_weight
                if not state.loss <= MAX_GROWTH * state.energy:
                    raise Diverged(eta)
                yield Report("projection", state.copy(), state.loss, eta)
            state = replace(
                state, epoch=state.epoch + 1, position=0, epoch_loss=0.0, epoch_weight=0.0
            )
            if best.loss is None or (state.loss or 0.0) < best.loss:
                best = state.copy()
            yield Report("epoch", state.copy(), state.loss, eta)
        if (state.loss or 0.0) > max(DRIFT * (best.loss or 0.0), state.energy / 100):
            why = (
                f"rounding in {plan.precision} drives it away from its solution: use"
                " precision='float64'"
            )
            yield Report("epoch", best, short=why)


def step(
    batch: Batch,
    eta: float,
    state: ProjectedState,
    setup: Setup,
    comm: Communicator,
    room: Tensor | None,
) -> None:
    """One step and its projection, in place."""
    K, Z, X_s, F, plan, loss = setup.K, setup.Z, setup.X_s, setup.F, setup.plan, setup.loss
    own_s, m = count(comm, len(X_s)), len(batch)
    X_m, Y_m, w_m = K.points(batch.X), batch.Y.to(state.alpha), batch.w.to(state.alpha)[:, None]
    K_mZ = K.block(X_m, Z, room)
    f = comm.all_sum(K_mZ @ state.alpha)
    e = loss.gradient(f, Y_m)
    K_ms = K_mZ[:, : len(X_s)] if setup.nested and own_s == len(X_s) else K.dense(X_m, X_s)
    limit = (
        OVERSTEP * state.step_scale / loss.largest_curvature
        if plan.recipe == "measured"
        else float("inf")
    )
    g = w_m * e
    step = row_steps(eta, w_m[:, 0] * diagonal(K, X_m, K_ms @ F), limit)[:, None] * g
    v = F.T @ (K_ms.T @ step)
    if plan.ridge:
        rho = eta * plan.ridge * m / plan.n
        v = v + rho * (F.T @ comm.all_sum(K.matmul(X_s, Z, state.alpha)))
        state.alpha *= 1 - rho
        state.r *= 1 - rho
    h = setup.M @ v - K_mZ.T @ step
    theta, state.r = setup.project(state.r + h)
    state.alpha += theta
    state.position += m
    state.epoch_loss += loss.total(f, Y_m, w_m, e, g).item()
    state.epoch_weight += w_m.sum().item()
