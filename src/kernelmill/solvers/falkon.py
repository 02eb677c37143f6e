"""Falkon: Nyström kernel ridge by preconditioned conjugate gradients (Rudi, Carratino, Rosasco,
2017); other smooth losses by Newton steps.

H α = K(Z,X) w Y with H = K(Z,X) w K(X,Z) + λ K(Z,Z). If the rows were n/p copies of the centers, H
would be (n/p) K² + λK, K = K(Z,Z). Falkon's two triangular factors, of K = LLᵀ and of (n/p) LᵀL +
λ, invert exactly that. The two terms commute, so its inverse is also (p/n) (K + λp/n)⁻¹ K⁻¹: two
factors of K itself, the product LᵀL is never formed, and where λp/n is below the jitter one factor
does for both. Factors and directions are float64, kernel values float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import losses
from ..errors import InputError
from ..kernels import Points
from ..losses import Loss
from ..ops import KernelProduct
from ..planning.arguments import whole
from ..planning.costs import always, factoring, values, values64
from ..planning.machine import Rates
from ..planning.plan import Plan
from ..projection import Factor, factor
from .base import Offer, Problem, Report, Setup, Solver, State, check_finite, check_loss
from .eigenpro_setup import product
from .row_blocks import Rows, Sweep, sweep_sizes

# Of the preconditioned residual, which is about how far predictions are from the direct
# solution's, relatively.
TOLERANCE = 1e-2
SMOOTH_TOLERANCE = 1e-3  # for a regression: its targets are known to more digits than classes are
ITERATIONS = 50  # of conjugate gradients, at most
SMOOTH_ITERATIONS = 200  # the same for a regression
NEWTON_STEPS = 10  # at most, of other losses than the square
SMOOTH_NEWTON_STEPS = 30  # the same for a regression
FLOOR = 10.0  # times ε‖K‖, added to K(Z,Z) in the preconditioner
# The objective may rise by this factor between two iterations before rounding is what moves it.
ROUNDING = 1.001
INNER = 20  # conjugate gradients of one Newton step, at most


@dataclass
class FalkonState(State):
    """Of other losses than the square only the weights."""

    r: Tensor | None = None  # (p, c) the residual of the normal equations
    direction: Tensor | None = None  # (p, c) where conjugate gradients go next
    energy: float = 0.0  # of the preconditioned right-hand side
    value: float = float("inf")  # of the objective


@dataclass(frozen=True)
class Equations(Setup):
    """K(X,Z) over the rows, and what inverts the normal equations roughly."""

    plan: Plan
    pre: NormalPreconditioner
    sweep: Sweep
    tolerance: float


@dataclass(eq=False)
class Falkon(Solver[Equations, FalkonState | None]):
    """Nyström kernel ridge by preconditioned conjugate gradients; Newton steps for other losses.

    Takes p² memory. The residual is about the relative distance of predictions from the direct
    solution's; where it ends far from the tolerance, it warns.

    Parameters
    ----------
    loss : str or Loss
        Any smooth one of `losses`.
    iterations : int, optional
        Conjugate gradients, or Newton steps, at most.
    tolerance : float, optional
        Relative residual at which it ends earlier. None: 1e-2 for classes, 1e-3 for numbers.
    keep : bool, optional
        Hold K(X,Z) whole. None: where it fits.
    """

    loss: losses.Given = "square"
    iterations: int | None = None
    tolerance: float | None = None
    keep: bool | None = None
    name = "falkon"
    rounds_are = "iterations"
    state = FalkonState
    exact = True
    needs_ridge = True

    def takes(self, loss: Loss) -> bool:
        return loss.is_smooth

    def plan(self, base: Plan) -> Plan:
        whole("iterations", self.iterations, 1)
        squares = check_loss(self, base).name == "square"
        if self.tolerance is not None and not self.tolerance >= 0:
            raise InputError(
                f"tolerance={self.tolerance!r} was given, expected a number of 0 or more."
            )
        if not squares and not base.ridge > 0:
            raise InputError(
                f"loss={self.loss!r} needs a ridge above 0: without one, weights may grow without"
                " bound."
            )
        most = (ITERATIONS, SMOOTH_ITERATIONS) if squares else (NEWTON_STEPS, SMOOTH_NEWTON_STEPS)
        plan = replace(
            base,
            precision=base.fine or base.precision,
            epochs=self.iterations or base.epochs or most[base.regression],
        )
        return sweep_sizes(plan, factors=2 if plan.ridge else 1, keep=self.keep)

    def seconds(self, plan: Plan, rates: Rates) -> float | None:
        if self.loss_name != "square":
            return None
        n, p, c, item = plan.n, plan.p, plan.c, plan.held_bytes
        # Until they are as near as the tolerance asks: measured from n/p = 1 to 400
        # (docs/solvers.md), more where targets are smooth.
        iterations = min(plan.epochs, (4 if plan.regression else 1) * 4 * (n / p) ** 0.3)
        setup = (2 if plan.ridge else 1) * (values64(p * p, plan, rates) + factoring(p, rates))
        solves = 4 * 8 * p * p / 2 / rates.read + (
            24 * p / 1024 * rates.launch if plan.on_gpu else 0
        )
        # Twice each number, and on a GPU a rate that a single product reaches and a sweep does not
        # (1.4, measured on an H200).
        traffic = (2.8 if plan.on_gpu else 2) * n * p * item / rates.read * max(1.0, c / 10)
        blocks = math.ceil(n / plan.sweep_rows) * (100 if plan.on_gpu else 12) * rates.launch
        once = values(n * p, plan, rates)
        if plan.keep_all:
            # Touching fresh memory is what costs.
            written = n * p * item / rates.read * (1 if plan.on_gpu else 12)
            return (
                always(plan)
                + setup
                + once
                + written
                + traffic / 2
                + iterations * (traffic + solves + blocks)
            )
        again = once + traffic if plan.keep_block else 2 * once
        return always(plan) + setup + once + traffic / 2 + iterations * (again + solves + blocks)

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        sizes = replace(sizes, epochs=0)
        return [
            Offer("falkon, K(X,Z) kept", cls(keep=True), sizes),
            Offer("falkon, K(X,Z) recomputed", cls(keep=False), sizes),
        ]

    def prepare(
        self, problem: Problem, plan: Plan, state: FalkonState | None
    ) -> tuple[Equations, FalkonState | None]:
        usual = SMOOTH_TOLERANCE if plan.regression else TOLERANCE
        K = product(problem.kernel, problem.Z, plan, problem.comm)
        points = K.points(problem.Z)
        pre = NormalPreconditioner.of(
            K, points, plan, losses.resolve(self.loss).usual_curvature(problem.source)
        )
        sweep = Sweep(K, problem.source, points, plan)
        state = None if state is None else replace(state, plan=plan, alpha=state.alpha.double())
        return (
            Equations(plan, pre, sweep, usual if self.tolerance is None else self.tolerance),
            state,
        )

    def rounds(
        self, problem: Problem, setup: Equations, state: FalkonState | None
    ) -> Iterator[Report]:
        loss = losses.resolve(self.loss)
        if loss.name == "square":
            return conjugate_gradients(setup, state)
        wide = setup.pre.plain.L[:0]
        exact, rough = (
            loss.within(problem.source, like) for like in (wide, wide.to(setup.plan.torch_dtype))
        )
        return newton(setup, state, Objective(setup, exact, rough))


def conjugate_gradients(setup: Equations, state: FalkonState | None) -> Iterator[Report]:
    plan, pre, sweep, tolerance = setup.plan, setup.pre, setup.sweep, setup.tolerance

    def H(v: Tensor, products: list[Tensor]) -> Tensor:
        return sweep.normal(v, products) + pre.ridge(v)

    f: list[Tensor] = []  # the model's values on the rows, block by block
    if state is None or state.direction is None:
        b = sweep.right()
        alpha = torch.zeros_like(b) if state is None else state.alpha
        r = b if state is None else b - H(alpha, f)
        state = FalkonState(
            plan, alpha, r=r, direction=pre.solve(r), energy=(b * pre.solve(b)).sum().item()
        )
    elif state.epoch:
        H(state.alpha, f)
    assert state.r is not None
    size = (state.r * pre.solve(state.r)).sum(0)
    check_finite(size, plan)  # NaN would pass for converged

    energy = state.energy

    def far(times: float) -> bool:
        return size.sum().item() > (times * tolerance) ** 2 * energy

    yield Report("start", state)
    while state.epoch < plan.epochs and far(1):
        v, products = state.direction, list[Tensor]()
        assert v is not None
        q = H(v, products)
        step = size / clamp_positive((v * q).sum(0))
        alpha, r = state.alpha + step * v, state.r - step * q
        z = pre.solve(r)
        new = (r * z).sum(0)
        check_finite(new, plan)
        f = [u * step.to(u) + (f[i] if f else 0) for i, u in enumerate(products)]
        loss = sweep.loss(f)
        value = loss + (alpha * pre.ridge(alpha)).sum().item() / plan.n
        if not value <= ROUNDING * state.value:
            # Every step lowers it but for rounding: the last weights are as
            # good as this precision gives.
            if state.epoch <= 1 and far(10):
                why = (
                    f"{plan.precision} has no more digits for it: use precision='float64' or a"
                    " smaller bandwidth"
                )
                yield Report("epoch", state, short=why)
            return
        state = replace(
            state,
            alpha=alpha,
            r=r,
            direction=z + new / clamp_positive(size) * v,
            epoch=state.epoch + 1,
            loss=loss,
            value=value,
        )
        size = new
        yield Report("epoch", state, loss)
    if state.epoch == plan.epochs > 1 and far(10):
        why = (
            "no more were allowed, and it is still far from its tolerance: use more, a"
            " larger ridge or solver='direct'"
        )
        yield Report("epoch", state, short=why)


@dataclass(frozen=True)
class Objective:
    """Σ w·loss + λ‖f‖², its gradient and its curvature, over weights α: f = K(X,Z) α."""

    setup: Equations
    loss: Loss  # in float64
    rough: Loss  # in the precision of K: for the curvature

    def value_and_gradient(self, alpha: Tensor) -> tuple[float, Tensor]:
        value, parts = 0.0, torch.zeros_like(alpha)
        weights = alpha.to(self.setup.plan.torch_dtype)
        for rows in self.setup.sweep:
            f, Y = (rows.K_XZ @ weights).double(), rows.Y.double()
            value += (rows.w[:, 0].double() * self.loss.value(f, Y)).sum().item()
            parts += (rows.K_XZ.T @ (rows.w * (2 * self.loss.gradient(f, Y)).to(rows.w))).double()
        reg = self.setup.pre.ridge(alpha)
        return value + (alpha * reg).sum().item(), parts + 2 * reg

    def hessian(self, alpha: Tensor) -> Callable[[Tensor], Tensor]:
        weights = alpha.to(self.setup.plan.torch_dtype)

        def times(v: Tensor) -> Tensor:
            v_ = v.to(weights)

            def part(rows: Rows) -> Tensor:
                return rows.w * (
                    2 * self.rough.curvature(rows.K_XZ @ weights, rows.Y, rows.K_XZ @ v_)
                )

            return self.setup.sweep.total(part) + 2 * self.setup.pre.ridge(v)

        return times


def newton(setup: Equations, state: FalkonState | None, loss: Objective) -> Iterator[Report]:
    """Newton steps, each by conjugate gradients, halved until the loss falls."""
    plan, pre = setup.plan, setup.pre
    if state is None:
        state = FalkonState(
            plan, torch.zeros(plan.p, plan.c, dtype=torch.float64, device=pre.plain.L.device)
        )
    yield Report("start", state)
    value, gradient = loss.value_and_gradient(state.alpha)
    check_finite(gradient, plan)
    while state.epoch < plan.epochs:
        step = newton_step(loss.hessian(state.alpha), pre, gradient)
        slope, scale = (gradient * step).sum().item(), 1.0
        while True:
            after, gradient_after = loss.value_and_gradient(state.alpha + scale * step)
            if after <= value + 1e-4 * scale * slope or scale < 1e-4:
                break
            scale /= 2
        gain = value - after
        if gain <= 0:
            return
        value, gradient = after, gradient_after
        state = replace(
            state, alpha=state.alpha + scale * step, epoch=state.epoch + 1, loss=value / plan.n
        )
        yield Report("epoch", state, state.loss)
        if gain <= setup.tolerance**2 * abs(value):
            return
        if state.epoch == plan.epochs > 1 and gain > (10 * setup.tolerance) ** 2 * abs(value):
            why = (
                "no more were allowed, and the loss still falls: use more iterations, or"
                " a larger ridge"
            )
            yield Report("epoch", state, short=why)


def newton_step(
    H: Callable[[Tensor], Tensor], pre: NormalPreconditioner, gradient: Tensor
) -> Tensor:
    """H⁻¹ (−gradient), to a tenth."""
    r = -gradient
    z = pre.solve(r)
    size, v, step = (r * z).sum(), z, torch.zeros_like(r)
    first = size
    for _ in range(INNER):
        q = H(v)
        a = size / clamp_positive((v * q).sum())
        step, r = step + a * v, r - a * q
        z = pre.solve(r)
        new = (r * z).sum()
        v, size = z + new / clamp_positive(size) * v, new
        if new <= 0.01 * first:
            break
    return step


def clamp_positive(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny)


@dataclass(frozen=True)
class NormalPreconditioner:
    """r ↦ (ω (n/p) K² + λK)⁻¹ r, for the square loss ω = 1; and v ↦ λKv."""

    plain: Factor  # of K(Z,Z)
    shifted: Factor  # of K(Z,Z) + λp/(ωn)
    scale: float
    lam: float

    @classmethod
    def of(cls, K: KernelProduct, Z: Points, plan: Plan, omega: float) -> NormalPreconditioner:
        share = plan.p / (plan.n * omega)
        K_ZZ = K.dense64(Z, Z)
        # float32 sums are off by some ε‖K‖ in every direction: smaller ones must not be blown up.
        # In float64 neither, unless the ridge rules there: the centers are a poor sample of the
        # rows in such directions, and the iterations would be spent on them.
        norm, single = (
            max(rows.abs().sum(1).max().item() for rows in K_ZZ.split(1024)),
            torch.finfo(torch.float32).eps,
        )
        wide = K.dtype == torch.float64 and not plan.rounds_values
        wide = wide and plan.ridge * share > single * norm
        floor = FLOOR * (torch.finfo(torch.float64).eps if wide else single) * norm
        K_ZZ.diagonal().add_(floor)
        first = factor(K_ZZ, K.dtype)
        first = replace(first, jitter=first.jitter + floor)
        second = first
        if plan.ridge * share > first.jitter:
            del K_ZZ
            shifted = K.dense64(Z, Z)
            shifted.diagonal().add_(plan.ridge * share + floor)
            second = factor(shifted, K.dtype)
        return cls(first, second, share, plan.ridge)

    def solve(self, r: Tensor) -> Tensor:
        return self.scale * self.shifted.solve(self.plain.solve(r))

    def ridge(self, v: Tensor) -> Tensor:
        if not self.lam:
            return torch.zeros_like(v)
        L = self.plain.L
        return self.lam * (L @ (L.T @ v) - self.plain.jitter * v)
