"""PCG: kernel ridge with every row a center, by preconditioned conjugate gradients, K never held.

(√w K √w + λ) β = √w Y, α = √w β. Each iteration is one product with K. The preconditioner is a
partial Cholesky factor with random pivots, and blocks of near rows (kernel_system.py). Products
inside are float32 unless float64 was asked for; the residual that is carried along is checked in
float64 before the run ends, and replaced where rounding moved it (docs/solvers.md has the
measurements).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..kernel_system import Iterate, KernelSystem, Preconditioner, Solving, default_sizes, solve
from ..kernels import Kernel
from ..ops import HALF, Gram
from ..planning.arguments import whole
from ..planning.costs import always, values64
from ..planning.machine import Rates
from ..planning.plan import Plan, require_every_row
from .base import Offer, Problem, Report, Setup, Solver, State, check_finite

TOLERANCE = 1e-2  # relative residual, of classes
SMOOTH_TOLERANCE = 1e-3  # the same for a regression
ITERATIONS = 200  # at most
# Iterations that were needed with the default rank, on tables (benchmarks/pcg.py): for predictions
# of time where they were not measured on a sample.
USUAL, SMOOTH_USUAL = 12, 30
HALVES = 3  # products of float16 features that one of float32 takes


@dataclass
class PCGState(State):
    """The iterate, its residual, and the direction of the next step: (n, c) in float64."""

    r: Tensor | None = None
    direction: Tensor | None = None
    size: list[float] | None = None  # (c,) rᵀ P⁻¹ r: of all rows, so that it is not dealt out
    residual: float = 1.0  # relative, of the worst output
    trusted: float = 1.0  # the last one that was computed in float64
    slow: bool = False  # fast products have no digits left: each is float64

    @classmethod
    def at(cls, plan: Plan, now: Iterate) -> PCGState:
        values = {name: value for name, value in vars(now).items() if name != "step"}
        return cls(plan, **{**values, "size": now.size.tolist()}, epoch=now.step)

    def iterate(self) -> Iterate | None:
        """Where conjugate gradients are; None of weights alone."""
        if self.r is None or self.direction is None or self.size is None:
            return None
        directions = self.r, self.direction, torch.tensor(self.size, dtype=torch.float64).to(self.r)
        return Iterate(self.alpha, *directions, self.residual, self.trusted, self.slow, self.epoch)


@dataclass(frozen=True)
class Equations(Setup):
    """The system, its right-hand side and preconditioner."""

    plan: Plan
    system: KernelSystem
    preconditioner: Preconditioner
    b: Tensor
    tolerance: float


@dataclass(eq=False)
class PCG(Solver[Equations, PCGState]):
    """The solution of kernel ridge with every row a center, in memory that grows with the rows.

    It ends at the tolerance, or where held-out rows end it; the history says the residual after
    each iteration.

    Parameters
    ----------
    tolerance : float, optional
        Relative residual at which it ends. None: 1e-2 for classes, for numbers 1e-3 or where
        held-out rows are not predicted better any more.
    iterations : int, optional
        Products with K, at most.
    rank : int, optional
        Rank of the preconditioner. None: from rows and memory.
    block : int, optional
        Rows of its blocks, at most. None: from rows and memory.
    """

    tolerance: float | None = None
    iterations: int | None = None
    rank: int | None = None
    block: int | None = None
    name = "pcg"
    rounds_are = "iterations"
    state = PCGState
    exact = True
    needs_ridge = True
    every_row = True
    sharded = True

    def plan(self, base: Plan) -> Plan:
        require_every_row(base)
        whole("iterations", self.iterations, 1)
        whole("rank", self.rank, 1)
        whole("block", self.block, 1)
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"tolerance={self.tolerance!r} was given, expected a number above 0.")
        n, own = base.n, base.own
        precision = base.fine or base.precision
        if precision not in (*HALF, "float64"):
            precision = "float32"
        rank, size = self._sizes(base)
        held = beside_K(base, rank, size)
        if held > base.budget or rank < 1:
            raise InputError(
                f"solver='pcg' needs {held / 2**30:.1f} GiB for {n} rows,"
                f" {base.budget / 2**30:.1f} may be used; use a larger memory_budget, or"
                " solver='eigenpro4' with fewer centers."
            )
        gram = 0 if base.on_gpu else Gram.bytes(own, n)
        keep_all = 0 < gram <= base.budget - held
        return replace(
            base,
            precision=precision,
            epochs=self.iterations or base.epochs or ITERATIONS,
            q=rank,
            keep_all=keep_all,
            bytes=held + min(gram, base.budget - held),
        )

    def _sizes(self, plan: Plan) -> tuple[int, int]:
        """Rank and rows of a block of the preconditioner."""
        room = max(0, plan.budget - beside_K(plan, 0, 0))
        rank, size = default_sizes(plan.n, plan.own, room, plan.on_gpu)
        return min(plan.n, self.rank or rank), min(plan.own, self.block or size)

    def seconds(self, plan: Plan, rates: Rates) -> float:
        n, own, c, rank, size = plan.n, plan.own, plan.c, *self._sizes(plan)
        flops = rates.products * (1 if plan.on_gpu else 2)
        setup = values64(own * (rank + size), plan, rates)
        setup += own * (3 * rank**2 + 2 * rank * size + 4 * size**2) / flops
        count = own * n
        if plan.keep_all:
            half = count / 2 if plan.ranks == 1 else count
            setup += values64(half, plan, rates)
            each = 2 * 4 * half / rates.read * max(1.0, c / 10)
        else:
            each = count / rates.block * max(1.0, c / 16)
            each *= HALVES if plan.fine and rates.precision in HALF else 1
        each += 16 * own * (rank + size) / rates.read
        if rates.network is not None:
            each += rates.network.seconds(8 * n * c, plan.ranks)
        usual = plan.iterations or (SMOOTH_USUAL if plan.regression else USUAL)
        return always(plan) + setup + min(plan.epochs, usual) * each

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        return [Offer("pcg", cls(), replace(sizes, epochs=0))] if sizes.every_row else []

    def prepare(
        self, problem: Problem, plan: Plan, state: PCGState | None
    ) -> tuple[Equations, PCGState]:
        comm = problem.comm
        own = torch.arange(comm.rank, plan.n, comm.size)
        Y, w = problem.source.targets(own)
        inner = plan.precision if plan.fine is None else "float32"
        rank, size = self._sizes(plan)
        room = 0 if plan.on_gpu else plan.budget - beside_K(plan, rank, size)
        system = KernelSystem(
            problem.kernel,
            problem.Z,
            w,
            plan.ridge,
            comm,
            device=plan.device,
            precision=inner,
            tile_bytes=plan.tile_bytes,
            room=max(0, room),
        )
        usual = SMOOTH_TOLERANCE if plan.regression else TOLERANCE
        setup = Equations(
            plan,
            system,
            system.preconditioner(rank, size, plan.seed),
            system.right(Y),
            usual if self.tolerance is None else self.tolerance,
        )
        if state is None:
            state = PCGState(plan, torch.zeros_like(setup.b))
        return setup, replace(state, plan=plan, alpha=state.alpha.to(setup.b))

    def rounds(self, problem: Problem, setup: Equations, state: PCGState) -> Iterator[Report]:
        plan, tolerance = setup.plan, setup.tolerance
        solving = Solving(setup.system, setup.preconditioner, setup.b, tolerance)
        now = state.iterate() or solving.start(state.alpha)
        state = PCGState.at(plan, now)
        check_finite(now.size, plan)
        yield Report("start", state)
        while now.residual > tolerance and now.step < plan.epochs:
            now = solving.step(now)
            state = PCGState.at(plan, now)
            check_finite(now.size, plan)
            state.loss = solving.loss(now) / plan.n
            yield Report("epoch", state, state.loss, note=f"residual {now.residual:.2g}")
        if now.residual > tolerance:
            why = (
                f"its relative residual is {now.residual:.2g} after {now.step} iterations,"
                f" {tolerance:g} was asked for; use a larger ridge, more iterations or a"
                " larger rank"
            )
            yield Report("epoch", state, short=why)


def beside_K(plan: Plan, rank: int, size: int) -> int:
    """Bytes of a rank: vectors, points, and a preconditioner of this rank with blocks of `size`."""
    n, own, c = plan.n, plan.own, plan.c
    vectors = 80 * own * c + 16 * n * c + n * (20 * plan.features + plan.d * plan.x_bytes)
    preconditioner = own * (4 * rank + 8 * size) + 24 * (rank * rank + size * size)
    return vectors + 24 * 256 * own + 4 * plan.tile_bytes + preconditioner


def expected_iterations(
    kernel: Kernel, X: Tensor, Y: Tensor, w: Tensor, ridge: float, plan: Plan
) -> int:
    """Iterations that a plan is expected to need: as many as these rows of it, in random order,
    with a preconditioner of the same share of the rank (docs/solvers.md).
    """
    n = len(X) - len(X) // 10
    share = n / plan.n
    rank, size = default_sizes(plan.n, plan.own, plan.budget // 2, plan.on_gpu)
    solved = solve(
        kernel,
        X[:n],
        Y[:n],
        w[:n],
        ridge,
        tolerance=SMOOTH_TOLERANCE if plan.regression else TOLERANCE,
        iterations=ITERATIONS,
        tile_bytes=plan.tile_bytes,
        budget=plan.budget,
        sizes=(max(1, int(rank * share)), max(1, int(size * share))),
        held=(X[n:], Y[n:], w[n:]) if plan.regression else None,
    )
    return max(1, solved.step)
