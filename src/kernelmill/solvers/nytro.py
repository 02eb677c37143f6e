"""NYTRO (Camoriano, Angles, Rudi, Rosasco, 2016): Nyström features and gradient descent; when to
stop is the regularisation.

In the coordinates β = Lᵀα, K(Z,Z) = L Lᵀ, the loss is that of a linear model with features K(x,Z)
L⁻ᵀ. A step γ down its gradient is α ← v + γ K(Z,Z)⁻¹ (K(Z,X) w (Y − f(X)) − λ K(Z,Z) v), with γ =
1 over the largest curvature, at a point v that is ahead of α (Nesterov): k steps go as far as k²/4
of the paper's plain ones, whose path they follow (Pagliana, Rosasco, 2019). Plain steps are so
short that the accuracy of held-out rows stood still for 20 of them while the loss fell by 4 %, and
training ended far from its best. The estimator scores held-out rows after each step and keeps the
best weights. Run long, it tends to the direct solution at the same ridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..planning.arguments import whole
from ..planning.plan import Plan
from ..projection import Factor, factor
from .base import Problem, Report, Setup, Solver, State
from .eigenpro_setup import product
from .row_blocks import Sweep, sweep_sizes

ITERATIONS = 1000
FALLING = 0.02  # of the loss, in the last tenth of these steps: so much is no end
# For the largest curvature; 1.1 times it is taken, since they come from below.
POWER_ITERATIONS = 15


@dataclass
class NYTROState(State):
    ahead: Tensor | None = None  # (p, c) the point whose gradient is taken next


@dataclass(frozen=True)
class Descent(Setup):
    """What a gradient takes: the factor of K(Z,Z), K(X,Z) over the rows, and K(Z,X) w Y."""

    plan: Plan
    F: Factor
    sweep: Sweep
    b: Tensor


@dataclass(eq=False)
class NYTRO(Solver[Descent, NYTROState]):
    """Nyström features and gradient descent, regularised by when it stops.

    With the defaults it ends where held-out rows are best, with a loss that is within a tenth of
    the targets' variance of the direct solution's, or it warns that the loss still falls.

    Parameters
    ----------
    iterations : int, optional
        Gradient steps, at most.
    keep : bool, optional
        Hold K(X,Z) whole. None: where it fits.
    """

    iterations: int | None = None
    keep: bool | None = None
    name = "nytro"
    state = NYTROState
    stops_early = True
    patience = 50  # momentum overshoots: scores dip for some 30 steps, then rise again

    def plan(self, base: Plan) -> Plan:
        whole("iterations", self.iterations, 1)
        return sweep_sizes(
            replace(base, epochs=self.iterations or base.epochs or ITERATIONS),
            factors=1,
            keep=self.keep,
        )

    def prepare(
        self, problem: Problem, plan: Plan, state: NYTROState | None
    ) -> tuple[Descent, NYTROState]:
        K = product(problem.kernel, problem.Z, plan, problem.comm)
        points = K.points(problem.Z)
        F = factor(K.dense64(points, points), torch.float32 if plan.rounds_values else K.dtype)
        sweep = Sweep(K, problem.source, points, plan)
        b = sweep.right()
        if plan.eta is None:
            v = torch.randn(plan.p, 1, generator=problem.generator, dtype=torch.float64).to(
                b.device
            )
            largest = 0.0
            for _ in range(POWER_ITERATIONS):
                v = F.solve(sweep.normal(v, []))
                largest = v.norm().item()
                v /= largest
            plan = replace(plan, eta=1 / (1.1 * largest + plan.ridge))
        state = state or NYTROState(plan, torch.zeros_like(b))
        return Descent(plan, F, sweep, b), replace(state, plan=plan, alpha=state.alpha.double())

    def rounds(self, problem: Problem, setup: Descent, state: NYTROState) -> Iterator[Report]:
        plan, F, sweep = setup.plan, setup.F, setup.sweep
        eta, late = plan.eta or 0.0, 0.0
        root = (plan.ridge * eta) ** 0.5  # of the smallest curvature over the largest
        while state.epoch < plan.epochs:
            f: list[Tensor] = []
            v = state.alpha if state.ahead is None else state.ahead
            r = setup.b - sweep.normal(v, f) - plan.ridge * (F.L @ (F.L.T @ v) - F.jitter * v)
            loss, alpha = sweep.loss(f), v + eta * F.solve(r)
            ahead = min(state.epoch / (state.epoch + 3), (1 - root) / (1 + root))
            state = replace(
                state,
                alpha=alpha,
                ahead=alpha + ahead * (alpha - state.alpha),
                epoch=state.epoch + 1,
                loss=loss,
            )
            late = late or (loss if state.epoch >= 0.9 * plan.epochs else 0.0)
            yield Report("epoch", state, loss, plan.eta)
        # Who asks for a number of steps gets it, and no word.
        chosen = self.iterations is None and plan.epochs == ITERATIONS
        if chosen and (state.loss or 0.0) < (1 - FALLING) * late:
            why = (
                "no more were allowed, and the loss still falls: use more iterations, or"
                " solver='falkon'"
            )
            yield Report("epoch", state, short=why)
