"""ASkotch (Rathore, Frangella, Yang, Dereziński, Udell, 2024): full kernel ridge by accelerated
block coordinate descent.

It solves (K(X,X) + λ/w) α = Y. Each step takes m rows at random, evaluates K(X_m, X), and solves
for their weights with a Nyström approximation of K(X_m, X_m) of rank r in place of the block
itself, damped by ρ; its step is 1 over the largest curvature that the approximation leaves.
Nesterov's three sequences couple the steps. O(n·c + m²) memory beside the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..kernels import Points
from ..ops import KernelProduct
from ..planning.arguments import whole
from ..planning.plan import Plan, require_every_row
from .base import Problem, Report, Setup, Solver, State
from .eigenpro_setup import product

EPOCHS = 20
FAR = 0.2  # of the targets: residuals above it are worth a warning
POWER_ITERATIONS = 10
LEAST = 1e-4  # of λ/ρ: the contraction that is hoped for where the ridge promises none


@dataclass
class ASkotchState(State):
    v: Tensor = field(kw_only=True)  # (n, c) the second of Nesterov's sequences


@dataclass(frozen=True)
class Blocks(Setup):
    """(K(X,X) + λ/w) α = Y, of which each step takes some rows."""

    plan: Plan
    K: KernelProduct
    X: Points
    Y: Tensor
    shift: Tensor  # (n,) λ/w

    def block(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """Rows, and the inverse of their approximation: vectors, values, damping; with the step it
        allows.
        """
        plan, K, m = self.plan, self.K, self.plan.m or 1
        draw = torch.Generator().manual_seed((plan.seed * 1_000_003 + step) % 2**63)
        picked = torch.randperm(plan.n, generator=draw)[:m].to(K.device)
        K_bb = K.dense64(self.X[picked], self.X[picked])
        U, values = nystrom(K_bb, plan.q or 1, draw)
        damping = self.shift[picked] + values[-1]
        K_bb.diagonal().add_(self.shift[picked])
        v = torch.randn(m, 1, generator=draw, dtype=torch.float64).to(K.device)
        largest = 1.0
        for _ in range(POWER_ITERATIONS):
            v = inverse(U, values, damping, K_bb @ v)
            largest = v.norm().item()
            v /= largest
        return picked, U, values, damping, 1 / max(1.0, 1.02 * largest)


@dataclass(eq=False)
class ASkotch(Solver[Blocks, ASkotchState]):
    """Kernel ridge with every row a center, by accelerated block coordinate descent.

    An epoch evaluates n² kernel values. Where no number of epochs is given it takes 20, and warns
    if the residual of its equations is above a fifth of the targets even then.

    Parameters
    ----------
    m : int, optional
        Rows of a block. None: a hundredth of all, at least 256.
    rank : int
        Rank of the Nyström approximation of a block.
    """

    m: int | None = None
    rank: int = 100
    name = "askotch"
    rounds_are = "iterations"
    state = ASkotchState
    needs_ridge = True
    every_row = True

    def plan(self, base: Plan) -> Plan:
        require_every_row(base)
        whole("m", self.m, 1)
        whole("rank", self.rank, 1)
        n, c, item = base.n, base.c, base.itemsize
        m = min(n, self.m or max(256, n // 100))
        row = base.features * base.feature_bytes + base.d * base.x_bytes + item
        bytes = n * (row + 8 * c * item) + 8 * m * (m + 4 * min(self.rank, m)) + 2 * base.tile_bytes
        return replace(base, epochs=base.epochs or EPOCHS, m=m, q=min(self.rank, m), bytes=bytes)

    def prepare(
        self, problem: Problem, plan: Plan, state: ASkotchState | None
    ) -> tuple[Blocks, ASkotchState]:
        """Z holds the source's rows in the source's order."""
        K = product(problem.kernel, problem.Z, plan, problem.comm)
        Y, w = problem.source.targets(torch.arange(problem.source.n))
        Y, shift = Y.to(K.device, K.dtype), plan.ridge / w.to(K.device, torch.float64)
        state = state or ASkotchState(plan, torch.zeros_like(Y), v=torch.zeros_like(Y))
        return Blocks(plan, K, K.points(problem.Z), Y, shift), replace(state, plan=plan)

    def rounds(self, problem: Problem, setup: Blocks, state: ASkotchState) -> Iterator[Report]:
        plan, K, X, Y, shift = setup.plan, setup.K, setup.X, setup.Y, setup.shift
        steps = math.ceil(plan.n / (plan.m or 1))
        # Nesterov's constants: ν = n/m, as every block of m rows is one of n/m; μ·ν = λ/ρ, what
        # one step contracts by on its block.
        _, _, _, first, _ = setup.block(0)
        contraction = min(1.0, max(LEAST, (shift.min() / first.max()).item()))
        nu = plan.n / (plan.m or 1)
        mu = contraction / nu
        beta, gamma = 1 - math.sqrt(mu / nu), 1 / math.sqrt(mu * nu)
        share = 1 / (1 + gamma * nu)
        energy = (Y.double() ** 2).mean().item()
        while state.epoch < plan.epochs:
            alpha, v = state.alpha.clone(), state.v.clone()
            squares = torch.zeros((), dtype=torch.float64, device=K.device)
            for step in range(state.epoch * steps, (state.epoch + 1) * steps):
                z = share * v + (1 - share) * alpha
                picked, U, values, damping, eta = setup.block(step)
                left = (K.matmul(X[picked], X, z) - Y[picked]).double() + shift[picked, None] * z[
                    picked
                ]
                move = eta * inverse(U, values, damping, left).to(z)
                alpha = z.clone()
                alpha[picked] -= move
                v = beta * v + (1 - beta) * z
                v[picked] -= gamma * move
                squares += (left * left).mean() / steps
            loss = squares.item()
            if not loss <= 1e6 * max(energy, 1e-300):
                yield Report("epoch", state, short="its residuals grew; use a larger ridge or rank")
            state = replace(state, alpha=alpha, v=v, epoch=state.epoch + 1, loss=loss)
            yield Report("epoch", state, loss)
        far = math.sqrt((state.loss or 0.0) / max(energy, 1e-300))
        if plan.epochs == EPOCHS and far > FAR:
            why = (
                f"no more were allowed, and residuals are {far:.0%} of the targets: use"
                " more, or a larger ridge"
            )
            yield Report("epoch", state, short=why)


def nystrom(K: Tensor, r: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """U (m, r) and values (r,) of a randomised Nyström approximation U diag(values) Uᵀ of a
    float64 kernel matrix, values falling.
    """
    m = len(K)
    omega = torch.linalg.qr(
        torch.randn(m, r, generator=generator, dtype=torch.float64).to(K.device)
    ).Q
    nu = 1e-14 * K.diagonal().sum() + 1e-300
    sketch = K @ omega + nu * omega
    core = omega.T @ sketch
    L, info = torch.linalg.cholesky_ex((core + core.T) / 2)
    if info.item():  # singular to the last digit: the eigensystem tells what is there
        values, vectors = torch.linalg.eigh(K)
        return vectors.flip(1)[:, :r], values.flip(0)[:r].clamp(min=0)
    B = torch.linalg.solve_triangular(L, sketch.T, upper=False).T
    U, S, _ = torch.linalg.svd(B, full_matrices=False)
    return U, (S * S - nu).clamp(min=0)


def inverse(U: Tensor, values: Tensor, damping: Tensor, g: Tensor) -> Tensor:
    """(U diag(values) Uᵀ + diag(damping))⁻¹ g by Woodbury's formula."""
    scaled = g / damping[:, None]
    V = U * values.sqrt()
    core = V.T @ (V / damping[:, None])
    core.diagonal().add_(1.0)
    return scaled - (V / damping[:, None]) @ torch.linalg.solve(core, V.T @ scaled)
