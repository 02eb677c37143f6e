"""Falkon: Nyström kernel ridge by preconditioned conjugate gradients (Rudi, Carratino, Rosasco, 2017); the logistic loss by Newton steps.

H α = K(Z,X) w Y with H = K(Z,X) w K(X,Z) + λ K(Z,Z). If the rows were n/p copies of the centers, H would be (n/p) K² + λK, K = K(Z,Z).
Falkon's two triangular factors, of K = LLᵀ and of (n/p) LᵀL + λ, invert exactly that. The two terms commute, so its inverse is also
(p/n) (K + λp/n)⁻¹ K⁻¹: two factors of K itself, the product LᵀL is never formed, and where λp/n is below the jitter one factor does for
both. Factors and directions are float64, kernel values float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..errors import InputError, one_of
from ..kernels import Kernel, Points
from ..ops import KernelProduct
from ..planning import Plan, sweep_sizes, whole
from ..projection import Factor, factor
from .base import OnEvent, Reporter, Solver, State, alone, check_finite
from .setup import product
from .sweep import Rows, Sweep

LOSSES = ["square", "logistic"]
# Of the preconditioned residual, which is about how far predictions are from the direct solution's, relatively.
TOLERANCE = 1e-2
SMOOTH_TOLERANCE = 1e-3  # for a regression: its targets are known to more digits than classes are
ITERATIONS = {"square": 50, "logistic": 10}  # at most: conjugate gradients, Newton steps
SMOOTH_ITERATIONS = 200  # of conjugate gradients for a regression
FLOOR = 10.0  # times ε‖K‖, added to K(Z,Z) in the preconditioner
ROUNDING = 1.001  # the objective may rise by this factor between two iterations before rounding is what moves it
INNER = 20  # conjugate gradients of one Newton step, at most


@dataclass(eq=False)
class Falkon(Solver):
    """loss: "square" or "logistic"; iterations: of conjugate gradients, or Newton steps, at most; tolerance: relative residual at which it
    ends before, None: 1e-2 for classes, 1e-3 for numbers. keep: hold K(X,Z) whole; None: where it fits. Takes p² memory.
    The residual is about the distance of predictions from the direct solution's, relatively; far from the tolerance it warns."""

    loss: str = "square"
    iterations: int | None = None
    tolerance: float | None = None
    keep: bool | None = None
    name = "falkon"
    needs_ridge = True

    @property
    def loss_name(self) -> str:  # type: ignore[override]
        return self.loss

    def intercept(self, mean: Tensor) -> Tensor:
        if self.loss == "square":
            return mean
        logs = mean.clamp(min=1e-12).log()
        return logs - logs.mean()

    def plan(self, base: Plan) -> Plan:
        whole("iterations", self.iterations, 1)
        if self.loss not in LOSSES:
            raise one_of("loss", self.loss, LOSSES)
        if self.tolerance is not None and not self.tolerance >= 0:
            raise InputError(f"tolerance={self.tolerance!r} was given, expected a number of 0 or more.")
        if self.loss == "logistic" and not base.ridge > 0:
            raise InputError("loss='logistic' needs a ridge above 0: without one, weights grow without end where classes can be separated.")
        most = SMOOTH_ITERATIONS if base.regression else ITERATIONS[self.loss]
        plan = replace(base, precision=base.fine or base.precision, epochs=self.iterations or base.epochs or most)
        return sweep_sizes(plan, factors=2 if plan.ridge else 1, keep=self.keep)

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
        tolerance = self.tolerance if self.tolerance is not None else SMOOTH_TOLERANCE if plan.regression else TOLERANCE
        K = product(kernel, Z, plan, comm)
        points = K.points(Z)
        pre = Preconditioner.of(K, points, plan, 1.0 if self.loss == "square" else curvature(source.mean))
        sweep = Sweep(K, source, points, plan)
        report("start", state.epoch if state else 0, 0, alpha=None if state is None else state.alpha)
        try:
            if self.loss == "logistic":
                state = self._newton(sweep, pre, source, plan, state, report, tolerance)
            else:
                state = self._conjugate_gradients(sweep, pre, plan, state, report, tolerance)
        except Interrupted as interrupted:
            state = replace(interrupted.state, stopped="it was interrupted")
            report("interrupted", state.epoch, 0, alpha=state.alpha, state=state)
        report("end", state.epoch, 0, loss=state.loss, alpha=state.alpha, state=state)
        return state

    def _conjugate_gradients(
        self, sweep: Sweep, pre: Preconditioner, plan: Plan, state: State | None, report: Reporter, tolerance: float
    ) -> State:
        def H(v: Tensor, products: list[Tensor]) -> Tensor:
            return sweep.normal(v, products) + pre.ridge(v)

        f: list[Tensor] = []  # the model's values on the rows, block by block
        if state is None or state.direction is None:
            b = sweep.right()
            alpha = torch.zeros_like(b) if state is None else state.alpha.double()
            r = b if state is None else b - H(alpha, f)
            state = State(plan, alpha, r, energy=(b * pre.solve(b)).sum().item(), direction=pre.solve(r))
        elif state.epoch:
            H(state.alpha, f)
        state.plan = plan
        size = (state.r * pre.solve(state.r)).sum(0)
        check_finite(size, plan)  # NaN would pass for converged
        try:
            while state.epoch < plan.epochs and not state.stopped and size.sum().item() > tolerance**2 * state.energy:
                v, products = state.direction, list[Tensor]()
                assert v is not None
                q = H(v, products)
                step = size / positive((v * q).sum(0))
                alpha, r = state.alpha + step * v, state.r - step * q
                z = pre.solve(r)
                new = (r * z).sum(0)
                check_finite(new, plan)
                f = [u * step.to(u) + (f[i] if f else 0) for i, u in enumerate(products)]
                loss = sweep.loss(f)
                value = loss + (alpha * pre.ridge(alpha)).sum().item() / plan.n
                if not value <= ROUNDING * state.value:
                    # Every step lowers it but for rounding: the last weights are as good as this precision gives.
                    if state.epoch <= 1 and size.sum().item() > (10 * tolerance) ** 2 * state.energy:
                        state.stopped = f"{plan.precision} has no more digits for it: use precision='float64' or a smaller bandwidth"
                    break
                state = replace(
                    state, alpha=alpha, r=r, direction=z + new / positive(size) * v, epoch=state.epoch + 1, loss=loss, value=value
                )
                size = new
                if report("epoch", state.epoch, 0, loss=state.loss, alpha=alpha.to(plan.torch_dtype), state=state):
                    state.stopped = "a callback asked for it"
        except KeyboardInterrupt:
            raise Interrupted(state) from None
        if state.epoch == plan.epochs > 1 and size.sum().item() > (10 * tolerance) ** 2 * state.energy and not state.stopped:
            state.stopped = (
                "they were all that were allowed, and it is far from its tolerance yet: use more, a larger ridge or solver='direct'"
            )
        return state

    def _newton(
        self, sweep: Sweep, pre: Preconditioner, source: Source, plan: Plan, state: State | None, report: Reporter, tolerance: float
    ) -> State:
        """Σ w·cross-entropy(softmax f, targets) + λ‖f‖²: Newton steps, each by conjugate gradients, halved until the loss falls."""
        mean = source.mean.to(pre.plain.L)
        prior = self.intercept(mean)

        def value_and_gradient(alpha: Tensor) -> tuple[float, Tensor]:
            value, parts = 0.0, torch.zeros_like(alpha)
            weights = alpha.to(plan.torch_dtype)
            for rows in sweep:
                f, t = (rows.K_XZ @ weights).double() + prior, rows.Y.double() + mean
                value += (rows.w.double() * -(t * torch.log_softmax(f, 1)).sum(1, keepdim=True)).sum().item()
                parts += (rows.K_XZ.T @ (rows.w * (torch.softmax(f, 1) - t).to(rows.w))).double()
            reg = pre.ridge(alpha)
            return value + (alpha * reg).sum().item(), parts + 2 * reg

        def hessian(alpha: Tensor) -> Callable[[Tensor], Tensor]:
            weights = alpha.to(plan.torch_dtype)

            def times(v: Tensor) -> Tensor:
                v_ = v.to(plan.torch_dtype)

                def part(rows: Rows) -> Tensor:
                    P = torch.softmax((rows.K_XZ @ weights) + prior.to(rows.w), 1)
                    U = P * (rows.K_XZ @ v_)
                    return rows.w * (U - P * U.sum(1, keepdim=True))

                return sweep.total(part) + 2 * pre.ridge(v)

            return times

        if state is None:
            zeros = torch.zeros(plan.p, plan.c, dtype=torch.float64, device=pre.plain.L.device)
            state = State(plan, zeros, torch.zeros_like(zeros))
        state.plan, state.alpha = plan, state.alpha.double()
        try:
            value, gradient = value_and_gradient(state.alpha)
            check_finite(gradient, plan)
            while state.epoch < plan.epochs and not state.stopped:
                H, r = hessian(state.alpha), -gradient
                z = pre.solve(r)
                size, v, step = (r * z).sum(), z, torch.zeros_like(r)
                first = size
                for _ in range(INNER):
                    q = H(v)
                    a = size / positive((v * q).sum())
                    step, r = step + a * v, r - a * q
                    z = pre.solve(r)
                    new = (r * z).sum()
                    v, size = z + new / positive(size) * v, new
                    if new <= 0.01 * first:
                        break
                slope, scale = (gradient * step).sum().item(), 1.0
                while True:
                    after, gradient_after = value_and_gradient(state.alpha + scale * step)
                    if after <= value + 1e-4 * scale * slope or scale < 1e-4:
                        break
                    scale /= 2
                gain = value - after
                if gain <= 0:
                    break
                state = replace(state, alpha=state.alpha + scale * step, epoch=state.epoch + 1)
                value, gradient = after, gradient_after
                state.loss = value / plan.n
                if report("epoch", state.epoch, 0, loss=state.loss, alpha=state.alpha.to(plan.torch_dtype), state=state):
                    state.stopped = "a callback asked for it"
                if gain <= tolerance**2 * abs(value):
                    break
        except KeyboardInterrupt:
            raise Interrupted(state) from None
        return state


class Interrupted(Exception):
    """Carries the last whole iteration out of a loop that was interrupted."""

    def __init__(self, state: State):
        self.state = state


def positive(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny)


def curvature(mean: Tensor) -> float:
    """Of the cross-entropy where all rows have the class shares `mean`, over 2, that of the square loss: the preconditioner assumes it."""
    return max((mean * (1 - mean)).mean().item(), 1e-3) / 2


@dataclass(frozen=True)
class Preconditioner:
    """r ↦ (ω (n/p) K² + λK)⁻¹ r, for the square loss ω = 1; and v ↦ λKv."""

    plain: Factor  # of K(Z,Z)
    shifted: Factor  # of K(Z,Z) + λp/(ωn)
    scale: float
    lam: float

    @classmethod
    def of(cls, K: KernelProduct, Z: Points, plan: Plan, omega: float) -> Preconditioner:
        share = plan.p / (plan.n * omega)
        K_ZZ = K.dense64(Z, Z)
        # float32 sums are off by some ε‖K‖ in every direction: smaller ones must not be blown up. In float64 neither, unless the ridge
        # rules there: the centers are a poor sample of the rows in such directions, and the iterations would be spent on them.
        norm, single = max(rows.abs().sum(1).max().item() for rows in K_ZZ.split(1024)), torch.finfo(torch.float32).eps
        wide = K.dtype == torch.float64 and plan.ridge * share > single * norm
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
