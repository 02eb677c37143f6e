"""NYTRO (Camoriano, Angles, Rudi, Rosasco, 2016): Nyström features and gradient descent; when to stop is the regularisation.

In the coordinates β = Lᵀα, K(Z,Z) = L Lᵀ, the loss is that of a linear model with features K(x,Z) L⁻ᵀ. A step γ down its gradient is
α ← v + γ K(Z,Z)⁻¹ (K(Z,X) w (Y − f(X)) − λ K(Z,Z) v), with γ = 1 over the largest curvature, at a point v that is ahead of α (Nesterov):
k steps go as far as k²/4 of the paper's plain ones, whose path they follow (Pagliana, Rosasco, 2019). Plain steps are so short that the
accuracy of held-out rows stood still for 20 of them while the loss fell by 4 %, and training ended far from its best. The estimator scores
held-out rows after each step and keeps the best weights. Run long, it tends to the direct solution at the same ridge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..kernels import Kernel
from ..planning import Plan, sweep_sizes, whole
from ..projection import factor
from .base import OnEvent, Reporter, Solver, State, alone
from .setup import product
from .sweep import Sweep

ITERATIONS = 1000
FALLING = 0.02  # of the loss, in the last tenth of these steps: so much is no end
POWER_ITERATIONS = 15  # for the largest curvature; 1.1 times it is taken, since they come from below


@dataclass(eq=False)
class NYTRO(Solver):
    """iterations: gradient steps, at most; keep: hold K(X,Z) whole; None: where it fits.

    With the defaults it ends where held-out rows are best, with a loss that is within a tenth of the targets' variance of the direct
    solution's, or it warns that the loss still falls."""

    iterations: int | None = None
    keep: bool | None = None
    name = "nytro"
    stops_early = True
    patience = 50  # momentum overshoots: scores dip for some 30 steps, then rise again

    def plan(self, base: Plan) -> Plan:
        whole("iterations", self.iterations, 1)
        return sweep_sizes(replace(base, epochs=self.iterations or base.epochs or ITERATIONS), factors=1, keep=self.keep)

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
        alone(comm, self.name)
        report = Reporter(plan, on_event)
        K = product(kernel, Z, plan, comm)
        points = K.points(Z)
        F = factor(K.dense64(points, points), K.dtype)
        sweep = Sweep(K, source, points, plan)
        b = sweep.right()
        if plan.eta is None:
            v = torch.randn(plan.p, 1, generator=generator, dtype=torch.float64).to(b.device)
            largest = 0.0
            for _ in range(POWER_ITERATIONS):
                v = F.solve(sweep.normal(v, []))
                largest = v.norm().item()
                v /= largest
            plan = replace(plan, eta=1 / (1.1 * largest + plan.ridge))
        state = state or State(plan, torch.zeros_like(b), b)
        state = replace(state, plan=plan, alpha=state.alpha.double())
        eta, late = plan.eta or 0.0, 0.0
        root = (plan.ridge * eta) ** 0.5  # of the smallest curvature over the largest
        report("start", state.epoch, 0, alpha=state.alpha)
        try:
            while state.epoch < plan.epochs and not state.stopped:
                f: list[Tensor] = []
                v = state.alpha if state.direction is None else state.direction
                r = b - sweep.normal(v, f) - plan.ridge * (F.L @ (F.L.T @ v) - F.jitter * v)
                loss, alpha = sweep.loss(f), v + eta * F.solve(r)
                ahead = min(state.epoch / (state.epoch + 3), (1 - root) / (1 + root))
                state = replace(state, alpha=alpha, direction=alpha + ahead * (alpha - state.alpha), epoch=state.epoch + 1, loss=loss)
                late = late or (loss if state.epoch >= 0.9 * plan.epochs else 0.0)
                if report("epoch", state.epoch, 0, loss=loss, eta=plan.eta, alpha=state.alpha.to(plan.torch_dtype), state=state):
                    state.stopped = "a callback asked for it"
        except KeyboardInterrupt:
            state = replace(state, stopped="it was interrupted")
            report("interrupted", state.epoch, 0, alpha=state.alpha, state=state)
        chosen = self.iterations is None and plan.epochs == ITERATIONS  # who asks for a number of steps gets it, and no word
        if chosen and state.epoch == plan.epochs and not state.stopped and (state.loss or 0.0) < (1 - FALLING) * late:
            state.stopped = "they were all that were allowed, and the loss still falls: use more iterations, or solver='falkon'"
        report("end", state.epoch, 0, loss=state.loss, alpha=state.alpha, state=state)
        return state
