"""Direct: the exact solution in float64. The truth that every other solver is compared with.

Z = X: kernel ridge, (K + λ/w) α = y. Otherwise least squares in the span of Z: with K(Z,Z) = L Lᵀ the features Φ = K(X,Z) L⁻ᵀ turn the
ridge λ αᵀK(Z,Z)α into λ‖β‖², so that (ΦᵀwΦ + λ) β = Φᵀw y is well conditioned where K(Z,X)K(X,Z) + λK(Z,Z) is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..errors import InputError
from ..kernels import Kernel, Points
from ..ops import KernelProduct
from ..planning import Plan, direct_bytes
from ..projection import factor
from .base import OnEvent, Reporter, Solver, State, alone
from .sweep import normal_equations, whitened

Features = Callable[[], Iterator[tuple[Tensor, Tensor]]]

WORST = 1e13  # condition of the normal equations above which float64 has no digits left for them


@dataclass(eq=False)
class Direct(Solver):
    """No settings: there is one solution. Takes p² memory and 3·n·p² operations."""

    name = "direct"
    needs_ridge = True

    def plan(self, base: Plan) -> Plan:
        bytes = direct_bytes(base.n, base.p)
        if bytes > base.budget:
            raise InputError(
                f"solver='direct' needs {bytes / 2**30:.1f} GiB for {base.p} centers, {base.budget / 2**30:.1f} GiB may be used; "
                "use fewer centers or solver='eigenpro4', which takes memory in proportion to the centers."
            )
        return replace(base, precision="float64", epochs=1, bytes=bytes)

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
        report("start", 0, 0)
        K = KernelProduct(kernel, Z.mean(0, dtype=torch.float64), "float64", torch.device(plan.device), plan.tile_bytes)
        points = K.points(Z)
        if plan.every_row:
            rows = source.take(torch.arange(source.n))
            alpha = kernel_ridge(K.dense(points, points), rows.Y.to(K.device, K.dtype), rows.w.to(K.device, K.dtype), plan.ridge)
            state = State(plan, alpha, torch.zeros_like(alpha), epoch=1)
        else:
            state = least_squares(K, source, points, plan, report, state)
            alpha = state.alpha
        report("epoch", 1, 0, alpha=alpha)
        report("end", 1, 0, alpha=alpha)
        return state


def kernel_ridge(K_XX: Tensor, Y: Tensor, w: Tensor, ridge: float) -> Tensor:
    """(√w K √w + λ) β = √w y, α = √w β: rows of weight 0 drop out. K_XX is overwritten."""
    root = w.sqrt()[:, None]
    K_XX *= root
    K_XX *= root.T
    K_XX.diagonal().add_(ridge)
    return root * factor(K_XX).solve(root * Y)


def least_squares(K: KernelProduct, source: Source, Z: Points, plan: Plan, report: Reporter, before: State | None = None) -> State:
    """The solution for these rows and for those whose equations are in `before`."""
    L = factor(K.dense(Z, Z)).L
    features = partial(whitened, K, source, Z, L, plan, report)
    normal, right, triangle = gathered(features, plan, L, before)
    beta = None if normal is None else by_cholesky(normal, right, plan.ridge)
    if beta is None:
        triangle = folded(features(), _started(before, plan, L), plan.p) if triangle is None else triangle
        beta, normal = by_triangle(triangle, plan.p, plan.ridge), None
    alpha = torch.linalg.solve_triangular(L.T, beta, upper=True)
    return State(plan, alpha, right, normal=normal, triangle=triangle, epoch=1)


def gathered(features: Features, plan: Plan, L: Tensor, before: State | None) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """(normal matrix, right-hand side, triangle) of these rows and those before: the first two, or the third."""
    if before is not None and before.triangle is not None:
        triangle = folded(features(), before.triangle.to(L), plan.p)
        return None, torch.zeros_like(triangle[:, plan.p :]), triangle
    normal, right = normal_equations(features(), plan.p, plan.c, L)
    if before is not None and before.normal is not None:
        normal += before.normal.to(L)
        right += before.r.to(L)
    return normal, right, None


def by_cholesky(normal: Tensor, right: Tensor, ridge: float) -> Tensor | None:
    """The solution, or None where too few digits would be left. `normal` is the same afterwards."""
    diagonal = normal.diagonal().clone()
    normal.diagonal().add_(ridge)
    R, info = torch.linalg.cholesky_ex(normal)
    normal.diagonal().copy_(diagonal)
    d = R.diagonal()
    if info.item() or not (d.max() / d.min()).item() ** 2 < WORST:
        return None
    return torch.cholesky_solve(right, R)


def _started(before: State | None, plan: Plan, L: Tensor) -> Tensor:
    """The triangle of the rows before."""
    if before is None or before.normal is None:
        return L.new_zeros(plan.p, plan.p + plan.c)
    normal = before.normal.to(L, copy=True)
    normal.diagonal().add_(normal.diagonal().max() / WORST)
    R = torch.linalg.cholesky(normal).T
    return torch.cat([R, torch.linalg.solve_triangular(R.T, before.r.to(L), upper=False)], 1)


def folded(features: Iterator[tuple[Tensor, Tensor]], triangle: Tensor, p: int) -> Tensor:
    """Least squares without squaring the condition: [Φ | Y] goes chunk by chunk into one triangle [R | Qᵀy]."""
    for Phi, Y in features:
        triangle = torch.linalg.qr(torch.cat([triangle, torch.cat([Phi, Y], 1)]), mode="r").R[:p]
    return triangle


def by_triangle(triangle: Tensor, p: int, ridge: float) -> Tensor:
    if ridge:
        weight = torch.cat([torch.eye(p).to(triangle) * ridge**0.5, torch.zeros_like(triangle[:, p:])], 1)
        triangle = torch.linalg.qr(torch.cat([triangle, weight]), mode="r").R[:p]
    R, right = triangle[:, :p], triangle[:, p:]
    # Directions below the rounding of the largest carry no information: they are cut, as a pseudo-inverse would.
    d = R.diagonal().abs()
    if d.min() > d.max() * 1e-13:
        return torch.linalg.solve_triangular(R, right, upper=True)
    return torch.linalg.lstsq(R.cpu(), right.cpu(), driver="gelsd", rcond=1e-13).solution.to(triangle)
