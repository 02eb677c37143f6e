"""Choosing: the solver and its sizes, kernel and ridge on a sample, and the centers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .. import centers as ways
from .. import kernels, solvers
from ..data import Stream
from ..distributed.team import Communicator, is_alone, shard
from ..errors import InputError, warn
from ..kernels import Kernel, Radial
from ..kernels.waves import has_waves
from ..ops import KernelProduct, bind, frame
from ..ops.warm import warming_up
from ..planning.machine import Network, connection, measure
from ..planning.plan import Plan
from ..planning.precision import eight_bits_pay, fine_precision, precision_for, precision_of
from ..projection import NotPositiveDefinite
from ..solvers import Solver
from ..solvers.direct import direct_is_instant
from ..tuning import elbo, local, recipes, search, whole
from ..tuning.judge import EachRow, Verdict
from ..tuning.likelihood import Merged, left_out_moments, likeliest
from ..tuning.nearby import Nearby, most_among
from ..tuning.parallel import side_by_side, workers_for
from ..tuning.sample import CHECK_ROWS, SAMPLE_ROWS, Effort, Sample, draw
from .clock import Clock
from .design import Centers, Choice, Design, Judged, Start, Task
from .request import Request
from .rows import Data, constant_features

log = logging.getLogger("kernelmill")

MOST_REFINED = 512  # features whose bandwidths are refined among neighbours, at most
CHOOSING = 0.5  # of the time that a fit may take, for choosing its kernel
FEWEST = 10  # rows of a Gaussian process
LEAST_ROWS = 2000  # of a sample of the rows that a time limit leaves time for
WORTHWHILE = 0.03  # of the score, what the nearest of all rows must gain over those of fewer
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
        source.c + request.samples,
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
        target=request.seconds[0],
    )


def decide(request: Request, data: Data, start: Start, comm: Communicator) -> Task:
    """The solver, and the problem's sizes with the number of centers."""
    sizes = problem_sizes(request, data, start, comm)
    count = start.count_centers(request, sizes.n)
    if start.plan is not None:
        if request.time_limit is not None and start.plan.n < sizes.n:  # as `_rows_in_time` said
            return decide(request, data.some(start.plan.n), start, comm)
        plan = replace(start.plan, device=data.device, ranks=comm.size)
        return Task(request, data, start, *_same_again(request, plan, sizes, count), comm)
    network = connection(comm, sizes.device)
    if request.solver is None and not is_alone(comm):
        # While all ranks do, as they will in training; what is known is not measured again.
        measure(request.kernel, sizes.d, sizes.precision, sizes.device)
    anew = start.given is None
    solver, base = comm.same(lambda: _fastest(request, sizes, count, anew, network))
    rows = comm.same(lambda: _rows_in_time(request, base))
    if rows < base.n and not isinstance(data.rows.X, Stream):
        warn(
            f"time_limit is too short for {base.n:,} rows: {rows:,} of them are learned from; give"
            " more seconds to learn from all."
        )
        return decide(request, data.some(rows), start, comm)
    if request.centers == ways.MEANS and base.p * ways.LEAST > base.n:
        raise InputError(
            f"centers='kmeans' was given, with {base.p} centers for {base.n} rows, and each is the"
            f" mean of {ways.LEAST} rows or more; set n_centers to at most a fifth of the rows."
        )
    if request.ridge is None and not (request.wants_ridge(solver) or solver.takes_ridge):
        base = replace(base, ridge=0.0)
    base, more = replace(base, device=sizes.device), None
    drawn = request.centers == "uniform" and not isinstance(data.rows.X, Stream)
    free = request.solver is None and count is None and request.posterior is None
    if free and drawn and base.rates is not None and not base.every_row:
        passes = replace(base, epochs=request.epochs or 0)
        more = solvers.with_every_row(passes, request.seconds[1])
    return Task(request, data, start, solver, base, comm, more)


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
    if direct_is_instant(n, base.p, base.budget, base.on_gpu):
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


def _rows_in_time(request: Request, base: Plan) -> int:
    """The rows with which the fastest solver is predicted to keep the time limit."""
    n = base.n
    if request.time_limit is None or base.rates is None:
        return n
    while n > LEAST_ROWS:
        p = min(base.p, n)
        plan = solvers.forecast(replace(base, n=n, p=p, every_row=base.every_row and p == n)).plan
        over = (plan.seconds or 0.0) / base.target
        if over <= 1:
            break
        n = max(LEAST_ROWS, int(n / min(over, 2.0)))
    return n


def _same_again(
    request: Request, plan: Plan, sizes: Plan, count: int | None
) -> tuple[Solver, Plan]:
    """A fit from a stored plan does the same again; its sizes must be those of the data."""
    for name, here in (("n", sizes.n), ("d", sizes.d), ("c", sizes.c), ("p", count or plan.p)):
        if getattr(plan, name) != here:
            raise InputError(
                f"the plan given as solver has {name} = {getattr(plan, name)}, this fit {here}; use"
                " solver='auto'."
            )
    return request.solver or solvers.of_plan(plan), plan


def final_plan(task: Task, kernel: Kernel, ridge: float, centers: Centers) -> Plan:
    """Every size of the run.

    The bandwidth, which says how far apart rows are, is known only now.
    """
    if task.start.plan is not None:
        return task.base
    base = replace(_under(task.base, kernel), every_row=centers.every_row, ridge=ridge)
    plan = solvers.predict_plan(task.solver, base)
    asked, Z, some = task.request.precision, centers.Z, task.data.source.some
    few_epochs = not task.solver.needs_ridge
    precision = task.comm.same(
        lambda: precision_for(asked, plan, kernel, Z, some(512).X, few_epochs)
    )
    if precision == plan.precision:
        return plan
    return solvers.predict_plan(task.solver, replace(base, precision=precision))


def _under(base: Plan, kernel: Kernel) -> Plan:
    """The sizes with rows as long as this kernel makes them, and the machine's rates for those."""
    width, rates = kernel.width(base.d), base.rates
    base = replace(base, width=0 if width == base.d else width)
    if rates is None:
        return base
    parts = kernel.widths(width) if isinstance(kernel, kernels.Sum) else [width]
    each = [measure(None, part, base.precision, base.device) for part in parts]
    block = 1 / sum(1 / part.block for part in each)  # one part after the other
    return replace(base, rates=replace(each[0], block=block, network=rates.network))


# ---- kernel, ridge and centers


def choose(
    task: Task, generator: torch.Generator, clock: Clock, promised: float | None
) -> tuple[Task, Design]:
    """Kernel and ridge on a sample, then the centers, then every size that was still open.

    `promised`: the error that a kernel and ridge chosen before are held to.
    """
    request, warm = task.request, task.start.warm
    choice = _agree(task, lambda: _with_signal(task, _choose_kernel(task)))
    if choice.expected is None:
        choice = replace(choice, expected=promised)
    if choice.solver is not None and choice.base is not None and task.start.plan is None:
        base = replace(choice.base, device=task.base.device)
        task = replace(task, solver=choice.solver, base=base)
    choice.kernel.validate(task.base.d)
    constants = task.comm.same(lambda: _find_constants(task))
    clock.mark()
    centers = choose_centers(task, choice.kernel, generator)
    clock.mark()
    if task.start.plan is not None:
        choice = replace(choice, ridge=task.start.plan.ridge)
    own = request.kernel or choice.kernel if warm is None else warm.model.kernel
    plan = final_plan(task, choice.kernel, choice.ridge, centers)
    each_row = task.data.rows.held is None
    plan = replace(plan, tried=choice.tried, chosen=choice.chosen, each_row=each_row)
    return task, Design(choice, own, centers, constants, plan, generator)


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


def _with_signal(task: Task, choice: Choice) -> Choice:
    """Of a Gaussian process: noise, unless it is given, and the signal's variance, by the
    likelihood of rows that are left out.
    """
    request, data = task.request, task.data
    if request.posterior is None:
        return choice
    if not has_waves(choice.kernel):
        raise InputError(
            f"uncertainty='posterior' draws functions of radial kernels, and kernel="
            f"{choice.kernel.name!r} has none; use another kernel, or uncertainty='conformal'."
        )
    units, noise, n = data.rows.units, None, data.source.n
    if n < FEWEST:
        raise InputError(
            f"uncertainty='posterior' was given with {n} rows, expected {FEWEST} or more, to tell"
            " noise from signal."
        )
    if request.ridge == 0:
        raise InputError(
            "uncertainty='posterior' needs a ridge above 0: it is the noise over the signal's"
            " variance; leave it out to have it chosen."
        )
    if request.posterior.noise is not None:
        if data.source.c > 1:
            raise InputError(
                f"noise={request.posterior.noise:g} was given for {data.source.c} outputs, which"
                " have units of their own; leave it out, or fit them one by one."
            )
        noise = request.posterior.noise / units.scale.double() ** 2
    start = choice.ridge if request.ridge is not None else max(choice.ridge, 1e-6)
    moments, rows = left_out_moments(choice.kernel, data.source, data.budget)
    each, merged = data.rows.each, None
    if each is not None and units.scatter is not None:
        merged = Merged(units.scatter.double() / data.target, float(len(each.y) - n))
    fixed, share = request.ridge is not None, rows / n
    found = likeliest(moments, start, fixed, noise, merged, share, data.targets)
    if found is None:
        raise InputError(
            f"K of the rows cannot be factored with ridge={choice.ridge:g}; use a larger ridge."
        )
    log.info("noise over signal %.3g, signal %s", found.ridge, found.signal.tolist())
    return replace(choice, ridge=found.ridge, signal=found.signal.cpu())


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
    _check_encodings(task, kernel)
    unset = kernel is None or (isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str))
    # Few epochs regularise too: for a kernel that is given, only an exact solution needs a ridge.

    def wants(solver: Solver) -> bool:
        return request.wants_ridge(solver) or (unset and solver.takes_ridge)

    free = request.ridge is None and (wants(task.solver) or task.more is not None)
    ridge = None if free else (request.ridge or 0.0) / weight
    if data.source.n < 2:
        lone = kernels.Laplacian(bandwidth=1.0) if kernel is None or unset else kernel
        return Choice(lone, 1e-6 if ridge is None else ridge)
    if kernel is not None and not unset and ridge is not None:
        return Choice(kernel, ridge)
    trace = Trace(task)
    with _compiling_ahead(task):
        found, sample, task = _tune(task, kernel, ridge, unset, trace)
    enough = len(sample.X) >= ENOUGH_ROWS
    promises = enough and task.solver.criterion == "loo" and found.error < float("inf")
    kept = wants(task.solver) or request.ridge is not None
    return Choice(
        found.kernel,
        found.ridge if kept else 0.0,
        found.error if promises else None,
        found.label,
        trace.tried or None,
        _judged(found, sample),
        solver=task.solver,
        base=task.base,
    )


def _check_encodings(task: Task, kernel: Kernel | None) -> None:
    """Raise where the user said how a kernel is to see columns, and gave one that can't."""
    if not task.data.rows.seen_as or (kernel is None and task.solver.criterion != "elbo"):
        return
    free = isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str)
    own = isinstance(kernel, Radial) and kernel.features is not None
    if not free or own or task.solver.criterion == "elbo":
        raise InputError(
            f"columns: how says how a kernel is to see columns of numbers, which"
            f" kernel={kernel!r} with solver={task.solver.name!r} can't do; give a kernel's name"
            " alone, or none, and another solver than 'sgpr'."
        )


def _check_codes(task: Task, sample: Sample) -> None:
    """Raise where a column has more values than can be names."""
    for j, way in task.data.rows.seen_as.items():
        values = len(torch.unique(sample.X[:, j]))
        if way == "codes" and values > kernels.CODES:
            name = task.data.rows.encoder.names[j]  # type: ignore[union-attr]
            raise InputError(
                f"columns: how of {name!r} is 'codes', expected at most {kernels.CODES} values, and"
                f" it has {values} or more; use 'quantile', or Columns(categorical=[{name!r}])."
            )


def _as_said(kernel: Kernel, task: Task, sample: Sample) -> Kernel:
    """A kernel that sees columns as the user said."""
    seen_as = task.data.rows.seen_as
    if not seen_as:
        return kernel
    features = kernels.encode_columns(sample.X, "standard", sample.w, seen_as)
    return replace(kernel, features=features)  # type: ignore[type-var]


def _judged(found: search.Choice, sample: Sample) -> Judged | None:
    """What the recipe said of rows it was not fitted to, in the units of the solver."""
    if found.values is None or sample.ratio < 1:
        return None  # of another model than that of few centers
    rows = len(found.values)
    mean = 0.0 if sample.frequencies is None else sample.frequencies
    parts = (found.values + mean, sample.Y[:rows] + mean, sample.w[:rows])
    return Judged(*(part.cpu() for part in parts))


class Trace:
    """What was tried, with scores and seconds from the start; and the seconds that are left."""

    def __init__(self, task: Task):
        limit = task.request.time_limit
        self.tried: list[tuple[str, float, float]] = []
        self._round: dict[str, float] = {}
        self._start, self._task = time.perf_counter(), task
        self._limit = math.inf if limit is None else CHOOSING * limit

    @property
    def left(self) -> float:
        return self._limit - (time.perf_counter() - self._start)

    def report(self, label: str, score: float) -> None:
        """Scores of different rounds are of different rows: the best is that of the present one."""
        self.tried.append((label, score, time.perf_counter() - self._start))
        if label in self._round:
            self.begin_round()
        self._round[label] = score
        self._task.choosing(label, score, min(self._round.values()), self.left)

    def begin_round(self) -> None:
        """What comes next is judged in another way; so is a recipe that comes again."""
        self._round = {}


def _tune(
    task: Task,
    kernel: Kernel | None,
    ridge: float | None,
    unset: bool,
    trace: Trace,
) -> tuple[search.Choice, Sample, Task]:
    """The kernel and ridge that do best on a sample, the sample, and the task with the number of
    centers that they are for.
    """
    fewer, task, asked = task, _with_every_row(task), ridge
    data, solver, base = task.data, task.solver, task.base
    generator = torch.Generator().manual_seed(base.seed)
    sample, ratio = _draw_sample(task, generator)
    _check_codes(task, sample)
    if task.request.ridge is None and ratio == 1:
        # Of the run it may be 0, since few epochs regularise; the kernel is
        # chosen as under the best ridge.
        ridge = None
    if solver.criterion == "elbo":
        noise = getattr(solver, "noise", None)
        noise = None if noise is None else (noise / data.rows.units.scale**2).to(sample.X)
        Z = task.start.own
        Z = None if Z is None else Z.to(sample.X)
        return elbo.tune_elbo(kernel, ridge, noise, sample, base.p, Z), sample, task
    effort = effort_of(data)
    if kernel is None:
        finalists = _choose_recipe(task, ridge, sample, trace)
    else:
        finalists = [search.tune(_as_said(kernel, task, sample), ridge, sample)]
    if fewer.more is not None:
        choice = _densest(finalists, task, ridge, sample, generator, trace)
        task = _exactly_in_time(task, choice, sample)
        if _worth_every_row(task, fewer.base.p, choice, sample, trace):
            return choice, sample, task
        task, base, ridge = fewer, fewer.base, asked
        sample = replace(sample, ratio=_share_of_centers(base, len(sample.X)))
        finalists = [search.in_regime(each, ridge, sample) for each in finalists]
    timed = finalists[0].kernel
    task = _timed(task, finalists[0], sample)
    short = _seconds_of_a_try(task) <= whole.LONGEST
    improves = kernel is None and short and data.by_time is None
    if improves:
        finalists = finalists[:1]
    if unset and base.p > search.LARGE:
        finalists = _sharpen(finalists, task, ridge, sample, generator)
    choice = finalists[0]
    if improves:
        choice = _improve(choice, task, ridge, generator, trace)
    elif kernel is None and _is_dense(task, effort.beyond) and trace.left > 0:
        choice = _judge_nearby(finalists, task, ridge, sample, trace)
    judged = min(len(sample.X), effort.judged)  # fewer than that where a class is rare
    if base.every_row and not data.rows.regression and judged < base.n <= effort.each:
        sample = _every_row(task)
        choice = _at_its_density(choice, ridge, sample)
    if choice.kernel is not timed:
        task = _timed(task, choice, sample)
    return choice, sample, task


def _densest(
    finalists: list[search.Choice],
    task: Task,
    ridge: float | None,
    sample: Sample,
    generator: torch.Generator,
    trace: Trace,
) -> search.Choice:
    """The choice for more rows as centers than usual: of single kernels, since a product with a sum
    takes as long as with each of them; another start is what suits neighbourhoods.
    """
    if task.request.kernel is not None:
        bandwidth = getattr(task.request.kernel, "bandwidth", None)
        unset = isinstance(bandwidth, str)
        return _sharpen(finalists, task, ridge, sample, generator)[0] if unset else finalists[0]
    if trace.left <= 0:
        return finalists[0]
    single = [each for each in finalists if not isinstance(each.kernel, kernels.Sum)]
    if not task.data.rows.seen_as:
        single.append(search.by_spread(sample, finalists[0].ridge))
    dense = _sharpen(single or finalists, task, ridge, sample, generator)
    return _judge_nearby(dense, task, ridge, sample, trace) if trace.left > 0 else dense[0]


def _timed(task: Task, choice: search.Choice, sample: Sample) -> Task:
    """Where PCG is to solve it: with the iterations that takes, and the rates of the machine for
    rows as this kernel sees them; by a factor, where that is quicker and nobody chose.
    """
    chosen = task.request.solver is not None
    if task.start.plan is not None:
        return task
    if task.base.iterations is not None and not chosen:
        task = replace(task, solver=solvers.PCG())  # which of the two is asked anew
    if not isinstance(task.solver, solvers.PCG):
        return task
    base = _under(task.base, choice.kernel)
    some = slice(effort_of(task.data).judged)
    X, Y, w = sample.X[some], sample.Y[some], sample.w[some]
    try:
        taken = solvers.expected_iterations(choice.kernel, X, Y, w, choice.ridge, base)
    except NotPositiveDefinite:
        return task
    task = replace(task, base=replace(base, iterations=taken))
    direct = replace(task, solver=solvers.Direct())
    return direct if not chosen and _seconds(direct) < _seconds(task) else task


def _with_every_row(task: Task) -> Task:
    """By steps, where it is open whether each row becomes a center; else as it is."""
    if task.more is None:
        return task
    return replace(task, solver=solvers.EigenPro2(), base=task.more)


def _exactly_in_time(task: Task, choice: search.Choice, sample: Sample) -> Task:
    """Solved exactly where that takes no longer than it may, else by steps as planned."""
    exact = replace(task, solver=solvers.PCG(), base=replace(task.base, epochs=0))
    exact = _timed(exact, choice, sample)
    log.info("every row a center: %.3g s, %s iterations", _seconds(exact), exact.base.iterations)
    if _seconds(exact) <= task.request.seconds[1]:
        return exact
    return replace(task, base=_under(task.base, choice.kernel))


def _worth_every_row(
    task: Task, fewer: int, choice: search.Choice, sample: Sample, trace: Trace
) -> bool:
    """Whether to solve with every row a center takes no longer than is usual, or than may be where
    the nearest of all rows say more of a row than the nearest of `fewer`.
    """
    if trace.left <= 0:
        return False
    usual, longest = task.request.seconds
    seconds = _seconds(task)
    if seconds <= usual or seconds > longest:
        return seconds <= usual
    scores, budget, source = [], task.data.budget // 3, task.data.source
    trace.begin_round()
    for p in (fewer, most_among([choice.kernel], source, budget)):
        generator = torch.Generator().manual_seed(task.base.seed)
        judge = Nearby(sample, source, p, budget, generator, by_time=task.data.by_time)
        if len(judge.X) < ENOUGH_ROWS:
            return False
        found = judge.verdict(judge.grams(choice.kernel), None, choice.ridge)
        scores.append(found.score)
        trace.report(_nearest_label(choice, task, p), found.score)
    return scores[1] < (1 - WORTHWHILE) * scores[0]


def _seconds(task: Task) -> float:
    """Predicted, of the solution; infinity where there is no room for it."""
    base = task.base
    if base.rates is None:
        base = replace(base, rates=measure(None, base.features, base.precision, base.device))
    try:
        plan = solvers.predict_plan(task.solver, base)
    except InputError:
        return math.inf
    return plan.seconds if plan.seconds and plan.bytes <= plan.budget else math.inf


def _is_dense(task: Task, centers: int) -> bool:
    """Whether the run has so many centers, and rows among which the nearest can be looked for."""
    return task.base.p >= centers and not isinstance(task.data.rows.X, Stream)


def _compiling_ahead(task: Task) -> AbstractContextManager[None]:
    """What the run will need on a GPU; a direct one needs nothing that is compiled."""
    base = task.base
    if isinstance(task.solver, solvers.Direct):
        return nullcontext()
    precision = (base.fine if task.solver.exact else None) or base.precision
    if task.request.precision is None and not task.solver.needs_ridge and eight_bits_pay(base):
        precision = "float8"
    return warming_up(base.d, base.c, precision, task.data.source.device)


def _seconds_of_a_try(task: Task) -> float:
    """What an exact solution of all rows takes, where that is the run and the rows are more than
    the sample's; else infinity.
    """
    base, effort = task.base, effort_of(task.data)
    exact = base.every_row and isinstance(task.solver, (solvers.Direct, solvers.PCG))
    learned = effort.thorough and task.request.ways.learned
    held = not isinstance(task.data.rows.X, Stream)
    if not (exact and learned and held and base.n > effort.judged):
        return math.inf
    return _seconds(task)


def _improve(
    choice: search.Choice,
    task: Task,
    ridge: float | None,
    generator: torch.Generator,
    trace: Trace,
) -> search.Choice:
    """The choice in the metric of its own model of all rows, where that is better."""
    order = torch.randperm(task.base.n, generator=generator)
    ones = torch.ones(len(order), dtype=torch.float64)
    sample, data = _sample_of(task, order, ones, 1.0), task.data
    most = task.base.iterations
    judge = whole.Whole(sample, data.tile_bytes, data.budget, most and 2 * most)
    time_is_left = lambda seconds: seconds <= trace.left  # noqa: E731
    expected = _seconds_of_a_try(task)
    trace.begin_round()
    return whole.improve(choice, judge, ridge is None, trace.report, time_is_left, expected)


def _sharpen(
    choices: list[search.Choice],
    task: Task,
    ridge: float | None,
    sample: Sample,
    generator: torch.Generator,
) -> list[search.Choice]:
    """The choices with bandwidths for so many centers, and the ridge for those: of the first all
    are scaled alike, where its metric is not as thorough as a GPU makes it; then neighbourhoods
    choose each. The nearest rows in time, which choose there, say nothing of later ones.
    """
    if task.data.by_time is not None:
        return choices
    starts = [choice.kernel for choice in choices]
    if task.request.kernel is not None or sample.X.device.type == "cpu":
        starts[0] = search.rescale(choices[0], sample)
    seeds = torch.randint(2**62, (len(choices),), generator=generator).tolist()
    budget = task.data.budget // 2 // workers_for(len(choices), sample.X.device)

    def sharpened(choice: search.Choice, kernel: Kernel, seed: int) -> search.Choice:
        own = torch.Generator().manual_seed(seed)
        return search.retune(_refine_locally(kernel, task, budget, own), choice, ridge, sample)

    work = [partial(sharpened, *each) for each in zip(choices, starts, seeds, strict=True)]
    return list(side_by_side(work, sample.X.device))


def _judge_nearby(
    finalists: list[search.Choice],
    task: Task,
    ridge: float | None,
    sample: Sample,
    trace: Trace,
) -> search.Choice:
    """The first, unless another is better by more than chance at the density of the run; with the
    ridge that is best there, where every row is a center.
    """
    if len(finalists) == 1 and not (task.base.every_row and ridge is None):
        return finalists[0]  # neither a kernel nor a ridge is to be chosen
    generator = torch.Generator().manual_seed(task.base.seed)
    budget = task.data.budget // 3 // workers_for(len(finalists), sample.X.device)
    source = task.data.source
    p = min(task.base.p, most_among([each.kernel for each in finalists], source, budget))
    judge = Nearby(sample, source, p, budget, generator, by_time=task.data.by_time)
    if len(judge.X) < ENOUGH_ROWS:
        return finalists[0]
    every_row = task.base.every_row

    def verdict(choice: search.Choice) -> Verdict:
        # Of few centers the ridge is another one.
        given, near = (ridge, choice.ridge) if every_row else (None, 1e-2)
        return judge.verdict(judge.grams(choice.kernel), given, near)

    verdicts = []
    trace.begin_round()
    work = [partial(verdict, choice) for choice in finalists]
    for choice, found in zip(finalists, side_by_side(work, sample.X.device), strict=True):
        verdicts.append(found)
        trace.report(_nearest_label(choice, task, p), found.score)
    better = [i for i, each in enumerate(verdicts) if judge.prefers(each, verdicts[0])]
    best = min(better, key=lambda i: verdicts[i].score, default=0)
    if not every_row or not math.isfinite(verdicts[best].score):
        return finalists[best]
    return replace(finalists[best], ridge=verdicts[best].ridge)


def _nearest_label(choice: search.Choice, task: Task, p: int) -> str:
    """The choice as it is listed where rows are judged by the nearest of p others."""
    which = "rows" if task.data.by_time is None else "earlier rows"
    return f"{choice.label}, nearest of {p} {which}"


def _choose_recipe(
    task: Task, ridge: float | None, sample: Sample, trace: Trace
) -> list[search.Choice]:
    """The best recipe, with the best ridge in the regime of the real run; and its rivals, where
    there is time and the run is so much denser that they may be better.
    """
    few = ridge if sample.ratio >= 1 else None
    request, rows, effort = task.request, task.data.rows, effort_of(task.data)
    meet_again = _is_dense(task, effort.rivalled)
    if meet_again:
        effort = replace(effort, judged=effort.sifted)
    contest = recipes.Contest(sample, few, effort, request.ways, rows.seen_as)
    found = recipes.choose_recipe(contest, trace.report, lambda: trace.left > 0)
    rivals = meet_again and trace.left > 0
    choices = [
        search.Choice(
            each.kernel, each.verdict.ridge, each.verdict.error, each.label, each.verdict.values
        )
        for each in (found if rivals else found[:1])
    ]
    if sample.ratio >= 1:
        return choices
    return [search.in_regime(choice, ridge, sample) for choice in choices]


def _at_its_density(choice: search.Choice, ridge: float | None, sample: Sample) -> search.Choice:
    """The ridge, unless it is given, the error and the values of all rows of the run, each left
    out by itself.
    """
    judge = EachRow(sample)
    found = judge.verdict(judge.grams(choice.kernel), ridge, choice.ridge)
    if not math.isfinite(found.score):
        return replace(choice, values=None)
    return replace(choice, ridge=found.ridge, error=found.error, values=found.values)


def _refine_locally(kernel: Kernel, task: Task, budget: int, generator: torch.Generator) -> Kernel:
    """Every radial part with the bandwidths that neighbourhoods choose; the same object where that
    does not help.
    """
    source, p = task.data.source, task.base.p
    if isinstance(kernel, kernels.Sum):
        seeds = torch.randint(2**62, (len(kernel.parts),), generator=generator).tolist()
        own = [torch.Generator().manual_seed(seed) for seed in seeds]
        share = budget // workers_for(len(seeds), source.device)
        work = [
            partial(_refine_locally, part, task, share, each)
            for part, each in zip(kernel.parts, own, strict=True)
        ]
        parts = list(side_by_side(work, source.device))
        same = all(part is old for part, old in zip(parts, kernel.parts, strict=True))
        return kernel if same else kernels.Sum(parts, kernel.weights)  # type: ignore[arg-type]
    if not isinstance(kernel, Radial):
        return kernel
    groups = _groups(kernel, task.data.rows.columns)
    single = kernel.features is None and not isinstance(kernel.bandwidth, Tensor)
    if single or int(groups.max()) >= search.MANY_FEATURES or len(groups) > MOST_REFINED:
        return kernel
    return local.refine_locally(kernel, groups, source, p, budget, generator)


def _groups(kernel: Radial, columns: Tensor) -> Tensor:
    """Which of the kernel's features share a bandwidth: those of one column, where they are known
    to be of one.
    """
    features, d = kernel.features, len(columns)
    if features is None and d <= search.MANY_FEATURES:  # each by itself, but for a random code
        wide = torch.bincount(columns)[columns] > search.WIDE
        return torch.unique(torch.where(wide, columns + d, torch.arange(d)), return_inverse=True)[1]
    if features is None:
        return columns
    return columns[features.column] if features.map is None else torch.arange(len(features))


def effort_of(data: Data) -> Effort:
    return Effort.on(data.source.device, data.budget)


def _draw_sample(task: Task, generator: torch.Generator) -> tuple[Sample, float]:
    """Rows to choose on, and the share of them that are centers."""
    data, base = task.data, task.base
    n = base.n
    # Few rows are all taken, in an order that no seed changes: they come sorted, and the first
    # ones must not be alike.
    drawn = torch.Generator().manual_seed(0) if n <= CHECK_ROWS else generator
    most = max(SAMPLE_ROWS, effort_of(data).judged)
    rows, stands_for = draw(n, data.codes, drawn, most)
    ratio = 1.0 if base.every_row else _share_of_centers(base, len(rows))
    return _sample_of(task, rows, stands_for, ratio), ratio


def _share_of_centers(base: Plan, rows: int) -> float:
    """In the proportion of the real run, but never with so few centers that a kernel for few is
    chosen (covertype: 80 % instead of 90).
    """
    n, p = base.n, base.p
    return min(1.0, max(p / n, min(p, search.MAX_CENTERS) / rows))


def _every_row(task: Task) -> Sample:
    rows = torch.arange(task.base.n)
    return _sample_of(task, rows, torch.ones(len(rows), dtype=torch.float64), 1.0)


def _sample_of(task: Task, rows: Tensor, stands_for: Tensor, ratio: float) -> Sample:
    """These rows, each of which stands for so many."""
    data, n = task.data, task.base.n
    batch = data.source.take(rows)
    X, Y, w = (part.to(data.source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    scatter = data.rows.units.scatter
    scatter = None if scatter is None else (scatter / (n * data.weight)).to(X)
    frequencies = None if data.rows.regression else data.rows.units.mean.to(X)
    w = w * stands_for.to(w)
    columns = data.rows.columns.to(X.device)
    return Sample(
        X,
        Y,
        w,
        ratio,
        data.weight,
        scatter,
        columns,
        torch.bincount(columns)[columns],
        frequencies,
        task.request.scoring,
    )


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
    if task.request.centers == ways.MEANS:
        Z = task.comm.same(lambda: ways.means(_bound(task, kernel), source, base.p, generator))
        return Centers(Z[shard(team)].to(base.device))
    chosen, drawn_so_far = task.comm.same(
        lambda: (_draw_centers(task, kernel, generator), generator.get_state())
    )
    generator.set_state(drawn_so_far)
    return Centers(source.take(chosen[shard(team)]).X.to(base.device))


def _draw_centers(task: Task, kernel: Kernel, generator: torch.Generator) -> Tensor:
    """The numbers of the rows that become centers."""
    how, source, base = task.request.centers, task.data.source, task.base
    assert isinstance(how, str)
    # The other ways look at distances.
    K = None if how in ("uniform", "balanced") else _bound(task, kernel)
    return ways.choose(how, K, source, task.data.codes, base.p, generator)


def _bound(task: Task, kernel: Kernel) -> KernelProduct:
    """The kernel in the frame of some rows."""
    source, base = task.data.source, task.base
    origin, spread = frame(kernel, source.take(torch.arange(min(source.n, 10_000))).X)
    device = torch.device(base.device)
    return bind(kernel, origin, base.precision, device, base.tile_bytes, spread)
