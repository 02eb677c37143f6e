"""Choosing: the solver and its sizes, kernel and ridge on a sample, and the centers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from .. import centers as ways
from .. import kernels, solvers
from ..distributed.team import Communicator, is_alone, shard
from ..errors import InputError
from ..kernels import Kernel, Radial
from ..ops import KernelProduct, frame
from ..planning.machine import Network, connection, measure
from ..planning.plan import Plan
from ..planning.precision import fine_precision, precision_for, precision_of
from ..solvers import Solver
from ..solvers.direct import direct_is_instant
from ..tuning import elbo, local, search
from ..tuning.sample import CHECK_ROWS, Sample, draw
from .clock import Clock
from .design import Centers, Choice, Design, Start, Task
from .request import Request
from .rows import Data, constant_features

log = logging.getLogger("kernelmill")

ENOUGH_ROWS = 200  # of a sample whose error is a promise; of fewer it is mostly chance


# ---- the solver and its sizes


def problem_sizes(request: Request, data: Data, start: Start, comm: Communicator) -> Plan:
    """The sizes of the problem and of the machine, before any decision."""
    rows, source = data.rows, data.source
    kernel = request.kernel or kernels.Laplacian()
    x_bytes = rows.X.dtype.itemsize
    precision = precision_of(request.precision, x_bytes, source.d, kernel, data.device)
    if start.warm is not None and start.warm.model.alpha.dtype == torch.float64:
        precision = "float64"  # weights that large would not survive in fewer digits
    scatter = rows.units.scatter
    ridge = 1.0  # one that is chosen is above 0
    if request.ridge is not None:
        ridge = request.ridge / data.weight
    return Plan(
        "auto",
        source.n,
        source.d,
        source.c,
        0,
        precision=precision,
        fine=fine_precision(request.precision, rows.regression),
        regression=rows.regression,
        device=data.device,
        x_bytes=x_bytes,
        seed=request.seed,
        epochs=request.epochs or 0,
        ridge=ridge,
        weight=data.weight,
        scatter=None if scatter is None else scatter.tolist(),
        tile_bytes=data.tile_bytes,
        budget=data.budget,
        ranks=comm.size,
    )


def decide(request: Request, data: Data, start: Start, comm: Communicator) -> Task:
    """The solver, and the problem's sizes with the number of centers."""
    sizes = problem_sizes(request, data, start, comm)
    count = start.count_centers(request, sizes.n)
    if start.plan is not None:
        plan = replace(start.plan, device=data.device, ranks=comm.size)
        return Task(request, data, start, *_same_again(plan, sizes, count), comm)
    network = connection(comm, sizes.device)
    if request.solver is None and not is_alone(comm):
        # While all ranks do, as they will in training; what is known is not measured again.
        measure(request.kernel, sizes.d, sizes.precision, sizes.device)
    anew = start.given is None
    solver, base = comm.same(lambda: _fastest(request, sizes, count, anew, network))
    if request.ridge is None and not solver.needs_ridge:
        base = replace(base, ridge=0.0)
    return Task(request, data, start, solver, replace(base, device=sizes.device), comm)


def _fastest(
    request: Request, sizes: Plan, count: int | None, anew: bool, network: Network | None
) -> tuple[Solver, Plan]:
    """`anew`: centers are rows of this data, still to be chosen."""
    n = sizes.n
    if request.solver is not None:
        p = count or request.solver.default_centers(n)
        return request.solver, replace(
            sizes, solver=request.solver.name, p=p, every_row=anew and p == n
        )
    base = replace(sizes, p=count or n, every_row=anew and (count or n) == n)
    if direct_is_instant(n, base.p, base.budget):
        return solvers.Direct(), base
    rates = measure(request.kernel, base.d, base.precision, base.device)
    base = replace(base, rates=replace(rates, network=network))
    if count is None:
        base = solvers.affordable(base)
    table = solvers.forecast(base)
    log.info("%s", table)
    solver = table.chosen.solver
    # Epochs are asked of methods that take steps; an exact one was
    # forecast to its end, and goes there.
    return solver, replace(base, epochs=0) if solver.exact else base


def _same_again(plan: Plan, sizes: Plan, count: int | None) -> tuple[Solver, Plan]:
    """A fit from a stored plan does the same again; its sizes must be those of the data."""
    for name, here in (("n", sizes.n), ("d", sizes.d), ("c", sizes.c), ("p", count or plan.p)):
        if getattr(plan, name) != here:
            raise InputError(
                f"the plan given as solver has {name} = {getattr(plan, name)}, this fit {here}; use"
                " solver='auto'."
            )
    return solvers.NAMED[plan.solver](**(plan.settings or {})), plan


def final_plan(task: Task, kernel: Kernel, ridge: float, centers: Centers) -> Plan:
    """Every size of the run.

    The bandwidth, which says how far apart rows are, is known only now.
    """
    if task.start.plan is not None:
        return task.base
    base = replace(task.base, every_row=centers.every_row, ridge=ridge)
    plan = solvers.predict_plan(task.solver, base)
    asked, Z, some = task.request.precision, centers.Z, task.data.source.some
    precision = task.comm.same(lambda: precision_for(asked, plan, kernel, Z, some(512).X))
    if precision == plan.precision:
        return plan
    return solvers.predict_plan(task.solver, replace(base, precision=precision))


# ---- kernel, ridge and centers


def choose(task: Task, generator: torch.Generator, clock: Clock, promised: float | None) -> Design:
    """Kernel and ridge on a sample, then the centers, then every size that was still open.

    `promised`: the error that a kernel and ridge chosen before are held to.
    """
    request, warm = task.request, task.start.warm
    choice = _agree(task, lambda: _choose_kernel(task))
    if choice.expected is None:
        choice = replace(choice, expected=promised)
    choice.kernel.validate(task.base.d)
    constants = task.comm.same(lambda: _find_constants(task))
    clock.mark()
    centers = choose_centers(task, choice.kernel, generator)
    clock.mark()
    if task.start.plan is not None:
        choice = replace(choice, ridge=task.start.plan.ridge)
    own = request.kernel or choice.kernel if warm is None else warm.model.kernel
    plan = final_plan(task, choice.kernel, choice.ridge, centers)
    return Design(choice, own, centers, constants, plan, generator)


def _agree(task: Task, choose: Callable[[], Choice]) -> Choice:
    """What rank 0 chooses. A function of the user's own is not sent around: every rank has it."""

    def sent() -> tuple[Kernel | None, Choice]:
        choice = choose()
        travels = is_alone(task.comm) or type(choice.kernel) in kernels.NAMED.values()
        return (choice.kernel if travels else None), replace(choice, kernel=kernels.Laplacian())

    kernel, choice = task.comm.same(sent)
    kernel = kernel or task.request.kernel
    assert kernel is not None
    return replace(choice, kernel=kernel)


def _choose_kernel(task: Task) -> Choice:
    """The user's, the warm model's, or tuned on a subsample. The ridge is over the mean weight."""
    request, data, warm = task.request, task.data, task.start.warm
    kernel: Kernel | None = request.kernel if warm is None else warm.model.kernel
    weight = data.weight
    if kernel is not None and kernel.homogeneity is not None:
        used = kernels.in_range(kernel, data.source.some(512).X)
        weight *= kernels.magnification(kernel, used) ** (2 * (used.homogeneity or 0))
        kernel = used
    if warm is not None and kernel is not None:
        given = warm.ridge if request.ridge is None else request.ridge
        return Choice(kernel, given / weight)
    return _tuned_or_given(task, kernel, weight)


def _tuned_or_given(task: Task, kernel: Kernel | None, weight: float) -> Choice:
    """What the user left open is chosen on a sample; the rest stays as it was given."""
    request, data = task.request, task.data
    # Fewer centers than rows regularise by themselves, and SGD of few epochs too: only an exact
    # solution needs a ridge.
    free = request.ridge is None and task.solver.needs_ridge
    ridge = None if free else (request.ridge or 0.0) / weight
    unset = kernel is None or (isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str))
    if data.source.n < 2:
        lone = kernels.Laplacian(bandwidth=1.0) if kernel is None or unset else kernel
        return Choice(lone, 1e-6 if ridge is None else ridge)
    if kernel is not None and not unset and ridge is not None:
        return Choice(kernel, ridge)
    found, rows = _tune(task, kernel, ridge, unset)
    promises = rows >= ENOUGH_ROWS and task.solver.criterion == "loo" and found.error < float("inf")
    kept = free or request.ridge is not None
    return Choice(found.kernel, found.ridge if kept else 0.0, found.error if promises else None)


def _tune(
    task: Task, kernel: Kernel | None, ridge: float | None, unset: bool
) -> tuple[search.Choice, int]:
    """The kernel and ridge that do best on a sample, and how many rows that has."""
    data, solver, p = task.data, task.solver, task.base.p
    source = data.source
    generator = torch.Generator().manual_seed(task.base.seed)
    sample, ratio = _draw_sample(task, generator)
    if task.request.ridge is None and ratio == 1:
        # Of the run it may be 0, since few epochs regularise; the kernel is
        # chosen as under the best ridge.
        ridge = None
    if solver.criterion == "elbo":
        noise = getattr(solver, "noise", None)
        noise = None if noise is None else (noise / data.rows.units.scale**2).to(sample.X)
        Z = task.start.own
        Z = None if Z is None else Z.to(sample.X)
        return elbo.tune_elbo(kernel, ridge, noise, sample, p, Z), len(sample.X)
    choice = search.tune(kernel, ridge, sample)
    if unset and p > search.LARGE:
        choice = search.rescale(choice, ridge, sample)
        tuned = choice.kernel
        few = source.d <= search.MANY_FEATURES
        if few and isinstance(tuned, Radial) and isinstance(tuned.bandwidth, Tensor):
            sharper = local.refine_locally(tuned, source, p, data.budget // 2, generator)
            choice = search.retune(sharper, choice, ridge, sample)
    return choice, len(sample.X)


def _draw_sample(task: Task, generator: torch.Generator) -> tuple[Sample, float]:
    """Rows to choose on, and the share of them that are centers."""
    data, base = task.data, task.base
    n, p = base.n, base.p
    # Few rows are all taken, in an order that no seed changes: they come sorted, and the first
    # ones must not be alike.
    drawn = torch.Generator().manual_seed(0) if n <= CHECK_ROWS else generator
    rows, stands_for = draw(n, data.codes, drawn)
    # In the proportion of the real run, but never with so few centers that a kernel for few is
    # chosen (covertype: 80 % instead of 90).
    ratio = 1.0
    if not base.every_row:
        ratio = min(1.0, max(p / n, min(p, search.MAX_CENTERS) / len(rows)))
    batch = data.source.take(rows)
    X, Y, w = (part.to(data.source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    scatter = data.rows.units.scatter
    scatter = None if scatter is None else (scatter / (n * data.weight)).to(X)
    return Sample(X, Y, w * stands_for.to(w), ratio, data.weight, scatter), ratio


def _find_constants(task: Task) -> dict[int, float]:
    """What never varied in training, and says nothing: where it varies later, it must not make a
    row unlike all others.
    """
    source, encoder, warm = task.data.source, task.data.rows.encoder, task.start.warm
    if warm is not None:
        known = warm.model.constants
        found = constant_features(source, warm.model.Z) if known else {}
        return {i: value for i, value in known.items() if found.get(i) == value}
    if encoder is not None and not encoder.plain:
        return dict.fromkeys(encoder.constant, 0.0)
    return constant_features(source, task.start.own)


def choose_centers(task: Task, kernel: Kernel, generator: torch.Generator) -> Centers:
    """The model's, the user's, every row, or rows drawn as the user said; on the device of the
    run.
    """
    base, solver, source, team = task.base, task.solver, task.data.source, task.team
    given, warm = task.start.given, task.start.warm
    if warm is not None and warm.sharded:
        return Centers(warm.model.Z.to(base.device))
    if given is not None:
        # Where any first rows must be a random subsample; undone at the end.
        order = torch.randperm(base.p, generator=generator) if solver.subsamples else None
        Z = given if order is None else given[order.to(given.device)]
        return Centers(Z[shard(team)].to(base.device), order, base.every_row)
    if base.every_row and (solver.every_row or not solver.subsamples):
        # Row for row, so that the model does not depend on a seed.
        rows = torch.arange(source.n)[shard(team)]
        return Centers(source.take(rows).X.to(base.device), None, True)
    chosen, drawn_so_far = task.comm.same(
        lambda: (_draw_centers(task, kernel, generator), generator.get_state())
    )
    generator.set_state(drawn_so_far)
    return Centers(source.take(chosen[shard(team)]).X.to(base.device))


def _draw_centers(task: Task, kernel: Kernel, generator: torch.Generator) -> Tensor:
    """The numbers of the rows that become centers."""
    how, source, base = task.request.centers, task.data.source, task.base
    assert isinstance(how, str)
    K = None
    if how not in ("uniform", "balanced"):  # the other ways look at distances
        origin, spread = frame(kernel, source.take(torch.arange(min(source.n, 10_000))).X)
        K = KernelProduct(
            kernel, origin, base.precision, torch.device(base.device), base.tile_bytes, spread
        )
    return ways.choose(how, K, source, task.data.codes, base.p, generator)
