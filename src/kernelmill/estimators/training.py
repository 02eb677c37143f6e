"""What a fit does, once its rows are checked: tune, choose centers, plan, solve. Estimators in, their fitted attributes out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from .. import centers as centers_room
from .. import kernels, solvers
from ..callbacks.progress import announce, plan_line
from ..data import Source, Stream, source_of
from ..distributed.environment import restarted
from ..distributed.team import Alone, Communicator, largest, shard
from ..errors import InputError, KernelmillError, one_of, warn
from ..kernels import Kernel, Radial
from ..model import KernelModel
from ..ops import KernelProduct, frame
from ..planning.arguments import is_auto, whole
from ..planning.device import device_of
from ..planning.machine import Network, connection, measure
from ..planning.memory import parse_bytes, tile_bytes
from ..planning.plan import Plan
from ..planning.precision import fine_precision, precision_for, precision_of
from ..signals import Ends
from ..solvers import Ended
from ..solvers.direct import direct_is_instant
from ..storage.identity import identity as run_identity
from ..storage.run_folder import Run, state_of
from ..tuning import elbo, search
from ..tuning import local as neighbourhoods
from ..tuning.sample import CHECK_ROWS, Sample, draw
from .agreement import agree_on_data, prints, seed_of
from .check import DOUBT, WORSE, Check, adopt, check, in_float64, other_ways, warn_of
from .equations import equations, exact
from .rows import Units, constant_features
from .watch import Watch

if TYPE_CHECKING:
    from .base import KernelEstimator

log = logging.getLogger("kernelmill")

ENOUGH_ROWS = 200  # of a sample whose error is a promise; of fewer it is mostly chance

STAGES = ("choosing kernel and solver", "choosing centers", "solving")


def train(
    estimator: KernelEstimator,
    X: Any,
    y: Tensor,
    w: Tensor,
    units: Units,
    labels: Tensor | None,
    held: tuple[Tensor, Tensor, Tensor] | None,
    keep: Tensor | None = None,
    first_chunk: bool = False,
) -> None:
    """Tune, choose centers, plan, solve. y: (n, c) targets or (n,) class codes; held: rows kept out, for the validation score;
    keep: the numbers of the rows to train on, all where it is None; first_chunk: others will follow, to `partial_fit`."""
    ends, data = Ends(estimator._comm), {}
    if isinstance(X, Stream):
        X.table.files.mark()  # before the first row is trained on
    if estimator._comm.size > 1 or estimator.checkpoint is not None:
        data = prints(X, y, w, held if keep is None else None)
        agree_on_data(estimator._comm, tuple(X.shape), data)
    rest = X, y, w, units, labels, held, keep
    if estimator.checkpoint is None:
        with ends.listening():
            once = partial(_train, estimator, *rest, None, ends, first_chunk)
            return _verified(estimator, once, lambda other, promised: _train(other, *rest, None, ends, first_chunk, promised))
    run = Run(estimator.checkpoint, estimator.checkpoint_every, bool(estimator.resume) or restarted(), estimator._comm)
    run.data = {**seed_of(estimator), **data}
    try:
        with run.listening(), ends.listening():
            return _verified(estimator, partial(_train, estimator, *rest, run, ends, first_chunk), lambda other, promised: None)
    finally:
        run.close()


def _verified(
    estimator: KernelEstimator, once: Callable[[], Check | None], again: Callable[[KernelEstimator, float | None], Check | None]
) -> None:
    """Keep the best of the ways to train where the first one did worse than tuning promised; warn where none did as well."""
    try:
        found = once()
    except solvers.NotFinite:
        other = in_float64(estimator)
        if other is None:
            raise
        found = again(other, None)
        adopt(estimator, other)
    if found is None or found.within(DOUBT):
        return
    for other in other_ways(estimator):
        log.info("error %.4g where %.4g was expected: trying %s with ridge %.3g", found.found, found.expected, other.solver, other.ridge)
        try:
            tried = again(other, found.expected)
        except (KernelmillError, MemoryError, torch.OutOfMemoryError, torch.linalg.LinAlgError) as error:
            log.info("it failed: %s", error)  # the first model is there
            continue
        if tried is None:  # it was stopped: so is the fit
            break
        if tried.found < found.found or found.found != found.found:
            adopt(estimator, other)
            found = tried
        if found.within(DOUBT):
            return
    if not found.within(WORSE):
        warn_of(found, estimator)


def _train(
    estimator: KernelEstimator, X, y, w, units: Units, labels, held, keep, run: Run | None, ends: Ends, first_chunk: bool, promised=None
) -> Check | None:
    """promised: the error that a kernel and ridge chosen before are held to."""
    clock, comm = [time.perf_counter()], estimator._comm
    if first_chunk and comm.size > 1:
        raise InputError(f"partial_fit runs in one process, and this job has {comm.size} ranks; use fit.")
    stored = estimator.solver if isinstance(estimator.solver, Plan) else None
    before = run.choices if run else None
    if stored:
        own_choice = [name for name in ("ridge", "epochs", "precision", "memory_budget") if not is_auto(getattr(estimator, name))]
        if own_choice:
            raise InputError(f"a plan was given as solver, which has its own {' and '.join(own_choice)}; leave them out.")
    seed = stored.seed if stored else int(estimator._random().randint(2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    device = stored.device if stored and comm.size == 1 else device_of(estimator.device, X)
    whole("epochs", None if is_auto(estimator.epochs) else estimator.epochs, 1)
    if X.is_cuda and X.device != torch.empty(0, device=device).device:
        X = X.to(device)
    budget = stored.budget if stored else int(-largest(comm, -parse_bytes(estimator.memory_budget, device)))  # of the poorest rank
    tile = tile_bytes(budget, device)
    scale = (w if keep is None else w[keep]).mean().item()  # inside, weights have mean 1 and the ridge is λ over this
    w = w / scale
    size = X.nbytes + y.nbytes
    streamed = isinstance(X, Stream)
    if isinstance(X, Stream) and device == "cpu":
        budget = max(1 << 20, budget - 3 * X.window_bytes)
    elif estimator._learned is not None and device == "cpu":
        budget -= min(budget // 2, size)  # read from a file: no memory of the user's own
    once = estimator.epochs == 1 and not is_auto(estimator.solver)  # an exact solution, which "auto" may take, reads them many times
    if device.startswith("cuda") and not X.is_cuda and not streamed and not once and size <= budget // 3 and comm.size == 1:
        # Rows that are read more than once are copied once. For a single epoch copying them batch by batch hides behind the steps.
        X, y, budget = X.to(device), y.to(device), budget - size
    rows_of = partial(source_of, X, y, mean=units.mean, scale=units.scale, w=None if bool((w == 1).all()) else w, seed=seed, device=device)
    source = rows_of(keep=keep)
    n, d, c = source.n, source.d, source.c
    warm = _warm(estimator, d, c)
    given = None if is_auto(estimator.kernel) else kernels.resolve(estimator.kernel).owned()
    kind = given or kernels.Laplacian()
    precision = precision_of(estimator.precision, X.dtype.itemsize, d, kind, device)
    if warm is not None and warm.alpha.dtype == torch.float64:
        precision = "float64"  # weights that large would not survive in fewer digits

    own = _own_centers(estimator, X)
    base = Plan(
        "auto",
        n,
        d,
        c,
        0,
        precision=precision,
        fine=fine_precision(estimator.precision, labels is None),
        regression=labels is None,
        device=device,
        x_bytes=X.dtype.itemsize,
        seed=seed,
        epochs=0 if is_auto(estimator.epochs) else int(estimator.epochs),  # type: ignore[arg-type]
        ridge=1.0 if is_auto(estimator.ridge) else _given_ridge(estimator) / scale,  # where one will be chosen, it is above 0
        weight=scale,
        scatter=None if units.scatter is None else units.scatter.tolist(),
        tile_bytes=tile,
        budget=budget,
        ranks=comm.size,
    )
    fixed = warm.n_centers if warm is not None else len(own) if own is not None else _count_centers(estimator, n)
    identity = _identity(estimator, source, y, keep) if run else {}
    if run and before:
        run.check(identity)
        stored = before["plan"]
        if "scale" not in before:  # a run of before targets had a unit of their own
            units = Units.of(units.mean)
            rows_of = partial(rows_of, scale=None)
            source = rows_of(keep=keep)
    if stored:
        solver, base = _again(estimator, replace(stored, device=device, ranks=comm.size), base, fixed)
        stored = base
    else:
        network = connection(comm, device)
        if comm.size > 1 and is_auto(estimator.solver):
            measure(given, d, precision, device)  # while all ranks do, as they will in training; what is known is not measured again
        solver, base = comm.same(lambda: _solver(estimator, base, given, fixed, own is None and warm is None, network))
        base = replace(base, device=device)
    team = comm if solver.sharded else Alone()
    dealt = warm is not None and warm.comm.size > 1
    if warm is not None and dealt and warm.comm.size != team.size:
        raise InputError(f"warm_start=True, but {warm.comm.size} ranks share the model and {team.size} would go on with it; load it anew.")
    if solver.for_classes and labels is None:
        raise InputError(f"solver={solver!r} learns classes; use KernelClassifier, or another solver for a regression.")
    if streamed and solver.every_row:
        raise InputError(
            f"solver={solver.name!r} keeps every row in memory, and {size / 2**30:.1f} GiB of rows do not fit; "
            "use 'eigenpro4' or 'falkon', or a larger memory_budget."
        )
    p, every_row = base.p, base.every_row
    if every_row and solver.every_row and solver.subsamples and not _as_given(before, source, team):
        # Rows may come sorted; their first ones must be a random subsample.
        mixed = torch.randperm(n, generator=generator)
        keep = mixed if keep is None else keep[mixed]
        source = rows_of(keep=keep)

    if not solver.needs_ridge and is_auto(estimator.ridge):
        base = replace(base, ridge=0.0)
    outlook = stored or solvers.predicted(solver, base)  # settings that cannot be used are said before anything takes time
    if estimator.verbose and comm.rank == 0:
        announce(outlook)
    # Tuning draws from numbers of its own: centers are the same whether or not there is anything to tune.
    if before:
        kernel, ridge, expected = before["kernel"] or given or kind, before["ridge"], before.get("expected")
    else:
        estimator._fitted_with = {name: repr(getattr(estimator, name)) for name in ("kernel", "n_centers", "centers")}
        drawn = torch.Generator().manual_seed(seed)
        codes = labels if labels is None or keep is None else labels[keep]
        tell = partial(_choose, estimator, source, scale, p, solver, every_row, warm, own, budget, drawn, codes, units)
        kernel, ridge, expected = _agreed(estimator, comm, tell)
        expected = promised if expected is None else expected
    kernel.validate(d)
    constants = before.get("constants", {}) if before else comm.same(lambda: _constants(estimator, source, own, warm))
    own_kernel = warm.kernel if warm is not None else given or kernel
    factor = kernels.magnification(own_kernel, kernel)
    unit = factor ** (2 * (kernel.homogeneity or 0))  # K of the user's kernel is this times K of the one that is trained with
    clock.append(time.perf_counter())
    if before:
        Z, order, every_row = before.get("dealt", before)["Z"], before["order"], before["every_row"]
        generator.set_state(before["generator"])
    elif warm is not None or own is not None:
        # Where any first rows must be a random subsample; undone below.
        order = torch.randperm(p, generator=generator) if solver.subsamples and not dealt else None
        Z = own if warm is None else warm.Z
        assert Z is not None
        Z = Z if dealt else (Z if order is None else Z[order.to(Z.device)])[shard(team)]
    elif every_row and (solver.every_row or not solver.subsamples):
        Z, order = source.take(torch.arange(n)[shard(team)]).X, None  # row for row, so that the model does not depend on a seed
    else:
        labels = labels if labels is None or keep is None else labels[keep]
        chosen, drawn_so_far = comm.same(
            lambda: (_centers(estimator, source, kernel, precision, device, tile, labels, p, generator), generator.get_state())
        )
        Z, order, every_row = source.take(chosen[shard(team)]).X, None, False
        generator.set_state(drawn_so_far)
    Z = Z.to(device)
    clock.append(time.perf_counter())

    if stored and not before:
        ridge = stored.ridge
    base = replace(base, every_row=every_row, ridge=ridge)
    plan = stored or solvers.predicted(solver, base)
    if not stored:  # the bandwidth, which says how far apart rows are, is known only now
        precision = comm.same(lambda: precision_for(estimator.precision, plan, kernel, Z, source.some(512).X))
        plan = plan if precision == plan.precision else solvers.predicted(solver, replace(base, precision=precision))
    log.info("%s", plan_line(plan))
    if plan.bytes > budget:
        warn(
            f"this fit is predicted to take {plan.bytes / 2**20:.0f} MiB, more than the {budget / 2**20:.0f} MiB it may; "
            "use fewer centers or a larger memory_budget."
        )
    if run and not before:
        choices = {"kernel": kernel, "ridge": ridge, "plan": plan, "dealt": {"Z": Z}, "order": order, "every_row": every_row}
        choices |= {"scale": units.scale, "expected": expected, "constants": constants}
        run.team = team
        if team.size == comm.size or comm.rank == 0:
            run.write_choices(
                {
                    **choices,
                    "generator": generator.get_state(),
                    "identity": identity,
                    "random_state": estimator._drawn or 0,
                    "window_rows": X.window_rows if isinstance(X, Stream) else 0,
                }
            )
    watch = Watch(estimator, solver, kernel, Z, Units(solver.intercept(units.mean), units.scale), held, plan, run, team, ends)
    watch.constants = constants
    state = None
    if run and run.saved:
        state = state_of(run.saved, device)
        state.plan = plan = replace(state.plan, device=device, ranks=comm.size)
        watch.restore(run.saved["watch"], run.saved.get("dealt", {}), device)
        log.info("going on after %d epochs and %d rows of %s", state.epoch, state.position, run.folder)
    elif warm is not None and solver.name != "direct":
        alpha = warm.alpha * unit
        alpha = alpha if order is None else alpha[order.to(alpha.device)]
        alpha = ((alpha if dealt else alpha[shard(team)]).to(device) / units.scale.to(device)).to(plan.torch_dtype)
        state = solver.state.of(plan, alpha)
    if run and run.saved and run.saved["finished"] and state:
        solution = solvers.Solution(state, Ended.DONE)
    else:
        rows = source if team.size == 1 else rows_of(keep=keep, comm=team)
        solve = partial(solvers.drive, solver, solvers.Problem(kernel, rows, Z, team, generator), plan, watch, state)
        solution = solve() if team.size == comm.size else _by_one(comm, solve, watch)
    state = solution.state

    alpha = watch.in_units((watch.best if watch.best is not None else state.alpha).to(state.plan.torch_dtype))
    if order is not None and team.size == 1:
        back = torch.argsort(order)
        alpha, Z = alpha[back.to(alpha.device)], Z[back.to(Z.device)]
    estimator.model_ = watch.model(alpha, Z.to(alpha.device), state, kernel if factor == 1 else own_kernel, unit)
    estimator.plan_, estimator.history_, estimator.ridge_ = state.plan, watch.history, ridge * scale * unit
    clock.append(time.perf_counter())
    estimator.timings_ = dict(zip(STAGES, np.diff(clock).tolist(), strict=True))
    estimator._keep_encoder()
    estimator._interrupted = watch.interrupted
    estimator.n_iter_, estimator._loss, estimator.rows_seen_ = max(1, state.epoch), solver.loss_name, n
    estimator._stands, estimator._weight_seen, estimator._equations = plan.p, n * scale, None
    if first_chunk and solver.loss_name == "square" and exact(estimator):
        rows = rows_of(keep=keep, w=w * scale, scale=None)  # later chunks come in the user's units
        estimator._equations = equations(estimator, rows, estimator.ridge_, lambda event: False, None)
    if solution.worth_a_word and not watch.stopped:
        warn(
            f"fit ended after {state.epoch} of {plan.epochs} epochs because {solution.why}; the last good model is kept.",
            ConvergenceWarning,
        )
    asked = watch.interrupted or solution.ended is Ended.STOPPED
    if expected is None or asked or solver.loss_name != "square" or team.size < comm.size:
        return None
    return check(estimator.model_, units, expected, held, source)


Chosen = tuple[Kernel, float, float | None]  # kernel, ridge, and the error that they promise, if it was asked for


def _constants(estimator: KernelEstimator, source: Source, own: Tensor | None, warm: KernelModel | None) -> dict[int, float]:
    """What never varied in training, and says nothing: where it does vary later, it must not make a row unlike all others."""
    encoder = estimator._learned
    if warm is not None:
        found = constant_features(source, warm.Z) if warm.constants else {}
        return {i: value for i, value in warm.constants.items() if found.get(i) == value}
    if encoder is not None and not encoder.plain:
        return dict.fromkeys(encoder.constant, 0.0)
    return constant_features(source, own)


def _as_given(before: dict[str, Any] | None, source: Source, team: Communicator) -> bool:
    """Whether a run has its rows as they came: EigenPro 1 of an earlier version did not mix them."""
    if not before:
        return False
    return torch.equal(before.get("dealt", before)["Z"].cpu(), source.take(torch.arange(source.n)[shard(team)]).X.cpu())


def _agreed(estimator: KernelEstimator, comm: Communicator, choose: Callable[[], Chosen]) -> Chosen:
    """The kernel and ridge that rank 0 chooses. A function of the user's own is not sent around: every rank has it."""

    def chosen() -> tuple[Kernel | None, float, float | None]:
        kernel, ridge, expected = choose()
        return (kernel if comm.size == 1 or type(kernel) in kernels.NAMED.values() else None), ridge, expected

    kernel, ridge, expected = comm.same(chosen)
    return kernel or kernels.resolve(estimator.kernel).owned(), ridge, expected


def _by_one(comm: Communicator, solve: Callable[[], solvers.Solution], watch: Watch) -> solvers.Solution:
    """A solver that is not shared out: rank 0 solves, and all get its weights."""
    solution, kept, watch.interrupted, watch.stopped = comm.same(lambda: (solve(), watch.kept(), watch.interrupted, watch.stopped))
    watch.restore(kept, {}, solution.state.alpha.device)
    return solution


def _identity(estimator: KernelEstimator, source, y: Tensor, keep: Tensor | None) -> dict[str, str]:
    passing = ("callbacks", "verbose", "checkpoint", "checkpoint_every", "resume", "device", "memory_budget", "random_state", "ranks")
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name not in passing}
    sizes = {"rows": source.n, "features": source.d, "outputs": source.c, "device": source.device.type}
    some = source.some(64)
    return run_identity({**sizes, **settings}, y if keep is None else y[keep.to(y.device)], some.w, some.X)


def _solver(
    estimator: KernelEstimator, base: Plan, kernel: Kernel | None, fixed: int | None, anew: bool, network: Network | None
) -> tuple[solvers.Solver, Plan]:
    """The solver, and the plan's sizes with the number of centers. `anew`: centers are rows of this data, still to be chosen."""
    n = base.n
    if not is_auto(estimator.solver):
        solver = solvers.resolve(estimator.solver)
        p = fixed or solver.default_centers(n)
        return solver, replace(base, solver=solver.name, p=p, every_row=anew and p == n)
    base = replace(base, p=fixed or n, every_row=anew and (fixed or n) == n)
    if direct_is_instant(n, base.p, base.budget):
        return solvers.Direct(), base
    base = replace(base, rates=replace(measure(kernel, base.d, base.precision, base.device), network=network))
    if fixed is None:
        base = solvers.affordable(base)
    table = solvers.forecast(base)
    log.info("%s", table)
    solver = table.chosen.solver
    # Epochs are asked of methods that take steps; one that goes to the exact solution was forecast to its end, and goes there.
    return solver, replace(base, epochs=0) if solver.name in solvers.EXACT else base


def _again(estimator: KernelEstimator, stored: Plan, base: Plan, fixed: int | None) -> tuple[solvers.Solver, Plan]:
    """A fit from a stored plan does the same again; its sizes must be those of the data."""
    for name, here in (("n", base.n), ("d", base.d), ("c", base.c), ("p", fixed or stored.p)):
        if getattr(stored, name) != here:
            raise InputError(f"the plan given as solver has {name} = {getattr(stored, name)}, this fit {here}; use solver='auto'.")
    return solvers.NAMED[stored.solver](**(stored.settings or {})), stored


def _centers(estimator: KernelEstimator, source, kernel, precision, device, tile, labels, p, generator) -> Tensor:
    """The numbers of the rows that become centers, chosen as the user said."""
    how, K = "uniform" if is_auto(estimator.centers) else estimator.centers, None
    if how not in ("uniform", "balanced"):  # the other ways look at distances
        origin, spread = frame(kernel, source.take(torch.arange(min(source.n, 10_000))).X)
        K = KernelProduct(kernel, origin, precision, torch.device(device), tile, spread)
    return centers_room.choose(how, K, source, labels, p, generator)


def _warm(estimator: KernelEstimator, d: int, c: int) -> KernelModel | None:
    """The model to go on from, if warm_start asks for it; parameters that a warm start cannot change are refused."""
    if not estimator.warm_start or not hasattr(estimator, "model_"):
        return None
    model = estimator.model_
    if model.Z.shape[1] != d or model.alpha.shape[1] != c:
        raise InputError(
            f"warm_start=True, but the fitted model has {model.Z.shape[1]} features and {model.alpha.shape[1]} outputs, "
            f"the new data {d} and {c}; set warm_start=False."
        )
    fresh = {"kernel": estimator.kernel, "n_centers": estimator.n_centers, "centers": estimator.centers}
    known = getattr(estimator, "_fitted_with", {})  # a model that was loaded does not say
    changed = [name for name, value in fresh.items() if name in known and repr(value) != known[name]]
    if changed:
        raise InputError(
            f"warm_start=True keeps kernel and centers, but {', '.join(changed)} changed since the last fit; set warm_start=False."
        )
    return model


def _choose(estimator: KernelEstimator, source, scale, p, solver, every_row, warm, own, budget, generator, codes, units) -> Chosen:
    """The kernel with its bandwidth, and the ridge over the mean weight: the user's, the warm model's, or tuned on a subsample."""
    given = None if is_auto(estimator.ridge) else _given_ridge(estimator)
    weight = scale
    own_kernel: Any = "auto" if is_auto(estimator.kernel) else kernels.resolve(estimator.kernel).owned()
    own_kernel = kernel = own_kernel if warm is None else warm.kernel
    if isinstance(kernel, Kernel) and kernel.homogeneity is not None:
        kernel = kernels.in_range(kernel, source.some(512).X)
        scale *= kernels.magnification(own_kernel, kernel) ** (2 * (kernel.homogeneity or 0))
    if warm is not None:
        return kernel, (estimator.ridge_ if given is None else float(given)) / scale, None
    # Fewer centers than rows regularise by themselves, and SGD of few epochs too: only an exact solution needs a ridge.
    free = given is None and solver.needs_ridge
    ridge = None if free else float(given or 0.0) / scale
    unset = is_auto(kernel) or (isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str))
    n = source.n
    if n < 2:
        return (kernels.Laplacian(bandwidth=1.0) if unset else kernel), 1e-6 if ridge is None else ridge, None
    if not unset and ridge is not None:
        return kernel, ridge, None
    # Few rows are all taken, in an order that no seed changes: they come sorted, and the first ones must not be alike.
    drawn = torch.Generator().manual_seed(0) if n <= CHECK_ROWS else generator
    rows, stands_for = draw(n, codes, drawn)
    # In the proportion of the real run, but never with so few centers that a kernel for few is chosen (covertype: 80 % instead of 90).
    ratio = 1.0 if every_row else min(1.0, max(p / n, min(p, search.MAX_CENTERS) / len(rows)))
    batch = source.take(rows)
    X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
    w = w * stands_for.to(w)
    sample = Sample(X, Y, w, ratio, weight, None if units.scatter is None else (units.scatter / (n * weight)).to(X))
    if given is None and ratio == 1:
        ridge = None  # of the run it may be 0, since few epochs regularise; the kernel is chosen as under the best ridge
    if solver.criterion == "elbo":
        noise = None if solver.noise is None else (solver.noise / units.scale**2).to(X)
        choice = elbo.tune_elbo(kernel, ridge, noise, sample, p, None if own is None else own.to(sample.X))
    else:
        choice = search.tune(kernel, ridge, sample)
        if unset and p > search.LARGE:
            choice = search.rescaled(choice, ridge, sample)
            if isinstance(choice.kernel, Radial) and isinstance(choice.kernel.bandwidth, Tensor) and source.d <= search.MANY_FEATURES:
                sharper = neighbourhoods.refined(choice.kernel, source, p, budget // 2, generator)
                choice = search.again(sharper, choice, ridge, sample)
    enough = len(rows) >= ENOUGH_ROWS and solver.criterion == "loo" and choice.error < float("inf")
    promised = choice.error if enough else None
    return choice.kernel, choice.ridge if free or given is not None else 0.0, promised


def _given_ridge(estimator: KernelEstimator) -> float:
    given = estimator.ridge
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= given < np.inf:
        raise InputError(f"ridge={given!r} was given, expected a finite number of 0 or more, or None to have it chosen.")
    return float(given)


def _count_centers(estimator: KernelEstimator, n: int) -> int | None:
    """As many centers as the user said, or None."""
    if is_auto(estimator.n_centers):
        return None
    whole("n_centers", estimator.n_centers, 1)
    count = int(estimator.n_centers)  # type: ignore[arg-type]
    if count > n:
        warn(f"n_centers={count} is more than the {n} rows that are trained on: each of them is a center.")
    return min(n, count)


def _own_centers(estimator: KernelEstimator, X: Tensor) -> Tensor | None:
    """The user's own array of centers, checked; None where `centers` names a way of choosing."""
    if is_auto(estimator.centers):
        return None
    if isinstance(estimator.centers, str):
        if estimator.centers not in centers_room.WAYS:
            raise one_of("centers", estimator.centers, centers_room.WAYS)
        return None
    Z = torch.as_tensor(np.asarray(estimator.centers.cpu() if isinstance(estimator.centers, Tensor) else estimator.centers))
    if Z.ndim != 2 or Z.shape[1] != X.shape[1] or len(Z) == 0:
        raise InputError(
            f"centers of shape {tuple(Z.shape)} were given, expected (p, {X.shape[1]}): a row per center, a column per feature."
        )
    Z = Z.to(X.dtype, copy=True)  # the model's own, whatever happens to the user's array
    if not torch.isfinite(Z).all():
        raise InputError("centers contain NaN or infinity; give finite rows.")
    if not is_auto(estimator.n_centers) and estimator.n_centers != len(Z):
        raise InputError(f"n_centers={estimator.n_centers} was given together with {len(Z)} rows of centers; leave n_centers out.")
    return Z
