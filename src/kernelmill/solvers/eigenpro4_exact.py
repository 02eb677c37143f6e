"""EigenPro 4-Exact (Algorithm 2): solve in X exactly, project, repeat on the residual.

For small n; it is what EigenPro 4 approximates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..ops import bind
from ..planning.plan import Plan
from ..projection import Factor, factor
from .base import Problem, Report, Setup, Solver, State

ROUNDS = 100  # at most, where nobody said
# Of the size of the predictions: a round that moves them by less is the last of those.
MOVED = 1e-6


@dataclass(frozen=True)
class Factors(Setup):
    plan: Plan
    in_X: Factor  # of K(X,X)
    in_Z: Factor  # of K(Z,Z)
    K_XZ: Tensor
    Y: Tensor


@dataclass(eq=False)
class EigenPro4Exact(Solver[Factors, State]):
    """What EigenPro 4 approximates, for few rows: solve in X exactly, project, repeat on the
    residual. An epoch is one round; there are no settings.

    Holds K(X,X): n² numbers. Its limit is (K_ZX K_XX⁻¹ K_XZ)⁻¹ K_ZX K_XX⁻¹ y, not the direct
    solution. Centers that are rows of X get there in one round. Where no number of epochs is given
    it ends when a round moves predictions by less than 1e-6 of their size, or warns after 100.
    """

    name = "eigenpro4_exact"
    interpolates = True

    def plan(self, base: Plan) -> Plan:
        if base.ridge:
            raise InputError(
                f"ridge={base.ridge} was given, but solver='eigenpro4_exact' has none; use ridge=0,"
                " 'direct' or 'eigenpro4'."
            )
        bytes = 8 * (2 * base.n**2 + 2 * base.p**2 + base.n * base.p)
        if bytes > base.budget:
            raise InputError(
                f"solver='eigenpro4_exact' needs {bytes / 2**30:.1f} GiB for {base.n} rows,"
                f" {base.budget / 2**30:.1f} GiB may be used; use 'eigenpro4'."
            )
        return replace(base, precision="float64", epochs=base.epochs or ROUNDS, bytes=bytes)

    def prepare(self, problem: Problem, plan: Plan, state: State | None) -> tuple[Factors, State]:
        origin = problem.Z.mean(0, dtype=torch.float64)
        K = bind(problem.kernel, origin, "float64", torch.device(plan.device), plan.tile_bytes)
        rows = problem.source.take(torch.arange(problem.source.n))
        X, Y, Z = K.points(rows.X), rows.Y.to(K.device, K.dtype), K.points(problem.Z)
        setup = Factors(plan, factor(K.dense(X, X)), factor(K.dense(Z, Z)), K.dense(X, Z), Y)
        return setup, state or State(plan, Y.new_zeros(plan.p, plan.c))

    def rounds(self, problem: Problem, setup: Factors, state: State) -> Iterator[Report]:
        plan, K_XZ = setup.plan, setup.K_XZ
        moved, chosen = 1.0, plan.epochs == ROUNDS
        while state.epoch < plan.epochs and not (chosen and moved < MOVED):
            f = K_XZ @ state.alpha
            residual = setup.Y - f
            step = setup.in_Z.solve(K_XZ.T @ setup.in_X.solve(residual))
            moved = ((K_XZ @ step).norm() / f.norm().clamp(min=torch.finfo(f.dtype).tiny)).item()
            loss = (residual * residual).sum().item() / plan.n
            state = replace(state, alpha=state.alpha + step, epoch=state.epoch + 1, loss=loss)
            yield Report("epoch", state, loss)
        if chosen and not moved < MOVED:
            why = (
                "no more were allowed, and the last round moved predictions by"
                f" {moved:.0e}: use more epochs"
            )
            yield Report("epoch", state, short=why)
