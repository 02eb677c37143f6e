"""NYTRO (Camoriano, Angles, Rudi, Rosasco, 2016): Nyström features and plain gradient descent; when to stop is the regularisation.

In the coordinates β = Lᵀα, K(Z,Z) = L Lᵀ, the loss is that of a linear model with features K(x,Z) L⁻ᵀ. A step γ down its gradient is
α ← α + γ K(Z,Z)⁻¹ (K(Z,X) w (Y − f(X)) − λ K(Z,Z) α), with γ = 1 over the largest curvature. The estimator scores held-out rows after
each step and keeps the best weights. Run long, it tends to the direct solution at the same ridge.
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

ITERATIONS = 300
POWER_ITERATIONS = 15  # for the largest curvature; 1.1 times it is taken, since they come from below


@dataclass(eq=False)
class NYTRO(Solver):
    """iterations: gradient steps, at most; keep: hold K(X,Z) whole; None: where it fits."""

    iterations: int | None = None
    keep: bool | None = None
    name = "nytro"
    stops_early = True
    patience = 20

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
        report("start", state.epoch, 0, alpha=state.alpha)
        try:
            while state.epoch < plan.epochs and not state.stopped:
                f: list[Tensor] = []
                r = b - sweep.normal(state.alpha, f) - plan.ridge * (F.L @ (F.L.T @ state.alpha) - F.jitter * state.alpha)
                loss = sweep.loss(f)
                state = replace(state, alpha=state.alpha + (plan.eta or 0.0) * F.solve(r), epoch=state.epoch + 1, loss=loss)
                if report("epoch", state.epoch, 0, loss=loss, eta=plan.eta, alpha=state.alpha.to(plan.torch_dtype), state=state):
                    state.stopped = "a callback asked for it"
        except KeyboardInterrupt:
            state = replace(state, stopped="it was interrupted")
            report("interrupted", state.epoch, 0, alpha=state.alpha, state=state)
        report("end", state.epoch, 0, loss=state.loss, alpha=state.alpha, state=state)
        return state
