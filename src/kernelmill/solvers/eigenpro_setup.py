"""What the EigenPro solvers prepare once from the operator: features of Z, the preconditioner, the
measured step, the projection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..data import Source
from ..distributed.team import Communicator, count, gather, largest, shard
from ..errors import OutOfMemory
from ..kernels import Kernel, Points
from ..losses import Loss, Square
from ..ops import SMALLEST_TILE, KernelProduct, bind, frame
from ..planning.plan import Plan
from ..preconditioner import (
    ANCHORED_STEP,
    OVERSTEP,
    Preconditioner,
    build,
    diagonal,
    largest_step,
    measured_step,
    precondition,
    printed_step,
    top_eigensystem,
)
from ..projection import (
    Forgetful,
    NotPositiveDefinite,
    Pass,
    Projection,
    cholesky,
    least_jitter,
    log,
)
from . import base
from .base import Problem, State
from .eigenpro_sizes import keeps_factors, most_q, row_cost, with_step

# Rows of a batch, at most, where there are few centers; and batches that see as many rows as there
# are centers, at least.
MOST_ROWS, BATCHES = 1024, 8


@dataclass(frozen=True)
class Setup(base.Setup):
    """The operator's part of a run.

    `nested`: X_s is the first s rows of Z; else X_s are rows of the data, the paper's way.
    """

    K: KernelProduct
    Z: Points  # this rank's rows
    X_s: Points  # on every rank
    pre: Preconditioner
    M: Tensor  # (p, q) K(Z, X_s) F, this rank's rows
    nested: bool
    plan: Plan
    project: Projection
    loss: Loss  # within the source's units

    @property
    def F(self) -> Tensor:
        return self.pre.F

    @cached_property
    def F_rough(self) -> Tensor:
        """F as k of a batch is made with, which holds back single rows: in bfloat16, which is off
        by 4e-3 of K(x,x), where k is much larger than that and K(x,x) is 1. In float32 it would be
        a fifth of an epoch on a GPU.
        """
        rough = (
            self.plan.on_gpu
            and self.K.kernel.translation_invariant
            and self.K.dtype == torch.float32
            and (self.plan.beta_mean or 0) > 0.05
        )
        return self.F.bfloat16() if rough else self.F

    def leaner(self) -> Setup:
        """First nothing is kept between two uses, then no factors, then tiles shrink."""
        plan, K = self.plan, self.K
        passing = self.project.project if isinstance(self.project, Forgetful) else self.project
        factors = isinstance(passing, Pass) and passing.factors is not None
        if not plan.keep_block and not factors and (K.is_fused or K.tile_bytes <= SMALLEST_TILE):
            raise OutOfMemory(
                f"out of memory with {plan.p} centers, {plan.d} features and {plan.c} outputs, with"
                " nothing kept and the smallest tiles; use fewer centers."
            )
        project = self.project
        if isinstance(passing, Pass):
            passing = replace(
                passing, keep=False, factors=passing.factors if plan.keep_block else None
            )
            project = Forgetful(passing) if isinstance(project, Forgetful) else passing
        if not plan.keep_block:
            K.tile_bytes = max(SMALLEST_TILE, K.tile_bytes // 2)
        return replace(
            self, plan=replace(plan, keep_block=False, tile_bytes=K.tile_bytes), project=project
        )


def product(kernel: Kernel, Z: Tensor, plan: Plan, comm: Communicator) -> KernelProduct:
    """The kernel in the plan's precision, measured from the mean of the centers."""
    origin, spread = frame(kernel, Z, comm.all_sum)
    return bind(kernel, origin, plan.precision, torch.device(plan.device), plan.tile_bytes, spread)


def first(comm: Communicator, Z: Points, rows: int) -> Points:
    """The first `rows` centers, on every rank."""
    own = count(comm, rows)
    return Points(gather(comm, Z.x[:own], 0, rows), gather(comm, Z.sq[:own], 0, rows))


def fresh_rows(
    source: Source, K: KernelProduct, rows: int, generator: torch.Generator
) -> tuple[Points, Tensor]:
    """Random rows of the data, and their weights."""
    batch = source.take(torch.randperm(source.n, generator=generator)[:rows])
    return K.points(batch.X), batch.w.to(K.device, K.dtype)


def on_centers(K: KernelProduct, Z: Points, X_s: Points, F: Tensor) -> tuple[Tensor, Tensor]:
    """M = K(Z, X_s) F and the preconditioned diagonal k on this rank's centers: p·s kernel values,
    none of them held.
    """
    M, k = torch.empty(len(Z), F.shape[1], dtype=K.dtype, device=K.device), torch.empty_like(Z.sq)
    step = max(1, K.tile_bytes // (len(X_s) * K.dtype.itemsize))
    for start in range(0, len(Z), step):
        rows = slice(start, start + step)
        M[rows] = K.dense(Z[rows], X_s) @ F
        k[rows] = diagonal(K, Z[rows], M[rows])
    return M, k


def prepare_measured(
    problem: Problem, plan: Plan, q: int | None, m: int | None, T: int | None, loss: Loss
) -> Setup:
    """Subsample among the centers, one eigensystem for data and projection, step measured on fresh
    rows of the data. What is None is measured.
    """
    source, comm, generator = problem.source, problem.comm, problem.generator
    K = product(problem.kernel, problem.Z, plan, comm)
    points = K.points(problem.Z)
    X_s = first(comm, points, plan.s or 0)
    near = loss.within(source, points.sq)
    if plan.eta is None:
        level = plan.ridge / loss.usual_curvature(source) * len(X_s) / plan.n
        pre, spectrum = comm.same(
            lambda: build(
                K,
                X_s,
                plan.q or 0,
                fresh_rows(source, K, plan.fresh, generator),
                generator,
                level,
                most_q(plan) if q is None else 0,
                row_cost(plan),
            )
        )
    else:  # a stored plan keeps its step: nothing is measured again
        pre = comm.same(lambda: widen(K, X_s, plan))
    M, k = on_centers(K, points, X_s, pre.F)
    size = largest(comm, K.diagonal(points).max().item() if len(points) else 0.0)
    if plan.eta is None:
        beta = max(spectrum.k.max().item(), largest(comm, k.max().item() if len(k) else 0.0))
        curvature = near.largest_curvature
        most = curvature * largest_step(
            plan.p, size, K.dtype, plan.ridge, plan.epochs, plan.control_variate
        )
        most_rows = min(plan.p, max(MOST_ROWS, plan.p // BATCHES))
        step = measured_step(spectrum, beta, most_rows, m, most=most)
        # Whole tiles of the fused kernels.
        plan = with_step(
            replace(
                plan,
                q=pre.q,
                beta=beta,
                beta_mean=spectrum.k.mean().item(),
                lambda_top=spectrum.lambda_top,
                tau=pre.tau,
            ),
            m=(step.m if m or not plan.on_gpu or step.m < 128 else step.m // 128 * 128),
            T=T,
            eta=step.eta / curvature,  # it was measured for a curvature of 1
        )
    if plan.projection == "cholesky":
        try:
            return Setup(
                K, points, X_s, pre, M, True, plan, cholesky(K, points, plan.p, comm), near
            )
        except NotPositiveDefinite as error:
            log.warning("%s Continuing with projection='carried'.", error)
            plan = replace(plan, projection="carried")
    F, jitter = pre.F[shard(comm)], least_jitter(plan.p, size, K.dtype)
    kept = plan.keep_block
    project = Pass(K, points, M, F, len(X_s), plan.p, plan.m_Z or 1, kept, comm, jitter=jitter)
    if keeps_factors(plan):
        project = project.with_factors(plan.stack_bytes)
    return Setup(
        K,
        points,
        X_s,
        pre,
        M,
        True,
        plan,
        Forgetful(project) if plan.projection == "one_pass" else project,
        near,
    )


def widen(K: KernelProduct, X_s: Points, plan: Plan) -> Preconditioner:
    """The preconditioner of a plan that has its step already."""
    K_ss = K.dense64(X_s, X_s)
    return precondition(K_ss, *top_eigensystem(K_ss, plan.q or 0), plan.tau or 0.0, K.dtype)


def prepare_printed(problem: Problem, plan: Plan, m: int | None, T: int | None) -> Setup:
    """The paper's recipe: subsample of the data, critical batch from the subsample's tail, one
    EigenPro 2 pass from zero.
    """
    comm = problem.comm
    K = product(problem.kernel, problem.Z, plan, comm)
    points = K.points(problem.Z)
    X_s, _ = fresh_rows(problem.source, K, plan.s or 0, problem.generator)
    pre, eta, m = comm.same(lambda: _printed(K, X_s, plan.q or 0, plan.p, m))
    if plan.eta is None:
        plan = replace(plan, q=pre.q, beta=K.diagonal(X_s).max().item())
        plan = with_step(plan, m=m, T=T, eta=eta)
    M, _ = on_centers(K, points, X_s, pre.F)
    if plan.projection == "cholesky":
        return Setup(
            K, points, X_s, pre, M, False, plan, cholesky(K, points, plan.p, comm), Square()
        )
    Z_s = first(comm, points, min(plan.s or 0, plan.p))
    pre_Z, eta_Z, m_Z = comm.same(lambda: _printed(K, Z_s, plan.q or 0, plan.p, None))
    M_Z, _ = on_centers(K, points, Z_s, pre_Z.F)
    plan = replace(plan, m_Z=m_Z, eta_Z=eta_Z)
    steps = torch.full((plan.p,), eta_Z, dtype=K.dtype, device=K.device)
    project: Projection = Pass(
        K, points, M_Z, pre_Z.F[shard(comm)], len(Z_s), plan.p, m_Z, plan.keep_block, comm, steps
    )
    return Setup(
        K,
        points,
        X_s,
        pre,
        M,
        False,
        plan,
        project if plan.projection == "carried" else Forgetful(project),
        Square(),
    )


def _printed(
    K: KernelProduct, X_s: Points, q: int, largest: int, m: int | None
) -> tuple[Preconditioner, float, int]:
    K_ss = K.dense64(X_s, X_s)
    values, E = top_eigensystem(K_ss, min(q, len(X_s) - 1))
    pre = precondition(K_ss, values, E, values[-1].item(), K.dtype)
    step = printed_step(K.diagonal(X_s).max().item(), pre.tau, len(X_s), largest, m)
    return pre, step.eta, step.m


def step_now(plan: Plan, state: State, anchored: bool = False) -> float:
    """η at this moment: falling linearly to zero over all epochs, and smaller where last residuals
    are subtracted.
    """
    eta = (plan.eta or 0.0) * state.step_scale
    if plan.recipe == "paper":
        return eta
    done = (state.epoch + state.position / plan.n) / plan.epochs
    return min(eta * (1 - done), eta * ANCHORED_STEP / OVERSTEP if anchored else eta)
