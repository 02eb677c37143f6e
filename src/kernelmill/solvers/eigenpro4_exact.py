"""EigenPro 4-Exact (Algorithm 2): solve in X exactly, project, repeat on the residual. For small n; it is what EigenPro 4 approximates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..errors import InputError
from ..kernels import Kernel
from ..ops import KernelProduct
from ..planning import Plan
from ..projection import factor
from .base import OnEvent, Reporter, Solver, State, alone

ROUNDS = 100  # at most, where nobody said
MOVED = 1e-6  # of the size of the predictions: a round that moves them by less is the last of those


@dataclass(eq=False)
class EigenPro4Exact(Solver):
    """An epoch is one round. Holds K(X,X): n² numbers. Its limit is (K_ZX K_XX⁻¹ K_XZ)⁻¹ K_ZX K_XX⁻¹ y, not the direct solution. Centers
    that are rows of X get there in one round. Where no number of epochs is given it ends when a round moves predictions by less than 1e-6
    of their size, or warns after 100."""

    name = "eigenpro4_exact"

    def plan(self, base: Plan) -> Plan:
        if base.ridge:
            raise InputError(f"ridge={base.ridge} was given, but solver='eigenpro4_exact' has none; use ridge=0, 'direct' or 'eigenpro4'.")
        bytes = 8 * (2 * base.n**2 + 2 * base.p**2 + base.n * base.p)
        if bytes > base.budget:
            raise InputError(
                f"solver='eigenpro4_exact' needs {bytes / 2**30:.1f} GiB for {base.n} rows, {base.budget / 2**30:.1f} GiB may be used; "
                "use 'eigenpro4'."
            )
        return replace(base, precision="float64", epochs=base.epochs or ROUNDS, bytes=bytes)

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
        K = KernelProduct(kernel, Z.mean(0, dtype=torch.float64), "float64", torch.device(plan.device), plan.tile_bytes)
        rows = source.take(torch.arange(source.n))
        X, Y, points = K.points(rows.X), rows.Y.to(K.device, K.dtype), K.points(Z)
        in_X, in_Z, K_XZ = factor(K.dense(X, X)), factor(K.dense(points, points)), K.dense(X, points)
        state = state or State(plan, Y.new_zeros(plan.p, plan.c), Y.new_zeros(plan.p, plan.c))
        report = Reporter(plan, on_event)
        report("start", state.epoch, 0, alpha=state.alpha)
        moved, chosen = 1.0, plan.epochs == ROUNDS
        while state.epoch < plan.epochs and not state.stopped and not (chosen and moved < MOVED):
            f = K_XZ @ state.alpha
            residual = Y - f
            state.loss = (residual * residual).sum().item() / plan.n
            step = in_Z.solve(K_XZ.T @ in_X.solve(residual))
            moved = ((K_XZ @ step).norm() / f.norm().clamp(min=torch.finfo(f.dtype).tiny)).item()
            state.alpha = state.alpha + step
            state.epoch += 1
            if report("epoch", state.epoch, 0, loss=state.loss, alpha=state.alpha):
                state.stopped = "a callback asked for it"
        if chosen and state.epoch == plan.epochs and not state.stopped and not moved < MOVED:
            state.stopped = f"they were all that were allowed, and the last round moved predictions by {moved:.0e}: use more epochs"
        report("end", state.epoch, 0, loss=state.loss, alpha=state.alpha)
        return state
