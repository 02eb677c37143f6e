"""SGPR (Titsias, 2009): a Gaussian process whose inducing points are the centers: mean, variance,
bandwidth and noise from a bound.

With Φ = K(X,Z) L⁻ᵀ, K(Z,Z) = L Lᵀ, Q = ΦΦᵀ and signal variance s², noise σ² = λs², the bound on
the log evidence is

    log N(Y | 0, s²(Q + λ/w)) − Σ w (K(x,x) − Q(x,x)) / 2λ.

A weight of k is k targets, each with noise σ²: the mean of rows of the same X, which are merged
into one of their joint weight, has noise σ²/w, and what it lost of Σ w y² counts where the
variances are estimated. The mean is the direct solution at ridge λ. `tuning` climbs the bound over
bandwidths and λ; the best s² has a closed form. The variance of a new target at x is s² (K(x,x) −
‖φ(x)‖² + λ‖R⁻¹φ(x)‖²) + σ², R Rᵀ = ΦᵀwΦ + λ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real

import torch

from ..errors import InputError
from ..planning.costs import direct_bytes
from ..planning.plan import Plan
from ..projection import NotPositiveDefinite, factor
from .base import Problem, Report, Solver, Sparse, State
from .row_blocks import InFloat64, in_float64, whitened


@dataclass
class SGPRState(State):
    known: Sparse | None = None


@dataclass(eq=False)
class SGPR(Solver[InFloat64, SGPRState | None]):
    """A sparse Gaussian process with the centers as inducing points: `predict(X, return_std=True)`.

    A sample weight of k is k targets: give weights of mean 1 where they only say which rows matter
    more. Takes p² memory and 3·n·p² operations.

    Parameters
    ----------
    noise : float, optional
        The variance σ² of the noise of one target. None: chosen with the bandwidth, or the ridge
        times the signal's variance where a ridge is given.
    """

    noise: float | None = None
    name = "sgpr"
    rounds_are = "iterations"
    state = SGPRState
    resumable = False
    needs_ridge = True
    criterion = "elbo"

    def default_centers(self, n: int) -> int:
        return min(n, 1000)

    def plan(self, base: Plan) -> Plan:
        if self.noise is not None and (
            isinstance(self.noise, bool) or not isinstance(self.noise, Real) or not self.noise > 0
        ):
            raise InputError(
                f"noise={self.noise!r} was given, expected a variance above 0, or None to have it"
                " chosen."
            )
        if not base.regression:
            raise InputError(
                "solver='sgpr' is a Gaussian process for numbers; use KernelRegressor, or another"
                " solver for classes."
            )
        if not base.ridge > 0:
            raise InputError(
                "solver='sgpr' needs a ridge above 0: it is the noise over the signal's variance."
            )
        bytes = direct_bytes(base.p, every_row=False)
        if bytes > base.budget:
            raise InputError(
                f"solver='sgpr' needs {bytes / 2**30:.1f} GiB for {base.p} centers,"
                f" {base.budget / 2**30:.1f} GiB may be used; use fewer centers."
            )
        return replace(base, precision="float64", epochs=1, bytes=bytes)

    def prepare(
        self, problem: Problem, plan: Plan, state: SGPRState | None
    ) -> tuple[InFloat64, None]:
        return InFloat64(plan, *in_float64(problem, plan)), None

    def rounds(
        self, problem: Problem, setup: InFloat64, state: SGPRState | None
    ) -> Iterator[Report]:
        K, Z, plan, source = setup.K, setup.Z, setup.plan, problem.source
        L = factor(K.dense(Z, Z)).L
        normal, right = L.new_zeros(plan.p, plan.p), L.new_zeros(plan.p, plan.c)
        for Phi, Y, seen in whitened(K, source, Z, L, plan):
            normal.addmm_(Phi.T, Phi)
            right.addmm_(Phi.T, Y)
            yield Report("projection", None, rows=seen)
        normal.diagonal().add_(plan.ridge)
        R, info = torch.linalg.cholesky_ex(normal)
        if info.item():
            raise NotPositiveDefinite(
                f"ridge={plan.ridge:g} is too small for {plan.p} centers; use a larger one."
            )
        half = torch.linalg.solve_triangular(R, right, upper=False)
        beta = torch.linalg.solve_triangular(R.T, half, upper=True)
        alpha = torch.linalg.solve_triangular(L.T, beta, upper=True)
        squares = sum(
            (batch.w.to(L)[:, None] * batch.Y.to(L) ** 2).sum(0) for batch in source.sweep(65_536)
        )
        if plan.scatter is not None:
            squares = squares + torch.tensor(plan.scatter).to(L) / plan.weight
        # Inside, weights have mean 1: λ is `true`, and the rows stand for n·weight targets. yᵀ(Q +
        # λ/w)⁻¹y over their number is the signal variance under which they are likeliest.
        true = plan.ridge * plan.weight
        signal = (squares - (half * half).sum(0)) / (plan.ridge * plan.n * plan.weight)
        if self.noise is not None:
            signal = self.noise / source.scale.to(signal) ** 2 / true
        known = Sparse(L, R, signal, true * signal, plan.ridge)
        yield Report("epoch", SGPRState(plan, alpha, epoch=1, known=known))
