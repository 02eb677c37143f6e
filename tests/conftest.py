"""Small problems that every test can afford, in float64, and the truth they are compared with."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Before anything imports Triton: its kernels then run on the CPU, slowly.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kernelmill import kernels, solvers
from kernelmill.data import ArraySource
from kernelmill.distributed.team import Alone
from kernelmill.planning.plan import Plan

# A shell starts what runs in its background with Ctrl-C ignored; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
# Problems this small are several times slower with two threads that wait for each other.
torch.set_num_threads(1)


@dataclass
class Problem:
    """Noisy regression with three outputs; the first p rows are the centers."""

    X: Tensor
    Y: Tensor
    Z: Tensor
    kernel: kernels.Kernel
    w: Tensor | None = None

    @property
    def source(self) -> ArraySource:
        return ArraySource(
            self.X, self.Y, mean=torch.zeros(self.Y.shape[1], dtype=self.X.dtype), w=self.w, seed=3
        )

    def plan(
        self, solver, *, epochs: int = 1, ridge: float = 0.0, dtype: str = "float64", **more
    ) -> Plan:
        n, d = self.X.shape
        base = Plan(
            solver.name,
            n,
            d,
            self.Y.shape[1],
            len(self.Z),
            precision=dtype,
            epochs=epochs,
            ridge=ridge,
            every_row=n == len(self.Z),
            **more,
        )
        return solver.plan(base)

    def shared(self, comm=None):
        """As a solver is given it."""
        comm = comm or Alone()
        return solvers.Problem(
            self.kernel,
            self.source,
            self.Z[comm.rank :: comm.size],
            comm,
            torch.Generator().manual_seed(0),
        )

    def drive(self, solver, *, on_event=lambda event: False, state=None, comm=None, **kwargs):
        plan = state.plan if state is not None else self.plan(solver, **kwargs)
        return solvers.drive(solver, self.shared(comm), plan, on_event, state)

    def solve(self, solver, **kwargs):
        return self.drive(solver, **kwargs).state

    def direct(self, ridge: float = 0.0) -> Tensor:
        """The truth: float64 least squares by SVD of the stacked system, independent of any
        solver.
        """
        K_XZ, K_ZZ = self.kernel(self.X, self.Z), self.kernel(self.Z, self.Z)
        w = torch.ones(len(self.X), dtype=torch.float64) if self.w is None else self.w
        values, vectors = torch.linalg.eigh(K_ZZ)
        root = vectors * values.clamp(min=0).sqrt()
        A = torch.cat([w.sqrt()[:, None] * K_XZ, ridge**0.5 * root.T])
        b = torch.cat(
            [
                w.sqrt()[:, None] * self.Y,
                torch.zeros(len(self.Z), self.Y.shape[1], dtype=torch.float64),
            ]
        )
        return torch.linalg.lstsq(A, b, driver="gelsd").solution

    def distance(self, alpha: Tensor, truth: Tensor) -> float:
        """Relative distance of two models on the training rows."""
        K = self.kernel(self.X, self.Z)
        f, g = K @ alpha.double(), K @ truth
        return ((f - g).norm() / g.norm()).item()


def make_problem(
    n=1200, d=4, p=200, c=3, noise=0.3, seed=0, bandwidth=2.0, kernel=None, weights=False
) -> Problem:
    g = torch.Generator().manual_seed(seed)
    randn = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    X = randn(n, d)
    Y = torch.sin(X @ randn(d, c)) + noise * randn(n, c)
    w = torch.rand(n, generator=g, dtype=torch.float64) * 2 + 0.1 if weights else None
    w = w / w.mean() if w is not None else None
    return Problem(X, Y - Y.mean(0), X[:p], kernel or kernels.Laplacian(bandwidth=bandwidth), w)


@pytest.fixture(autouse=True)
def own_numbers(request):
    """A module's generator starts anew for every test: what one draws does not depend on which
    others ran.
    """
    for name in ("g", "rng"):
        if isinstance(getattr(request.module, name, None), np.random.Generator):
            getattr(request.module, name).bit_generator.state = np.random.default_rng(
                0
            ).bit_generator.state


@pytest.fixture
def problem() -> Problem:
    return make_problem()
