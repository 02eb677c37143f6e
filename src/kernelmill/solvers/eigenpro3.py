"""EigenPro 3: a projection after every step. EigenPro 4 with T = 1, kept as the plain statement of what that one delays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator, count, shard
from ..kernels import Kernel
from ..planning import Plan, eigenpro_sizes, whole
from ..preconditioner import OVERSTEP, diagonal, row_steps
from .base import MAX_GROWTH, SMALLEST_SCALE, OnEvent, Reporter, Solver, State, target_energy
from .setup import measured, printed, step_now

DRIFT = 4.0  # times its lowest loss that an epoch may have at the end before the weights of the best one are taken
REPORT_EVERY = 50  # steps, or as many as evaluate REPORT_VALUES kernel values: with a million centers one step takes seconds
REPORT_VALUES = 10**11


@dataclass(eq=False)
class EigenPro3(Solver):
    """s, q, m, projection and recipe as in EigenPro4. Each step costs a projection: O(p²) a batch. With the default
    epochs as near to the direct solution as EigenPro4."""

    s: int | None = None
    q: int | None = None
    m: int | None = None
    projection: str = "auto"
    recipe: str = "measured"
    name = "eigenpro3"
    subsamples = True
    sharded = True

    def plan(self, base: Plan) -> Plan:
        whole("m", self.m, 1)
        base = replace(base, recipe=self.recipe)
        return eigenpro_sizes(base, s=self.s, q=self.q, projection=self.projection, control_variate=False)

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
        setup, project = prepare(kernel, source, Z, plan, comm, generator, self.m, 1)
        K, points, X_s, F, plan = setup.K, setup.Z, setup.X_s, setup.F, setup.plan
        zeros = torch.zeros(len(points), plan.c, dtype=K.dtype, device=K.device)
        state = state or State(plan, zeros, zeros.clone())
        state.energy = state.energy or target_energy(source)
        room = K.room(plan.m or 1, len(points)) if plan.keep_block else None
        own_s, report, eta = count(comm, len(X_s)), Reporter(plan, on_event), 0.0
        every = max(1, min(REPORT_EVERY, REPORT_VALUES // plan.p**2))
        trail, best = [state.copy()], state.copy()
        report("start", state.epoch, state.position, alpha=state.alpha)
        try:
            while state.epoch < plan.epochs and not state.stopped:
                for i, batch in enumerate(source.batches(plan.m or 1, state.epoch, state.position)):
                    m, eta = len(batch), step_now(plan, state)
                    X_m, Y_m, w_m = K.points(batch.X), batch.Y.to(zeros), batch.w.to(zeros)[:, None]
                    K_mZ = K.block(X_m, points, room)
                    e = comm.all_sum(K_mZ @ state.alpha) - Y_m
                    K_ms = K_mZ[:, : len(X_s)] if setup.nested and own_s == len(X_s) else K.dense(X_m, X_s)
                    limit = OVERSTEP * state.step_scale if plan.recipe == "measured" else float("inf")
                    step = row_steps(eta, w_m[:, 0] * diagonal(K, X_m, K_ms, F), limit)[:, None] * (w_m * e)
                    v = F.T @ (K_ms.T @ step)
                    if plan.ridge:
                        rho = eta * plan.ridge * m / plan.n
                        v = v + rho * (F.T @ comm.all_sum(K.matmul(X_s, points, state.alpha)))
                        state.alpha *= 1 - rho
                        state.r *= 1 - rho
                    h = -(K_mZ.T @ step)
                    if setup.nested:
                        state.alpha[:own_s] += F[shard(comm)] @ v
                    else:
                        h += setup.M @ v
                    theta, state.r = project(state.r + h)
                    state.alpha += theta
                    state.position += m
                    state.epoch_loss, state.epoch_weight = (
                        state.epoch_loss + (w_m * e * e).sum().item(),
                        state.epoch_weight + w_m.sum().item(),
                    )
                    if i % every < every - 1 and state.position < source.n:
                        continue
                    state.loss = state.epoch_loss / state.epoch_weight
                    if not state.loss <= MAX_GROWTH * state.energy:
                        last = trail.pop() if len(trail) > 1 else trail[0]
                        state = replace(last.copy(), step_scale=state.step_scale / 2)
                        report("step_back", state.epoch, state.position, eta=eta / 2, note="residuals grew: the step is halved")
                        state.stopped = "" if state.step_scale >= SMALLEST_SCALE else "the residuals grew at every step size"
                        break
                    trail = [trail[0], *trail[1:][-1:], state.copy()]
                    if report("projection", state.epoch, state.position, loss=state.loss, eta=eta, alpha=state.alpha, state=state):
                        state.stopped = "a callback asked for it"
                        break
                if state.position >= source.n:
                    state = replace(state, epoch=state.epoch + 1, position=0, epoch_loss=0.0, epoch_weight=0.0)
                    if best.loss is None or (state.loss or 0.0) < best.loss:
                        best = state.copy()
                    if report("epoch", state.epoch, 0, loss=state.loss, eta=eta, alpha=state.alpha, state=state):
                        state.stopped = "a callback asked for it"
            if not state.stopped and (state.loss or 0.0) > max(DRIFT * (best.loss or 0.0), state.energy / 100):
                state = replace(best, stopped=f"rounding in {plan.precision} drives it away from its solution: use precision='float64'")
        except KeyboardInterrupt:
            if comm.size > 1:
                raise
            state = replace(trail[-1], stopped="it was interrupted")
            report("interrupted", state.epoch, state.position, alpha=state.alpha, state=state)
        report("end", state.epoch, state.position, loss=state.loss, alpha=state.alpha, state=state)
        return state
