"""From rows to a fitted model, in six stages: read, plan, choose, prepare, run, finish."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from .. import solvers
from ..callbacks.early_stopping import EarlyStopping, Level, NoEarlyStopping
from ..callbacks.listeners import Callback, Listeners
from ..callbacks.progress import ChoosingLine, announce, plan_line
from ..callbacks.validation import NoValidation, Validation
from ..data import Stream
from ..distributed.team import Alone, Communicator, leads
from ..errors import InputError, warn
from ..planning.plan import Plan
from ..scoring import USUAL
from ..signals import Ends
from ..solvers import Ended, NotFinite, Problem, Solution, State
from ..storage.identity import describe
from ..storage.run_folder import Choices, NoRun, state_of
from .check import check, may_repeat, verify
from .choose import choose, decide
from .clock import Clock
from .design import Design, Start, Task, Warm
from .draws import Draws, NoDraws, rescale
from .fitted import Blueprint, Fitted
from .request import Request
from .rows import Data, Rows, read

log = logging.getLogger("kernelmill")


@dataclass(frozen=True)
class Surroundings:
    """What a fit happens in: its ranks, its folder, who listens, and which signals end it.

    `verbose` announces the plan.
    """

    comm: Communicator = field(default_factory=Alone)
    store: NoRun = field(default_factory=NoRun)
    ends: Ends = field(default_factory=lambda: Ends(Alone()))
    callbacks: Sequence[Callback] = ()
    verbose: bool = False


def learn(
    request: Request,
    rows: Rows,
    around: Surroundings | None = None,
    *,
    warm: Warm | None = None,
    promised: float | None = None,
    retry: bool = True,
) -> Fitted:
    """A model of these rows, as asked for; `warm` is one to go on from.

    Where the model does worse than choosing promised, other ways are tried: `retry`. `promised` is
    what it is held to where nothing is chosen.
    """
    around, clock = around or Surroundings(), Clock()
    store, comm = around.store, around.comm
    data = read(rows, request, comm)  # 1 read: rows and targets where they are trained on
    # From a run, a fitted model, a stored plan, or nothing.
    start = begin(request, data, store, warm)
    task = decide(request, data, start, comm)  # 2 plan: the solver and its sizes
    generator = torch.Generator().manual_seed(request.seed)
    task = mix(check_solver(task, around.verbose), generator)
    if around.verbose and leads(comm):
        task = replace(task, choosing=ChoosingLine())
    design = start.design(request, task.base)  # 3 choose: kernel, ridge, centers
    if design is None:
        task, design = choose(task, generator, clock, promised)
        store.write_choices(choices(task, design), task.team, comm)
    announce_memory(design.plan, data.budget)
    draws = draws_of(task, design)
    blueprint = Blueprint.of(task, design, draws)
    listeners = listen(task, design, blueprint, around, deadline(task, design.plan, clock.start))
    plan, state = first_state(task, design, listeners)
    try:
        problem = Problem(
            design.kernel,
            draws.beside(task.data.shared(task.team)),
            design.centers.Z,
            task.team,
            design.generator,
        )
        solve = partial(solvers.drive, task.solver, problem, plan, listeners, state)
        solution = start.finished(state)
        if solution is None:  # 4 prepare, 5 run
            solution = solve() if task.solver.sharded else by_one(comm, solve, listeners)
    except NotFinite:
        if not retry or not may_repeat(request, around.store, comm):
            raise
        ridge = design.choice.ridge * task.data.weight * design.unit
        again = replace(request, kernel=design.own_kernel, ridge=ridge, precision="float64")
        again = again.after(time.perf_counter() - clock.start)
        fitted = learn(again, rows, around, warm=warm, retry=False)
    else:
        clock.mark()
        fitted = finish(task, design, blueprint, solution, listeners, clock)  # 6 finish
        del solution
    if not retry:
        return fitted
    limit, taken = request.time_limit, time.perf_counter() - clock.start
    repeats = may_repeat(request, store, comm) and (limit is None or taken < limit / 2)
    request = request.after(taken)
    del problem, solve, state, listeners, blueprint, design, task, data, start  # of the first try
    return verify(request, fitted, partial(learn, rows=rows, around=around, retry=False), repeats)


def begin(request: Request, data: Data, store: NoRun, warm: Warm | None) -> Start:
    """A run goes on with its own plan and choices; a fit anew may have a plan, a model or centers
    given.
    """
    if warm is not None:
        warm.check(request, data)
    own = request.centers_given(data.source.d, data.rows.X.dtype, data.rows.bounds)
    store.identify(lambda: identify(request, data))
    plan = request.plan if store.choices is None else store.choices["plan"]
    return Start(plan, warm, own, store.choices, store.saved)


def identify(request: Request, data: Data) -> dict[str, str]:
    """What must be the same for a run to be resumed."""
    source = data.source
    sizes = {
        "rows": source.n,
        "features": source.d,
        "outputs": source.c,
        "device": source.device.type,
    }
    return {name: describe(value) for name, value in {**sizes, **request.settings}.items()}


def check_solver(task: Task, verbose: bool) -> Task:
    """Refuse what the solver cannot do, before anything takes time."""
    solver, rows, start = task.solver, task.data.rows, task.start
    if start.warm is not None:
        start.warm.check_team(task.team)
    if solver.for_classes and rows.regression:
        raise InputError(
            f"solver={solver!r} learns classes; use KernelClassifier, or another solver for a"
            " regression."
        )
    if task.request.posterior is not None:
        _check_posterior(task)
    if isinstance(rows.X, Stream) and solver.every_row:
        raise InputError(
            f"solver={solver.name!r} keeps every row in memory, and {rows.nbytes / 2**30:.1f} GiB"
            " of rows do not fit; use 'eigenpro4' or 'falkon', or a larger memory_budget."
        )
    outlook = start.plan or solvers.predict_plan(solver, task.base)
    if verbose and leads(task.comm):
        announce(outlook)
    return task


def _check_posterior(task: Task) -> None:
    solver = task.solver
    if solver.loss_name != "square" or solver.criterion == "elbo":
        raise InputError(
            f"uncertainty='posterior' was given with solver={solver!r}, expected one of the square"
            " loss that is no Gaussian process itself; leave one of the two out."
        )
    if task.start.warm is not None:
        raise InputError(
            "uncertainty='posterior' was given with warm_start=True, and draws of a posterior"
            " cannot be continued; set warm_start=False."
        )


def mix(task: Task, generator: torch.Generator) -> Task:
    """Rows that are all centers may come sorted, and the first ones must be a random subsample."""
    solver, data = task.solver, task.data
    if not (task.base.every_row and solver.every_row and solver.subsamples):
        return task
    return replace(task, data=data.permuted(torch.randperm(data.source.n, generator=generator)))


def draws_of(task: Task, design: Design) -> NoDraws:
    """Functions to be learned beside the targets, where a posterior is asked for."""
    settings, signal = task.request.posterior, design.choice.signal
    if settings is None or signal is None:
        return NoDraws()
    plan, data = design.plan, task.data
    args = (design.kernel, data.source, plan.ridge, data.targets, signal, plan.seed)
    return Draws.of(settings, *args, plan.torch_dtype)


def choices(task: Task, design: Design) -> Choices:
    """What a run folder keeps of the decisions."""
    X = task.data.rows.X
    return {
        **design.to_choices(),
        "each_row": task.data.rows.held is None,
        "window_rows": X.window_rows if isinstance(X, Stream) else 0,
    }


def announce_memory(plan: Plan, budget: int) -> None:
    """Warn where a fit, perhaps one that began elsewhere, does not fit this machine."""
    log.info("%s", plan_line(plan))
    if plan.bytes > budget:
        warn(
            f"this fit is predicted to take {plan.bytes / 2**20:.0f} MiB, more than the"
            f" {budget / 2**20:.0f} MiB it may; use fewer centers or a larger memory_budget."
        )


def deadline(task: Task, plan: Plan, start: float) -> float:
    """When solving has to be over: at the time limit, but it has a quarter of it in any case; where
    more time than usual was taken for more centers, after the most that it may be.
    """
    request, now = task.request, time.perf_counter()
    if request.time_limit is not None:
        return max(start + request.time_limit, now + request.time_limit / 4)
    usual, longest = request.seconds
    anew = task.start.plan is None and task.start.given is None
    chosen = anew and request.solver is None and request.n_centers is None
    return now + longest if chosen and plan.every_row and (plan.seconds or 0) > usual else math.inf


def model_weights(design: Design, blueprint: Blueprint, alpha: Tensor) -> Tensor:
    """A solver's weights as those of the model: in the user's units and order of centers, without
    those of drawn functions.
    """
    alpha, _ = design.centers.restore(blueprint.weights(alpha), blueprint.comm)
    alpha = alpha[:, : len(blueprint.units.scale)]
    return alpha if design.unit == 1 else alpha.double() / design.unit


def listen(
    task: Task,
    design: Design,
    blueprint: Blueprint,
    around: Surroundings,
    deadline: float = math.inf,
) -> Listeners:
    """One listener for each duty."""
    rows, team = task.data.rows, task.team
    validation, stopping = NoValidation(), NoEarlyStopping()
    if rows.held is not None:
        name = task.request.scoring or USUAL[rows.regression]
        validation = Validation(partial(score_held, blueprint, rows, name))
        if task.request.early_stopping:
            stopping = EarlyStopping(task.solver.patience)
        elif _ends_level(task):
            stopping = Level()
    return Listeners(
        validation,
        stopping,
        around.callbacks,
        partial(model_weights, design, blueprint),
        around.store,
        around.ends,
        team,
        deadline,
    )


def _ends_level(task: Task) -> bool:
    """Whether conjugate gradients may end before their residual is small: not those that learn
    functions of a posterior besides, which held-out rows say nothing of.
    """
    request, solver = task.request, task.solver
    if not isinstance(solver, solvers.PCG) or solver.tolerance is not None:
        return False
    plain = request.epochs is None and request.posterior is None and request.scoring is None
    return plain and task.data.rows.regression


def score_held(blueprint: Blueprint, rows: Rows, name: str, alpha: Tensor) -> float:
    """The score of held-out rows under a solver's weights; all ranks decide by one."""
    model, held = blueprint.model(blueprint.weights(alpha)), rows.held
    assert held is not None
    with torch.no_grad():
        values = model(held.X).cpu()
    return blueprint.comm.same(lambda: rows.score_held(name, values))


def first_state(task: Task, design: Design, listeners: Listeners) -> tuple[Plan, State | None]:
    """The state of a run, of a model's weights, or None; and the plan that goes with it."""
    saved, warm, device = task.start.saved, task.start.warm, task.data.device
    if saved is not None:
        state = state_of(saved, task.solver, device)
        state.plan = replace(state.plan, device=device, ranks=task.comm.size)
        best = saved["dealt"].get("best")
        listeners.restore(saved["watch"], None if best is None else best.to(device))
        log.info("resumed after %d epochs and %d rows", state.epoch, state.position)
        return state.plan, state
    if warm is not None:
        return design.plan, task.solver.start_from(
            design.plan, warm.weights(design, task.data, task.team)
        )
    return design.plan, None


def by_one(comm: Communicator, solve: Callable[[], Solution], listeners: Listeners) -> Solution:
    """Rank 0 solves, where the solver is not sharded, and all get its weights."""
    solution, kept, interrupted, late, stopped = comm.same(
        lambda: (
            solve(),
            listeners.kept(),
            listeners.interrupted,
            listeners.late,
            listeners.stopping.stopped,
        )
    )
    listeners.restore(kept, kept["best"])
    listeners.interrupted, listeners.late = interrupted, late
    listeners.stopping.stopped = stopped
    return solution


def finish(
    task: Task,
    design: Design,
    blueprint: Blueprint,
    solution: Solution,
    listeners: Listeners,
    clock: Clock,
) -> Fitted:
    """The model in the user's own order and units, and how it compares with what was promised."""
    state, data, team = solution.state, task.data, task.team
    best = listeners.stopping.best
    alpha = blueprint.weights((state.alpha if best is None else best).to(state.plan.torch_dtype))
    alpha, Z = design.centers.restore(alpha, team)
    blueprint = replace(blueprint, kernel=design.own_kernel, Z=Z)
    model = blueprint.model(alpha, state.plan.precision, state, design.unit)
    if task.request.posterior is not None and task.request.posterior.noise is None:
        rescale(model, data.rows.held, data.target)
    ended = ""
    if listeners.late and solution.ended is Ended.STOPPED:
        limit = task.request.time_limit
        why = "it took longer than expected" if limit is None else "its time_limit is over"
        ended = (
            f"fit ended after {state.epoch} of {state.plan.epochs} epochs because {why}; the last"
            " good model is kept."
        )
    if solution.worth_a_word and not listeners.stopping.stopped:
        epochs = f"{state.epoch} of {state.plan.epochs} epochs"
        ended = f"fit ended after {epochs} because {solution.why}; the last good model is kept."
    fitted = Fitted(
        model,
        state.plan,
        design.choice.ridge * data.weight * design.unit,
        task.solver,
        max(1, state.epoch),
        listeners.history.rows,
        clock.timings(),
        data,
        listeners.interrupted,
        ended,
        judged=design.choice.judged,
    )
    level = isinstance(listeners.stopping, Level) and listeners.stopping.stopped
    own = level or (listeners.late and task.request.time_limit is None)  # not the user's end
    asked = listeners.interrupted or (solution.ended is Ended.STOPPED and not own)
    expected = design.choice.expected
    if expected is None or asked or task.solver.loss_name != "square" or not task.covers_all_ranks:
        return fitted
    return replace(fitted, check=check(model, data.rows, data.source, expected))
