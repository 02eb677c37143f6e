"""Pegasos (Shalev-Shwartz, Singer, Srebro, 2007), kernelised: stochastic sub-gradient descent on
the hinge loss, one column per class.

Minimises Σ w·hinge + λ‖f‖², a support vector machine without intercept: C = 1/(2λ) in
scikit-learn's terms. After t batches the weights of a row are its sub-gradients so far over μt, μ
= 2λ/n. The average over the second half of the run is returned: it converges faster than the last
weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..kernels import Points
from ..losses import Hinge
from ..ops import KernelProduct
from ..planning.arguments import whole
from ..planning.plan import Plan, require_every_row
from .base import Problem, Report, Setup, Solver, State
from .eigenpro_setup import product

EPOCHS = 20
HINGE = Hinge()
FAR = 0.2  # of the objective: a duality gap above it is worth a warning


@dataclass
class PegasosState(State):
    S: Tensor = field(kw_only=True)  # (n, c) sum of sub-gradients
    # (n, c) sum of the weights after each batch of the second half.
    average: Tensor = field(kw_only=True)


@dataclass(frozen=True)
class Rows(Setup):
    """The rows as the kernel sees them, and the mean that was taken off their targets."""

    plan: Plan
    K: KernelProduct
    X: Points
    mean: Tensor


@dataclass(eq=False)
class Pegasos(Solver[Rows, PegasosState]):
    """A support vector machine for each class, by stochastic sub-gradients of the hinge loss.

    An epoch evaluates n² kernel values. Where no number of epochs is given it takes 20, and one
    more evaluation for the duality gap: the objective is within a fifth of the least there is, or
    it warns.

    Parameters
    ----------
    m : int, optional
        Rows of a batch. None: the plan decides.
    """

    m: int | None = None
    name = "pegasos"
    state = PegasosState
    needs_ridge = True
    every_row = True
    loss = "hinge"

    def plan(self, base: Plan) -> Plan:
        require_every_row(base)
        whole("m", self.m, 1)
        if not base.ridge > 0:
            raise InputError(
                "solver='pegasos' needs a ridge above 0: its step is 1 over the ridge."
            )
        m = min(base.n, self.m or 64)
        row = base.features * base.feature_bytes + base.d * base.x_bytes + base.itemsize
        return replace(
            base,
            epochs=base.epochs or EPOCHS,
            m=m,
            bytes=base.n * (row + 8 * base.c * 8) + 2 * base.tile_bytes,
        )

    def prepare(
        self, problem: Problem, plan: Plan, state: PegasosState | None
    ) -> tuple[Rows, PegasosState]:
        """Z holds the source's rows in their order."""
        K = product(problem.kernel, problem.Z, plan, problem.comm)
        if state is None:
            zeros = torch.zeros(plan.n, plan.c, dtype=torch.float64, device=K.device)
            state = PegasosState(plan, zeros, S=zeros.clone(), average=zeros.clone())
        mean = problem.source.mean.to(K.device, torch.float64)
        return Rows(plan, K, K.points(problem.Z), mean), replace(state, plan=plan)

    def rounds(self, problem: Problem, setup: Rows, state: PegasosState) -> Iterator[Report]:
        plan, K, X, mean, source = setup.plan, setup.K, setup.X, setup.mean, problem.source
        m, mu = plan.m or 1, 2 * plan.ridge / plan.n
        steps = -(-plan.n // m)
        half = plan.epochs * steps // 2
        while state.epoch < plan.epochs:
            S, average, losses = state.S.clone(), state.average.clone(), []
            t = state.epoch * steps
            for batch in source.batches(m, state.epoch):
                rows, w = batch.rows.to(K.device), batch.w.to(S)[:, None]
                # 1 for the row's class; a share where equal rows differ.
                target = batch.Y.to(S) + mean
                f = (
                    K.matmul(X[rows], X, (S / (mu * t)).to(K.dtype)).double()
                    if t
                    else torch.zeros_like(target)
                )
                losses.append((w[:, 0] * HINGE.value(f, target)).sum())
                S[rows] -= 2 * w * HINGE.gradient(f, target) * (steps / plan.n)
                t += 1
                if t > half:
                    average += S / (mu * t)
            alpha = average / max(1, t - half) if t > half else S / (mu * t)
            loss = torch.stack(losses).sum().item() / plan.n
            state = replace(
                state, alpha=alpha, S=S, average=average, epoch=state.epoch + 1, loss=loss
            )
            yield Report("epoch", state, loss)
        if plan.epochs == EPOCHS:
            target, w = (part.to(mean) for part in source.targets(torch.arange(source.n)))
            f = K.matmul(X, X, state.alpha.to(K.dtype)).double()
            if (gap := duality_gap(state.alpha, f, target + mean, w[:, None], mu)) > FAR:
                may = f"the objective may still fall by {min(1.0, gap):.0%}"
                yield Report(
                    "epoch",
                    state,
                    short=(f"no more were allowed, and {may}: use more, or a larger ridge"),
                )


def duality_gap(alpha: Tensor, f: Tensor, target: Tensor, w: Tensor, mu: float) -> float:
    """How far the objective can still fall, as a share of it: its value at f = K α less the dual
    one at the same weights.

    A row's weight is α = w (a⁺ − a⁻)/μn with 0 ≤ a⁺ ≤ target and 0 ≤ a⁻ ≤ 1 − target, and the dual
    is Σ w (a⁺ + a⁻)/n − μ αᵀKα/2.
    """
    n = len(alpha)
    norm = mu / 2 * (alpha * f).sum()
    primal = (w[:, 0] * HINGE.value(f, target)).sum() / n + norm
    difference = torch.minimum(torch.maximum(alpha * mu * n / w, target - 1), target)
    dual = (w * (2 * torch.minimum(target, 1 - target + difference) - difference)).sum() / n - norm
    return ((primal - dual) / primal.clamp(min=torch.finfo(primal.dtype).tiny)).item()
