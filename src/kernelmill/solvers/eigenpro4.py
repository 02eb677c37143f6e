"""EigenPro 4: preconditioned SGD in the RKHS with delayed projections onto the span of the
centers, in O(p) memory.

`rounds` and `steps` are the paper's Algorithm 1: T steps, then one projection. docs/algorithm.md
measures what differs from the print: the subsample is drawn from the centers, so that the
preconditioner stays inside their span; step and batch are measured on fresh rows; the step falls
linearly to zero; and from the second epoch on each row's last gradient is subtracted from its new
one, so that label noise no longer drives the steps (a control variate, control.py). Who has which
row is shards.py's business; the paper's own recipe is in paper.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from .. import losses
from ..data import Batch
from ..losses import Loss
from ..planning.arguments import whole
from ..planning.machine import Rates
from ..planning.plan import Plan
from ..preconditioner import row_steps
from .base import Diverged, Offer, Problem, Report, Solver, check_loss
from .control import NoControl, NoRidge, control_of, ridge_of
from .eigenpro_costs import eigenpro4_seconds
from .eigenpro_setup import Setup, prepare_measured, prepare_printed, step_now
from .eigenpro_sizes import eigenpro_sizes
from .eigenpro_state import EigenPro4State, Probe, Tally, complete, is_healthy, next_epoch
from .paper import rounds_as_printed
from .shards import Shards


@dataclass(eq=False)
class EigenPro4(Solver[Setup, EigenPro4State]):
    """Preconditioned SGD with delayed projections, in memory that grows with the centers alone.

    It ends after its epochs, which regularise: five, the default below a million rows, bring the
    loss on the training rows to within a tenth of the targets' variance of the direct solution's.

    Parameters
    ----------
    s : int, optional
        Rows of the subsample that the preconditioner is computed from. None: the plan decides.
    q : int, optional
        Eigenvectors that are brought down. None: the plan decides.
    m : int, optional
        Rows of a batch. None: it is measured.
    T : int, optional
        Batches between two projections. None: the plan decides.
    projection : str
        How to get back into the span of the centers: "auto", "cholesky", "carried" or "one_pass".
    control_variate : bool, optional
        Subtract each row's last gradient, from the second epoch on. None: where memory allows.
    recipe : str
        "measured": step and batch are measured, and the step falls to zero. "paper": as published.
    loss : str or Loss
        Any smooth one of `losses`.
    """

    s: int | None = None
    q: int | None = None
    m: int | None = None
    T: int | None = None
    projection: str = "auto"
    control_variate: bool | None = None
    recipe: str = "measured"
    loss: losses.Given = "square"
    name = "eigenpro4"
    state = EigenPro4State
    subsamples = True
    sharded = True

    @classmethod
    def paper(cls, s: int = 1000, q: int = 100) -> EigenPro4:
        """The paper's own recipe: subsample of the data, the printed step, one pass from zero, no
        decay.
        """
        return cls(s=s, q=q, projection="one_pass", control_variate=False, recipe="paper")

    @property
    def takes_ridge(self) -> bool:  # type: ignore[override]
        return self.recipe == "measured"

    def takes(self, loss: Loss) -> bool:
        return loss.is_smooth if self.recipe == "measured" else loss.name == "square"

    def plan(self, base: Plan) -> Plan:
        whole("m", self.m, 1)
        whole("T", self.T, 1)
        check_loss(self, base)
        base = replace(base, recipe=self.recipe)
        return eigenpro_sizes(
            base,
            s=self.s,
            q=self.q,
            projection=self.projection,
            control_variate=self.control_variate,
        )

    def seconds(self, plan: Plan, rates: Rates) -> float:
        return eigenpro4_seconds(plan, rates)

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        sizes = replace(sizes, every_row=False)
        return [
            Offer("eigenpro4, cholesky", cls(projection="cholesky"), sizes),
            Offer("eigenpro4, carried residual", cls(projection="carried"), sizes),
        ]

    def prepare(
        self, problem: Problem, plan: Plan, state: EigenPro4State | None
    ) -> tuple[Setup, EigenPro4State]:
        if plan.recipe == "paper":
            setup = prepare_printed(problem, plan, self.m, self.T)
        else:
            setup = prepare_measured(
                problem, plan, self.q, self.m, self.T, losses.resolve(self.loss)
            )
        return setup, complete(state, setup, problem.source, problem.comm)

    def rounds(self, problem: Problem, setup: Setup, state: EigenPro4State) -> Iterator[Report]:
        method = rounds_as_printed if self.recipe == "paper" else rounds
        return method(problem, setup, state.copy(), Shards(setup, problem.comm))


def rounds(
    problem: Problem, setup: Setup, state: EigenPro4State, centers: Shards
) -> Iterator[Report]:
    """Algorithm 1, as corrected in docs/algorithm.md: T steps, the projection of what they did, and
    so on.
    """
    plan, probe = setup.plan, Probe(problem.source, centers)
    probe.begin(state)
    while state.epoch < plan.epochs:
        control, ridge = control_of(state, centers), ridge_of(state, centers)
        batches = problem.source.batches(plan.m or 1, state.epoch, state.position)
        eta = None
        while state.position < plan.n:
            eta = step_now(plan, state, control.anchored)
            h, tally = steps(islice(batches, plan.T), state, centers, control, ridge)
            theta, left = setup.project(state.r + h)  # K(Z,Z) θ = r + h, as far as it goes
            state.alpha += theta
            ridge.project(state.r - left)
            state.r = left
            if not is_healthy(state, tally, centers, probe):
                raise Diverged(eta)
            control.keep()
            yield Report("projection", state.copy(), state.loss, eta)
        mean_loss = state.epoch_loss / state.epoch_weight
        next_epoch(state)
        yield Report("epoch", state.copy(), mean_loss, eta)


def steps(
    batches: Iterable[Batch],
    state: EigenPro4State,
    centers: Shards,
    control: NoControl,
    ridge: NoRidge,
) -> tuple[Tensor, Tally]:
    """Steps down the gradient, each batch predicted with all before it: h, (p, c), what they did
    to the model's values on the centers. m rows of a batch, p centers, of which the first s are the
    subsample, q directions, c outputs.
    """
    plan, alpha, F, s, loss = state.plan, state.alpha, centers.F, centers.s, centers.setup.loss
    h, tmp, tally = torch.zeros_like(alpha), centers.temporary(), Tally(loss)
    running, V = alpha.clone(), alpha.new_zeros(F.shape[1], alpha.shape[1])
    limit = control.limit * state.step_scale / loss.largest_curvature
    for batch in batches:
        m, eta = len(batch), step_now(plan, state, control.anchored)
        X_m, Y_m, w_m = centers.rows(batch)
        K_mZ = centers.block(X_m, tmp)  # (m, p)
        last = control.recall(batch.rows)
        f, k, last = centers.predict(K_mZ, running, tmp, last)  # (m, c), (m,), (m, c)
        e = loss.gradient(f, Y_m)  # (m, c) of the square loss f − Y_m
        g = w_m * e
        tally.add(f, Y_m, w_m, e, g)
        step = row_steps(eta, w_m[:, 0] * k, limit)[:, None] * control.change(g, last)
        down = control.down(K_mZ, step, g)  # (p, c) K(Z, X_m) step
        v = centers.sum(F.T @ ridge.seen(down[:s], eta, m))  # (q, c)
        ridge.shrink([running, V, h, tmp.alpha], v, down[:s])
        control.move(eta * m, running)
        running[:s] += F @ v  # the preconditioner: the subsample is the head of Z
        V += v
        h -= down
        control.note(g, last)
        tmp.append(X_m[centers.mine], -step[centers.mine])
        state.position += m
    # Each of the two is far larger than their sum, which is projected: weights that had to cancel
    # K(Z, Z_tmp) α_tmp would be as large.
    return h.addmm_(centers.setup.M, V), tally
