"""EigenPro 2: every row is a center (Z = X).

No projection at all; an epoch is one pass of `projection.Pass` on (X, Y).

EigenPro 1 (Ma, Belkin, 2017) is the same with the preconditioner of all rows, s = n, where the
eigensystem of K(X,X) is affordable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .. import losses
from ..distributed.team import gather, shard
from ..errors import InputError
from ..losses import Loss
from ..planning.arguments import whole
from ..planning.machine import Rates
from ..planning.plan import Plan, require_every_row
from ..preconditioner import build, measured_step, row_steps
from ..projection import Pass
from .base import MAX_GROWTH, Diverged, Offer, Problem, Report, Setup, Solver, State, check_loss
from .eigenpro_costs import eigenpro2_seconds
from .eigenpro_setup import first, fresh_rows, on_centers, product
from .eigenpro_sizes import eigenpro_sizes, with_step


@dataclass
class PassState(State):
    r: Tensor = field(kw_only=True)  # (n, c) what (K + λ/w) α leaves of the targets


@dataclass(frozen=True)
class LossPass(Pass):
    """A pass down another loss than the square: r gives the values too, f = Y − r − λα/w, and a
    step goes along −gradient(f) − λα/w.
    """

    loss: Loss = field(kw_only=True)
    Y: Tensor = field(kw_only=True)  # (n, c) on every rank
    alpha: Tensor = field(kw_only=True)  # (n, c) weights before the pass, this rank's rows

    def downhill(self, start: int, stop: int, own: slice, now: Tensor, V: Tensor) -> Tensor:
        assert self.shift is not None
        alpha, head = self.alpha[own].clone(), self.F[own]
        # Rows of the subsample have their share of the preconditioner's part.
        alpha[: len(head)] += head @ V
        held = gather(self.comm, self.shift[own, None] * alpha, start, stop)
        Y = self.Y[start:stop]
        return -self.loss.gradient(Y - now - held, Y) - held


@dataclass(frozen=True)
class Passes(Setup):
    """One epoch as a pass over the rows, its steps at full scale, and what `size` is of predicting
    nothing.
    """

    plan: Plan
    epoch: Pass
    steps: Tensor
    energy: float

    def epoch_from(self, state: PassState) -> Pass:
        return replace(self.epoch, steps=state.step_scale * self.steps)

    def size(self, alpha: Tensor, r: Tensor) -> Tensor:
        """What is left to be made small, on this rank's rows."""
        return (r * r).sum()

    def leaner(self) -> Passes:
        if not self.epoch.keep:
            return super().leaner()
        return replace(self, epoch=replace(self.epoch, keep=False))


@dataclass(frozen=True)
class LossPasses(Passes):
    """The same with another loss than the square.

    `size` is its sum, with weights w, at the values f = Y − r − λα/w.
    """

    epoch: LossPass
    w: Tensor  # (n,) and
    shift: Tensor  # (n,) λ/w of this rank's rows

    def epoch_from(self, state: PassState) -> Pass:
        return replace(self.epoch, steps=state.step_scale * self.steps, alpha=state.alpha)

    def size(self, alpha: Tensor, r: Tensor) -> Tensor:
        Y = self.epoch.Y[shard(self.epoch.comm)]
        return (self.w * self.epoch.loss.value(Y - r - self.shift[:, None] * alpha, Y)).sum()


class Passing(Solver[Passes, PassState]):
    """What EigenPro 2 and 1 share: every row is a center, an epoch is a pass over all of them."""

    m: int | None
    state = PassState
    needs_ridge = True
    every_row = True
    sharded = True
    # Each batch is one of all rows: rows that come sorted would need a smaller step.
    subsamples = True

    def takes(self, loss: Loss) -> bool:
        return loss.is_smooth

    def prepare(
        self, problem: Problem, plan: Plan, state: PassState | None
    ) -> tuple[Passes, PassState]:
        return prepare_passes(problem, plan, state, self.m, losses.resolve(self.loss))

    def rounds(self, problem: Problem, setup: Passes, state: PassState) -> Iterator[Report]:
        return epochs(problem, setup, state)


@dataclass(eq=False)
class EigenPro2(Passing):
    """Preconditioned SGD with every row a center.

    An epoch evaluates n²/2 kernel values. The default five epochs bring the loss to within a tenth
    of the targets' variance of the direct solution's.

    Parameters
    ----------
    s : int, optional
        Rows of the subsample that the preconditioner is computed from. None: the plan decides.
    q : int, optional
        Eigenvectors that are brought down. None: the plan decides.
    m : int, optional
        Rows of a batch. None: it is measured.
    loss : str or Loss
        Any smooth one of `losses`.
    """

    s: int | None = None
    q: int | None = None
    m: int | None = None
    loss: losses.Given = "square"
    name = "eigenpro2"

    def plan(self, base: Plan) -> Plan:
        require_every_row(base)
        whole("m", self.m, 1)
        check_loss(self, base)
        return eigenpro_sizes(base, s=self.s, q=self.q, projection="carried", control_variate=False)

    def seconds(self, plan: Plan, rates: Rates) -> float:
        return eigenpro2_seconds(plan, rates)

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        return [Offer("eigenpro2", cls(), sizes)] if sizes.every_row else []


@dataclass(eq=False)
class EigenPro1(Passing):
    """EigenPro 2 with the eigensystem of all rows.

    Takes n² memory and n³ operations once. With the default epochs as near to the direct solution
    as EigenPro2.

    Parameters
    ----------
    q : int, optional
        Eigenvectors of K(X,X) that are brought down. None: the plan decides.
    m : int, optional
        Rows of a batch. None: it is measured.
    loss : str or Loss
        Any smooth one of `losses`.
    """

    q: int | None = None
    m: int | None = None
    loss: losses.Given = "square"
    name = "eigenpro1"

    def plan(self, base: Plan) -> Plan:
        require_every_row(base)
        whole("m", self.m, 1)
        check_loss(self, base)
        whole("q", self.q, 0)
        if self.q is not None and self.q >= base.n:
            raise InputError(
                f"q={self.q} was given for {base.n} rows: expected q below the number of rows."
            )
        plan = eigenpro_sizes(base, s=base.n, q=self.q, projection="carried", control_variate=False)
        if plan.bytes > plan.budget:
            raise InputError(
                f"solver='eigenpro1' needs {plan.bytes / 2**30:.1f} GiB for the eigensystem of"
                f" {plan.n} rows, {plan.budget / 2**30:.1f} may be used; use solver='eigenpro2',"
                " which takes that of a subsample."
            )
        return plan


def prepare_passes(
    problem: Problem, plan: Plan, state: PassState | None, m: int | None, loss: Loss
) -> tuple[Passes, PassState]:
    """Z holds the source's rows in the source's order, this rank's share."""
    source, comm, generator = problem.source, problem.comm, problem.generator
    K = product(problem.kernel, problem.Z, plan, comm)
    points = K.points(problem.Z)
    X_s = first(comm, points, plan.s or 0)
    level = plan.ridge / loss.usual_curvature(source) * len(X_s) / plan.n
    pre, spectrum = comm.same(
        lambda: build(
            K, X_s, plan.q or 0, fresh_rows(source, K, plan.fresh, generator), generator, level
        )
    )
    M, k = on_centers(K, points, X_s, pre.F)
    k_X = gather(comm, k, 0, plan.p)
    if plan.eta is None:
        step = measured_step(spectrum, k_X.max().item(), plan.p, m, overstep=1.0)
        plan = replace(plan, q=pre.q, beta=step.beta, tau=pre.tau, lambda_top=spectrum.lambda_top)
        plan = with_step(plan, m=step.m, T=1, eta=step.eta)
    targets, weights = (part.to(k_X) for part in source.targets(torch.arange(source.n)))
    # The ridge makes it (K + λ/w) α = y.
    Y, shift = (targets[shard(comm)].clone(), plan.ridge / weights[shard(comm)])
    near, zeros = loss.within(source, k_X), torch.zeros_like(Y)
    steps = 1 / (
        near.largest_curvature / row_steps(plan.eta or 0.0, k_X, 1.0) + plan.ridge / weights
    )
    parts = (
        K,
        points,
        M,
        pre.F[shard(comm)],
        len(X_s),
        plan.p,
        plan.m or 1,
        plan.keep_block,
        comm,
        steps,
    )
    if loss.name == "square":
        setup = Passes(plan, Pass(*parts, shift=shift), steps, 0.0)
    else:
        epoch = LossPass(*parts, shift=shift, loss=near, Y=targets, alpha=zeros)
        setup = LossPasses(plan, epoch, steps, 0.0, weights[shard(comm)], shift)
    energy = comm.all_sum(setup.size(zeros, Y)).item()
    return replace(setup, energy=energy), state or PassState(plan, zeros, r=Y.clone())


def epochs(problem: Problem, setup: Passes, state: PassState) -> Iterator[Report]:
    plan = setup.plan
    while state.epoch < plan.epochs:
        delta, left = setup.epoch_from(state)(state.r)
        alpha = state.alpha + delta
        size = problem.comm.all_sum(setup.size(alpha, left)).item()
        if not size <= MAX_GROWTH * setup.energy:
            raise Diverged
        state = replace(state, alpha=alpha, r=left, epoch=state.epoch + 1, loss=size / plan.n)
        yield Report("epoch", state, state.loss)
