"""Direct: the exact solution in float64. The truth that every other solver is compared with.

Z = X: kernel ridge, (K + λ/w) α = y. Otherwise least squares in the span of Z: with K(Z,Z) = L Lᵀ
the features Φ = K(X,Z) L⁻ᵀ turn the ridge λ αᵀK(Z,Z)α into λ‖β‖², so that (ΦᵀwΦ + λ) β = Φᵀw y is
well conditioned where K(Z,X)K(X,Z) + λK(Z,Z) is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..errors import InputError
from ..kernels import Points
from ..ops import KernelProduct
from ..planning.costs import always, direct_bytes, factoring, values64
from ..planning.machine import Rates
from ..planning.plan import Plan
from ..projection import factor, factor_made
from .base import Offer, Problem, Report, Solver, State
from .row_blocks import InFloat64, in_float64, whitened

WORST = 1e13  # condition of the normal equations above which float64 has no digits left for them


@dataclass
class DirectState(State):
    """The solution, and the equations it solves: those of other rows can be added to them."""

    normal: Tensor | None = None  # (p, p) ΦᵀwΦ
    right: Tensor | None = None  # (p, c) Φᵀw y
    # (p, p + c) [R | Qᵀy] of the same rows, where the normal equations have too few digits.
    triangle: Tensor | None = None


@dataclass(frozen=True)
class Added(InFloat64):
    """The centers, and the equations of rows that were there before."""

    before: DirectState | None = None


@dataclass(eq=False)
class Direct(Solver[Added, DirectState | None]):
    """The exact solution. It has no settings, and takes p² memory and 3·n·p² operations."""

    name = "direct"
    rounds_are = "iterations"
    state = DirectState
    resumable = False
    exact = True
    needs_ridge = True

    def start_from(self, plan: Plan, alpha: Tensor) -> None:
        """Nothing: the exact solution is the same wherever one starts."""

    def plan(self, base: Plan) -> Plan:
        bytes = direct_bytes(base.p, base.every_row)
        if bytes > base.budget:
            lean = "pcg" if base.every_row else "eigenpro4"
            raise InputError(
                f"solver='direct' needs {bytes / 2**30:.1f} GiB for {base.p} centers,"
                f" {base.budget / 2**30:.1f} GiB may be used; use fewer centers or"
                f" solver={lean!r}, which takes memory in proportion to the centers."
            )
        return replace(base, precision="float64", epochs=1, bytes=bytes)

    def seconds(self, plan: Plan, rates: Rates) -> float:
        n, p = plan.n, plan.p
        if plan.every_row:
            return always(plan) + values64(n * n, plan, rates) + factoring(n, rates)
        work = (
            2 if plan.on_gpu else 3
            # A triangular solve, at less than a product's rate, and a product.
        ) * n * p * p + 2 * n * p * p
        return (
            always(plan)
            + values64((n + p) * p, plan, rates)
            + 2 * factoring(p, rates)
            + work / rates.products
        )

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        return [Offer("direct", cls(), replace(sizes, epochs=0))]

    def prepare(
        self, problem: Problem, plan: Plan, state: DirectState | None
    ) -> tuple[Added, None]:
        return Added(plan, *in_float64(problem, plan), state), None

    def rounds(self, problem: Problem, setup: Added, state: DirectState | None) -> Iterator[Report]:
        if not setup.plan.every_row:
            yield from least_squares(problem.source, setup)
            return
        K, Z, rows = setup.K, setup.Z, problem.source.take(torch.arange(problem.source.n))
        alpha = kernel_ridge(
            K,
            Z,
            rows.Y.to(K.device, K.dtype),
            rows.w.to(K.device, K.dtype),
            setup.plan.ridge,
        )
        yield Report("epoch", DirectState(setup.plan, alpha, epoch=1))


def kernel_ridge(K: KernelProduct, Z: Points, Y: Tensor, w: Tensor, ridge: float) -> Tensor:
    """(√w K √w + λ) β = √w y, α = √w β, by a factor that takes K's place: rows of weight 0 drop
    out.
    """
    root, n = w.sqrt()[:, None], len(Z)

    def system() -> Tensor:
        A = torch.empty(n, n, dtype=torch.float64, device=K.device)
        K.gram(Z, A)
        A *= root
        A *= root.T
        A.diagonal().add_(ridge)
        return A

    return root * factor_made(system).solve(root * Y)


def least_squares(source: Source, setup: Added) -> Iterator[Report]:
    """The solution for these rows and for those whose equations are there already."""
    K, Z, plan, before = setup.K, setup.Z, setup.plan, setup.before
    L = factor(K.dense(Z, Z)).L
    triangle = None if before is None or before.triangle is None else before.triangle.to(L)
    beta, normal, right = None, None, None
    if triangle is None:
        normal, right = L.new_zeros(plan.p, plan.p), L.new_zeros(plan.p, plan.c)
        for Phi, Y, seen in whitened(K, source, Z, L, plan):
            normal.addmm_(Phi.T, Phi)
            right.addmm_(Phi.T, Y)
            yield Report("projection", None, rows=seen)
        if before is not None and before.normal is not None and before.right is not None:
            normal += before.normal.to(L)
            right += before.right.to(L)
        beta = by_cholesky(normal, right, plan.ridge)
    if beta is None:
        triangle = started(before, plan, L) if triangle is None else triangle
        for Phi, Y, seen in whitened(K, source, Z, L, plan):
            # Least squares without squaring the condition: [Φ | Y] goes chunk by chunk into one
            # triangle [R | Qᵀy].
            triangle = torch.linalg.qr(torch.cat([triangle, torch.cat([Phi, Y], 1)]), mode="r").R[
                : plan.p
            ]
            yield Report("projection", None, rows=seen)
        beta, normal, right = by_triangle(triangle, plan.p, plan.ridge), None, None
    alpha = torch.linalg.solve_triangular(L.T, beta, upper=True)
    yield Report(
        "epoch", DirectState(plan, alpha, epoch=1, normal=normal, right=right, triangle=triangle)
    )


def by_cholesky(normal: Tensor, right: Tensor, ridge: float) -> Tensor | None:
    """The solution, or None where too few digits would be left.

    `normal` is the same afterwards.
    """
    diagonal = normal.diagonal().clone()
    normal.diagonal().add_(ridge)
    R, info = torch.linalg.cholesky_ex(normal)
    normal.diagonal().copy_(diagonal)
    d = R.diagonal()
    if info.item() or not (d.max() / d.min()).item() ** 2 < WORST:
        return None
    return torch.cholesky_solve(right, R)


def started(before: DirectState | None, plan: Plan, L: Tensor) -> Tensor:
    """The triangle of the rows before."""
    if before is None or before.normal is None or before.right is None:
        return L.new_zeros(plan.p, plan.p + plan.c)
    normal = before.normal.to(L, copy=True)
    normal.diagonal().add_(normal.diagonal().max() / WORST)
    R = torch.linalg.cholesky(normal).T
    return torch.cat([R, torch.linalg.solve_triangular(R.T, before.right.to(L), upper=False)], 1)


def by_triangle(triangle: Tensor, p: int, ridge: float) -> Tensor:
    if ridge:
        weight = torch.cat(
            [torch.eye(p).to(triangle) * ridge**0.5, torch.zeros_like(triangle[:, p:])], 1
        )
        triangle = torch.linalg.qr(torch.cat([triangle, weight]), mode="r").R[:p]
    R, right = triangle[:, :p], triangle[:, p:]
    # Directions below the rounding of the largest carry no information: they are cut, as a
    # pseudo-inverse would.
    d = R.diagonal().abs()
    if d.min() > d.max() * 1e-13:
        return torch.linalg.solve_triangular(R, right, upper=True)
    return torch.linalg.lstsq(R.cpu(), right.cpu(), driver="gelsd", rcond=1e-13).solution.to(
        triangle
    )


def direct_is_instant(n: int, p: int, budget: int, on_gpu: bool = False) -> bool:
    """Whether the exact solution takes less than a second anywhere, or on any GPU with float64:
    then nothing needs to be timed or compared.
    """
    work = p**3 / 3 if p == n else 3.0 * n * p * p
    return work <= (3e11 if on_gpu else 2e10) and direct_bytes(p, p == n) <= budget
