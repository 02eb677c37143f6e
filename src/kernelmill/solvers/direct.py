"""Direct: the exact solution in float64. The truth that every other solver is compared with.

Z = X: kernel ridge, (K + λ/w) α = y. Otherwise least squares in the span of Z: with K(Z,Z) = L Lᵀ the features Φ = K(X,Z) L⁻ᵀ turn the
ridge λ αᵀK(Z,Z)α into λ‖β‖², so that (ΦᵀwΦ + λ) β = Φᵀw y is well conditioned where K(Z,X)K(X,Z) + λK(Z,Z) is not.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """The solution for these rows, and for those of the normal equations `before`."""
    L = factor(K.dense(Z, Z)).L
    features = partial(whitened, K, source, Z, L, plan, report)
    normal, right = normal_equations(features(), plan.p, plan.c, L)
    if before is not None and before.normal is not None:
        normal += before.normal
        right += before.r
    R, info = torch.linalg.cholesky_ex(normal + plan.ridge * torch.eye(plan.p).to(L))
    d = R.diagonal()
    if info.item() == 0 and (d.max() / d.min()).item() ** 2 < WORST:
        beta = torch.cholesky_solve(right, R)
    elif before is None or before.normal is None:
        beta = by_qr(features(), plan.p, plan.c, plan.ridge, L)
    else:
        beta = by_eigenvalues(normal, right, plan.ridge)
    return State(plan, torch.linalg.solve_triangular(L.T, beta, upper=True), right, normal=normal, epoch=1)


def by_eigenvalues(normal: Tensor, right: Tensor, ridge: float) -> Tensor:
    """The same without the rows: directions below the rounding of the normal equations are cut."""
    values, vectors = torch.linalg.eigh(normal)
    kept = values > values.max() / WORST
    return vectors[:, kept] @ ((vectors[:, kept].T @ right) / (values[kept, None] + ridge))


def by_qr(features: Iterator[tuple[Tensor, Tensor]], p: int, c: int, ridge: float, like: Tensor) -> Tensor:
    """The same least squares without squaring the condition: [Φ | Y] is folded chunk by chunk into one triangle [R | Qᵀy]."""
    triangle = like.new_zeros(p, p + c)
    triangle[:, :p].diagonal().fill_(ridge**0.5)
    for Phi, Y in features:
        stacked = torch.cat([triangle, torch.cat([Phi, Y], 1)])
        triangle = torch.linalg.qr(stacked, mode="r").R[:p]
    R, right = triangle[:, :p], triangle[:, p:]
    # Directions below the rounding of the largest carry no information: they are cut, as a pseudo-inverse would.
    d = R.diagonal().abs()
    if d.min() > d.max() * 1e-13:
        return torch.linalg.solve_triangular(R, right, upper=True)
    return torch.linalg.lstsq(R.cpu(), right.cpu(), driver="gelsd", rcond=1e-13).solution.to(like)
