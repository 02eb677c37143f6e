"""What both estimators share. The estimator validates and keeps scikit-learn's manners; tuning, planning and solvers do the rest."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .. import centers as centers_room
from .. import kernels, neighbourhoods, solvers, tuning
from ..callbacks import announce, plan_line
from ..checkpoint import save_model
from ..data import Columns, Encoder, Stream, learn, source_of
from ..distributed import Alone
from ..errors import InputError, one_of, warn
from ..kernels import Kernel, Radial
from ..model import KernelModel
from ..ops import KernelProduct, frame
from ..planning import Plan, device_of, direct_is_instant, fine_precision, is_auto, parse_bytes, precision_of, tile_bytes, whole
from ..rates import measure
from ..runs import Run, peek, seconds_of, state_of
from ..runs import identity as run_identity
from .partial import grown, learned, more_plan
from .rows import MERGE_ROWS, checked_weights, largest_of, refuse_sparse, too_large
from .tables import Given, as_table, given, pieces, to_open
from .watch import Watch

log = logging.getLogger("kernelmill")

FLOATS = [np.float64, np.float32, np.float16]
WINDOW_BYTES = 512 << 20  # of streamed rows that are mixed with each other


class KernelEstimator(BaseEstimator):
    """Common constructor and fit. Not for use by itself: see KernelRegressor and KernelClassifier."""

    model_: KernelModel
    plan_: Plan
    history_: list[dict[str, Any]]
    ridge_: float
    rows_seen_: int
    encoder_: Encoder | None
    _fitted_with: dict[str, str]
    _drawn: int | None = None
    _learned: Encoder | None = None
    _matrix: str | None = None

    def __init__(
        self,
        *,
        kernel: Any = "auto",
        n_centers: int | None = None,
        solver: Any = "auto",
        epochs: int | None = None,
        ridge: float | None = None,
        centers: Any = "uniform",
        device: str = "auto",
        precision: str = "auto",
        memory_budget: int | str | None = None,
        validation_fraction: float | None = None,
        early_stopping: bool | str = "auto",
        callbacks: Any = None,
        columns: Any = None,
        checkpoint: Any = None,
        checkpoint_every: Any = "5m",
        resume: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.kernel = kernel
        self.n_centers = n_centers
        self.solver = solver
        self.epochs = epochs
        self.ridge = ridge
        self.centers = centers
        self.device = device
        self.precision = precision
        self.memory_budget = memory_budget
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.callbacks = callbacks
        self.columns = columns
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.resume = resume
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: Any):
        """As scikit-learn's; `kernel__bandwidth` and `solver__q` also work where a name was given instead of an object."""
        for part, room in (("kernel", kernels), ("solver", solvers)):
            if isinstance(getattr(self, part), str) and any(name.startswith(part + "__") for name in params) and part not in params:
                if getattr(self, part) == "auto":
                    example = next(iter(room.NAMED))
                    raise InputError(f"{part}='auto' has no settings to set; give a name or an object first, such as {part}={example!r}.")
                setattr(self, part, room.resolve(getattr(self, part)))
        return super().set_params(**params)

    # ---- fit -----------------------------------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Tensor,
        w: Tensor,
        mean: Tensor,
        labels: Tensor | None,
        held: tuple[Tensor, Tensor, Tensor] | None,
        keep: Tensor | None = None,
    ):
        """Tune, choose centers, plan, solve. y: (n, c) targets or (n,) class codes; held: rows kept out, for the validation score;
        keep: the numbers of the rows to train on, all where it is None."""
        if self.checkpoint is None:
            return self._train(X, y, w, mean, labels, held, keep, None)
        run = Run(self.checkpoint, self.checkpoint_every, bool(self.resume))
        try:
            with run.listening():
                return self._train(X, y, w, mean, labels, held, keep, run)
        finally:
            run.close()

    def _train(self, X, y, w, mean, labels, held, keep, run: Run | None):
        stored = self.solver if isinstance(self.solver, Plan) else None
        before = run.choices if run else None
        if stored:
            own_choice = [name for name in ("ridge", "epochs", "precision", "memory_budget") if not is_auto(getattr(self, name))]
            if own_choice:
                raise InputError(f"a plan was given as solver, which has its own {' and '.join(own_choice)}; leave them out.")
        seed = stored.seed if stored else int(self._random().randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        device = stored.device if stored else device_of(self.device, X)
        whole("epochs", None if is_auto(self.epochs) else self.epochs, 1)
        if X.is_cuda and X.device != torch.empty(0, device=device).device:
            X = X.to(device)
        budget = stored.budget if stored else parse_bytes(self.memory_budget, device)
        tile = tile_bytes(budget, device)
        scale = (w if keep is None else w[keep]).mean().item()  # inside, weights have mean 1 and the ridge is λ over this
        w = w / scale
        size = X.nbytes + y.nbytes
        streamed = isinstance(X, Stream)
        if isinstance(X, Stream) and device == "cpu":
            budget = max(1 << 20, budget - 3 * X.window_bytes)
        elif self._learned is not None and device == "cpu":
            budget -= min(budget // 2, size)  # read from a file: no memory of the user's own
        if device.startswith("cuda") and not X.is_cuda and not streamed and self.epochs != 1 and size <= budget // 3:
            # Rows that are read more than once are copied once. For a single epoch copying them batch by batch hides behind the steps.
            X, y, budget = X.to(device), y.to(device), budget - size
        rows_of = partial(source_of, X, y, mean=mean, w=None if bool((w == 1).all()) else w, seed=seed, device=device)
        source = rows_of(keep=keep)
        n, d = source.n, source.d
        warm = self._warm(d, len(mean))
        given = None if is_auto(self.kernel) else kernels.resolve(self.kernel)
        kind = given or kernels.Laplacian()
        precision = precision_of(self.precision, X.dtype.itemsize, d, kind, device)
        if warm is not None and warm.alpha.dtype == torch.float64:
            precision = "float64"  # weights that large would not survive in fewer digits

        own = self._own_centers(X)
        base = Plan(
            "auto",
            n,
            d,
            len(mean),
            0,
            precision=precision,
            fine=fine_precision(self.precision, labels is None),
            regression=labels is None,
            device=device,
            x_bytes=X.dtype.itemsize,
            seed=seed,
            epochs=0 if is_auto(self.epochs) else int(self.epochs),  # type: ignore[arg-type]
            ridge=1.0 if is_auto(self.ridge) else self._given_ridge() / scale,  # where one will be chosen, it is above 0
            tile_bytes=tile,
            budget=budget,
        )
        fixed = warm.n_centers if warm is not None else len(own) if own is not None else self._count_centers(n)
        identity = self._identity(source, y, keep) if run else {}
        if run and before:
            run.check(identity)
            stored = before["plan"]
        if stored:
            solver, base = self._again(stored, base, fixed)
        else:
            solver, base = self._solver(base, given, fixed, anew=own is None and warm is None)
        if solver.for_classes and labels is None:
            raise InputError(f"solver={solver!r} learns classes; use KernelClassifier, or another solver for a regression.")
        if streamed and solver.every_row:
            raise InputError(
                f"solver={solver.name!r} keeps every row in memory, and {size / 2**30:.1f} GiB of rows do not fit; "
                "use 'eigenpro4' or 'falkon', or a larger memory_budget."
            )
        p, every_row = base.p, base.every_row
        if every_row and solver.every_row and solver.subsamples:  # rows may come sorted; their first ones must be a random subsample
            mixed = torch.randperm(n, generator=generator)
            keep = mixed if keep is None else keep[mixed]
            source = rows_of(keep=keep)

        if not solver.needs_ridge and is_auto(self.ridge):
            base = replace(base, ridge=0.0)
        outlook = stored or solvers.predicted(solver, base)  # settings that cannot be used are said before anything takes time
        if self.verbose:
            announce(outlook)
        # Tuning draws from numbers of its own: centers are the same whether or not there is anything to tune.
        if before:
            kernel, ridge = before["kernel"] or kernels.resolve(self.kernel), before["ridge"]
        else:
            kernel, ridge = self._choose(source, scale, p, solver, every_row, warm, own, budget, torch.Generator().manual_seed(seed))
        kernel.validate(d)
        if before:
            Z, order, every_row = before["Z"], before["order"], before["every_row"]
            generator.set_state(before["generator"])
        elif warm is not None or own is not None:
            # Where any first rows must be a random subsample; undone below.
            order = torch.randperm(p, generator=generator) if solver.subsamples else None
            Z = own if warm is None else warm.Z
            assert Z is not None
            Z = Z if order is None else Z[order.to(Z.device)]
        elif every_row and (solver.every_row or not solver.subsamples):
            Z, order = source.take(torch.arange(n)).X, None  # row for row, so that the model does not depend on a seed
        else:
            labels = labels if labels is None or keep is None else labels[keep]
            Z, order, every_row = self._take_centers(source, kernel, precision, device, tile, labels, p, generator), None, False
        Z = Z.to(device)

        if stored and not before:
            ridge = stored.ridge
        plan = stored or solvers.predicted(solver, replace(base, every_row=every_row, ridge=ridge))
        log.info("%s", plan_line(plan))
        if plan.bytes > budget:
            warn(
                f"this fit is predicted to take {plan.bytes / 2**20:.0f} MiB, more than the {budget / 2**20:.0f} MiB it may; "
                "use fewer centers or a larger memory_budget."
            )
        if run and not before:
            choices = {"kernel": kernel, "ridge": ridge, "plan": plan, "Z": Z, "order": order, "every_row": every_row}
            run.write_choices(
                {
                    **choices,
                    "generator": generator.get_state(),
                    "identity": identity,
                    "random_state": self._drawn or 0,
                    "window_rows": X.window_rows if isinstance(X, Stream) else 0,
                }
            )
        mean = solver.intercept(mean)
        watch = Watch(self, solver, kernel, Z, mean, held, plan, run)
        state = None
        if run and run.saved:
            state = state_of(run.saved, device)
            plan = state.plan
            watch.restore(run.saved["watch"], device)
            log.info("going on after %d epochs and %d rows of %s", state.epoch, state.position, run.folder)
        elif warm is not None and solver.name != "direct":
            alpha = (warm.alpha if order is None else warm.alpha[order.to(warm.alpha.device)]).to(device, plan.torch_dtype)
            state = solvers.State(plan, alpha, torch.zeros_like(alpha))
        if not (run and run.saved and run.saved["finished"] and state):
            state = solver.solve(kernel, source, Z, plan, Alone(), generator, watch, state)

        alpha = (watch.best if watch.best is not None else state.alpha).to(state.plan.torch_dtype)
        if order is not None:
            back = torch.argsort(order)
            alpha, Z = alpha[back.to(alpha.device)], Z[back.to(Z.device)]
        self.model_ = KernelModel(kernel, Z.to(alpha.device), alpha, mean.to(alpha), tile, state.plan.precision, state.uncertainty)
        self.plan_, self.history_, self.ridge_ = state.plan, watch.history, ridge * scale
        self._keep_encoder()
        self.n_iter_, self._loss, self.rows_seen_ = max(1, state.epoch), solver.loss_name, n
        if state.stopped and "callback" not in state.stopped and not watch.stopped:
            warn(
                f"fit ended after {state.epoch} of {plan.epochs} epochs because {state.stopped}; the last good model is kept.",
                ConvergenceWarning,
            )
        return self

    def add_centers(self, Z: Any) -> Any:
        """More centers for a fitted model: rows as `predict` takes them. Predictions stay as they are until `partial_fit`, or `fit` with
        warm_start=True, gives the new ones weights."""
        check_is_fitted(self, "model_")
        self.model_ = grown(self.model_, self._through(Z, lambda X: X))
        return self

    def _partial(self, X: Tensor, y: Tensor, w: Tensor) -> None:
        """One pass over new rows from the weights as they are."""
        before = self.plan_.solver
        loss = solvers.NAMED[before](**(self.plan_.settings or {})).loss_name if before in solvers.NAMED else "square"
        if loss != "square":
            raise InputError(f"partial_fit goes on with the square loss, and this model was fitted with the {loss} loss; fit it anew.")
        solver = self.solver if isinstance(self.solver, solvers.EigenPro4) else solvers.EigenPro4()
        plan = more_plan(self.model_, X, w, self.ridge_, self.rows_seen_, int(self._random().randint(2**31 - 1)), self.memory_budget)
        watch = Watch(self, solver, self.model_.kernel, self.model_.Z, self.model_.intercept, None, plan)
        self.model_ = learned(self.model_, solver, plan, X, y, w, self.rows_seen_, watch)
        self.history_, self.n_iter_ = [*self.history_, *watch.history], self.n_iter_ + 1
        self.rows_seen_ += len(X)
        if watch.interrupted:
            warn("partial_fit was interrupted; the last good weights are kept, and some of its rows were not learned.", ConvergenceWarning)

    def _new_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Tensor, Any, Any]:
        """Rows for partial_fit, as features."""
        if to_open(X, y):
            table, y, sample_weight = given(X, y, sample_weight, self._host_bytes() // 4)
            X = table.table
        elif getattr(self, "encoder_", None) is None:
            return self._check_X(X, reset=False), y, sample_weight
        return self._through(X, lambda features: features), y, sample_weight

    def _random(self) -> np.random.RandomState:
        """Numbers that depend on random_state alone; of a run with checkpoints they are the same when it goes on."""
        return check_random_state(self.random_state if self._drawn is None else self._drawn)

    def _identity(self, source, y: Tensor, keep: Tensor | None) -> dict[str, str]:
        passing = ("callbacks", "verbose", "checkpoint", "checkpoint_every", "resume", "device", "memory_budget", "random_state")
        settings = {name: value for name, value in self.get_params(deep=False).items() if name not in passing}
        sizes = {"rows": source.n, "features": source.d, "outputs": source.c, "device": source.device.type}
        some = source.some(64)
        return run_identity({**sizes, **settings}, y if keep is None else y[keep.to(y.device)], some.w, some.X)

    def _solver(self, base: Plan, kernel: Kernel | None, fixed: int | None, anew: bool) -> tuple[solvers.Solver, Plan]:
        """The solver, and the plan's sizes with the number of centers. `anew`: centers are rows of this data, still to be chosen."""
        n = base.n
        if not is_auto(self.solver):
            solver = solvers.resolve(self.solver)
            p = fixed or solver.default_centers(n)
            return solver, replace(base, solver=solver.name, p=p, every_row=anew and p == n)
        base = replace(base, p=fixed or n, every_row=anew and (fixed or n) == n)
        if direct_is_instant(n, base.p, base.budget):
            return solvers.Direct(), base
        base = replace(base, rates=measure(kernel, base.d, base.precision, base.device))
        if fixed is None:
            base = solvers.affordable(base)
        table = solvers.forecast(base)
        log.info("%s", table)
        return table.chosen.solver, base

    def _again(self, stored: Plan, base: Plan, fixed: int | None) -> tuple[solvers.Solver, Plan]:
        """A fit from a stored plan does the same again; its sizes must be those of the data."""
        for name, here in (("n", base.n), ("d", base.d), ("c", base.c), ("p", fixed or stored.p)):
            if getattr(stored, name) != here:
                raise InputError(f"the plan given as solver has {name} = {getattr(stored, name)}, this fit {here}; use solver='auto'.")
        return solvers.NAMED[stored.solver](**(stored.settings or {})), stored

    def _take_centers(self, source, kernel, precision, device, tile, labels, p, generator) -> Tensor:
        """Rows of the data that become centers, chosen as the user said."""
        how, K = "uniform" if is_auto(self.centers) else self.centers, None
        if how not in ("uniform", "balanced"):  # the other ways look at distances
            origin, spread = frame(kernel, source.take(torch.arange(min(source.n, 10_000))).X)
            K = KernelProduct(kernel, origin, precision, torch.device(device), tile, spread)
        return source.take(centers_room.choose(how, K, source, labels, p, generator)).X

    def _warm(self, d: int, c: int) -> KernelModel | None:
        """The model to go on from, if warm_start asks for it; parameters that a warm start cannot change are refused."""
        if not self.warm_start or not hasattr(self, "model_"):
            return None
        model = self.model_
        if model.Z.shape[1] != d or model.alpha.shape[1] != c:
            raise InputError(
                f"warm_start=True, but the fitted model has {model.Z.shape[1]} features and {model.alpha.shape[1]} outputs, "
                f"the new data {d} and {c}; set warm_start=False."
            )
        fresh = {"kernel": self.kernel, "n_centers": self.n_centers, "centers": self.centers}
        known = getattr(self, "_fitted_with", {})  # a model that was loaded does not say
        changed = [name for name, value in fresh.items() if name in known and repr(value) != known[name]]
        if changed:
            raise InputError(
                f"warm_start=True keeps kernel and centers, but {', '.join(changed)} changed since the last fit; set warm_start=False."
            )
        return model

    def _choose(self, source, scale, p, solver, every_row, warm, own, budget, generator) -> tuple[Kernel, float]:
        """The kernel with its bandwidth, and the ridge over the mean weight: the user's, the warm model's, or tuned on a subsample."""
        given = None if is_auto(self.ridge) else self._given_ridge()
        if warm is not None:
            return warm.kernel, (self.ridge_ if given is None else float(given)) / scale
        self._fitted_with = {"kernel": repr(self.kernel), "n_centers": repr(self.n_centers), "centers": repr(self.centers)}
        kernel: Any = "auto" if is_auto(self.kernel) else kernels.resolve(self.kernel)
        # Fewer centers than rows regularise by themselves, and SGD of few epochs too: only an exact solution needs a ridge.
        free = given is None and solver.needs_ridge
        ridge = None if free else float(given or 0.0) / scale
        unset = is_auto(kernel) or (isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str))
        n = source.n
        if n < 2:
            return (kernels.Laplacian(bandwidth=1.0) if unset else kernel), 1e-6 if ridge is None else ridge
        if not unset and ridge is not None:
            return kernel, ridge
        # In the proportion of the real run, but never with so few centers that a kernel for few is chosen (covertype: 80 % instead of 90).
        ratio = 1.0 if every_row else min(1.0, max(p / n, min(p, tuning.MAX_CENTERS) / min(n, tuning.SAMPLE_ROWS)))
        # Few rows are all taken, in an order that no seed changes: they come sorted, and the first ones must not be alike.
        drawn = torch.Generator().manual_seed(0) if n <= tuning.CHECK_ROWS else generator
        rows = torch.randperm(n, generator=drawn)[: tuning.SAMPLE_ROWS]
        batch = source.take(rows)
        X, Y, w = (part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w))
        sample = tuning.Sample(X, Y, w, ratio)
        if given is None and ratio == 1:
            ridge = None  # of the run it may be 0, since few epochs regularise; the kernel is chosen as under the best ridge
        if solver.criterion == "elbo":
            choice = tuning.tune_elbo(kernel, ridge, solver.noise, sample, p, None if own is None else own.to(sample.X))
        else:
            choice = tuning.tune(kernel, ridge, sample)
            if unset and p > tuning.LARGE:
                choice = tuning.rescaled(choice, ridge, sample)
                if isinstance(choice.kernel, Radial) and isinstance(choice.kernel.bandwidth, Tensor) and source.d <= tuning.MANY_FEATURES:
                    sharper = neighbourhoods.refined(choice.kernel, source, p, budget // 2, generator)
                    choice = tuning.again(sharper, choice, ridge, sample)
        return choice.kernel, choice.ridge if free or given is not None else 0.0

    def _given_ridge(self) -> float:
        given = self.ridge
        if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= given < np.inf:
            raise InputError(f"ridge={given!r} was given, expected a finite number of 0 or more, or None to have it chosen.")
        return float(given)

    def _count_centers(self, n: int) -> int | None:
        """As many centers as the user said, or None."""
        if is_auto(self.n_centers):
            return None
        whole("n_centers", self.n_centers, 1)
        count = int(self.n_centers)  # type: ignore[arg-type]
        if count > n:
            warn(f"n_centers={count} is more than the {n} training rows: all are centers.")
        return min(n, count)

    def _own_centers(self, X: Tensor) -> Tensor | None:
        """The user's own array of centers, checked; None where `centers` names a way of choosing."""
        if is_auto(self.centers):
            return None
        if isinstance(self.centers, str):
            if self.centers not in centers_room.WAYS:
                raise one_of("centers", self.centers, centers_room.WAYS)
            return None
        Z = torch.as_tensor(np.asarray(self.centers.cpu() if isinstance(self.centers, Tensor) else self.centers))
        if Z.ndim != 2 or Z.shape[1] != X.shape[1] or len(Z) == 0:
            raise InputError(
                f"centers of shape {tuple(Z.shape)} were given, expected (p, {X.shape[1]}): a row per center, a column per feature."
            )
        Z = Z.to(X.dtype)
        if not torch.isfinite(Z).all():
            raise InputError("centers contain NaN or infinity; give finite rows.")
        if not is_auto(self.n_centers) and self.n_centers != len(Z):
            raise InputError(f"n_centers={self.n_centers} was given together with {len(Z)} rows of centers; leave n_centers out.")
        return Z

    # ---- data in and out -------------------------------------------------------------------------------------------------

    def _open(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """X as a checked tensor, or as a table that is still to be encoded; targets and weights as arrays."""
        self._learned, self._drawn, self._before = None, None, {}
        if self.columns is not None and not isinstance(self.columns, Columns):
            raise InputError(f"columns={self.columns!r} was given, expected kernelmill.Columns(...) or None.")
        if self.checkpoint is not None:
            seconds_of(self.checkpoint_every)
            self._before = peek(self.checkpoint) if self.resume else {}
            fixed = isinstance(self.random_state, Integral) and not isinstance(self.random_state, bool)
            new = int(self.random_state) if fixed else int(check_random_state(self.random_state).randint(2**31 - 1))
            self._drawn = new if fixed else int(self._before.get("random_state", new))
        if not to_open(X, y, self.columns):
            if self.columns is not None:
                raise InputError("columns= was given, which is for tables and data frames, and X is an array; leave it out.")
            return self._check_X(X, reset=True), y, sample_weight
        return given(X, y, sample_weight, self._host_bytes() // 4)

    def _open_scored(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The same for a score."""
        if not to_open(X, y):
            return X, y, sample_weight
        table, y, sample_weight = given(X, y, sample_weight, self._host_bytes() // 4)
        return table.table, y, sample_weight

    def _host_bytes(self) -> int:
        """Host memory that this fit may take."""
        return parse_bytes(self.memory_budget if device_of(self.device) == "cpu" else None, "cpu")

    def _encoded(self, X: Any, Y: Tensor, keep: Tensor, held: Tensor | None) -> Any:
        """A table's rows as features: in memory where half of what may be used holds them, or streamed. Tensors are left as they are."""
        if not isinstance(X, Given):
            return X
        table, columns = X.table, self.columns or Columns()
        train = np.zeros(table.n, bool)
        train[keep.numpy()] = True
        out = None if held is None else np.isin(np.arange(table.n), held.numpy())
        warm = self.warm_start and hasattr(self, "model_")
        if warm:  # centers are in the features of the first fit
            encoder = as_table(table, self.encoder_, self.n_features_in_, self._matrix, 0)[1]
        else:
            encoder = learn(columns, table, X.skip, Y.numpy(), train, self.columns is not None)
        self._learned = encoder
        room, stored = self._host_bytes(), self._before.get("window_rows")
        row_bytes = max(1, encoder.d * encoder.dtype.itemsize)
        window = min(WINDOW_BYTES, max(1 << 20, room // 12)) if stored is None else stored * row_bytes
        stream = Stream(table, encoder, window, out)
        if table.n <= MERGE_ROWS or stored == 0 or (stored is None and stream.nbytes <= room // 2):
            return stream.whole()
        log.info("%s: %.1f GiB of features are streamed, %d rows at a time", table.where, stream.nbytes / 2**30, stream.window_rows)
        return stream

    def _keep_encoder(self) -> None:
        """What turns a table into features becomes the model's, now that it is trained."""
        encoder = self._learned
        self.encoder_, self._matrix = None, None
        if encoder is None:
            return
        lone = encoder.plain and len(encoder.inputs) == 1
        self.n_features_in_ = encoder.d if lone else len(encoder.inputs)
        self.__dict__.pop("feature_names_in_", None)
        if lone:
            self._matrix = encoder.inputs[0]
        else:
            self.encoder_, self.feature_names_in_ = encoder, np.array(encoder.inputs, dtype=object)

    def _check_X(self, X: Any, reset: bool) -> Tensor:
        """X as a float tensor of the user's own precision, without a copy where that is possible."""
        if isinstance(X, Tensor) and X.is_cuda and X.ndim == 2 and X.is_floating_point() and len(X) >= 2:
            return self._check_on_gpu(X.detach(), reset)
        if isinstance(X, Tensor):
            X = X.detach().cpu()
            X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()
        refuse_sparse(X)
        if isinstance(X, np.ndarray) and X.dtype.kind in "iub" and X.dtype.itemsize <= 2:
            X = X.astype(np.float32)  # exact, and half the memory and time of float64
        X = validate_data(self, X, reset=reset, dtype=FLOATS, order="C", ensure_all_finite=False)
        rows = torch.from_numpy(X if X.flags.writeable else X.copy())
        if not np.isfinite(largest := largest_of(rows)):
            bad = np.flatnonzero(~np.isfinite(X).all(axis=0))
            names = getattr(self, "feature_names_in_", None)
            shown = ", ".join(repr(str(names[j])) if names is not None else str(j) for j in bad[:5]) + (", …" if len(bad) > 5 else "")
            count = int((~np.isfinite(X)).sum())
            raise InputError(f"Input X contains NaN or infinity ({count} values, in columns {shown}); drop or impute them first.")
        too_large(largest, X.dtype, "X")
        return rows

    def _check_on_gpu(self, X: Tensor, reset: bool) -> Tensor:
        """The same checks for rows that are on a GPU already, where they stay."""
        if reset:
            self.n_features_in_ = X.shape[1]
            self.__dict__.pop("feature_names_in_", None)
        elif X.shape[1] != self.n_features_in_:
            name = type(self).__name__
            raise InputError(f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_} features as input.")
        if not np.isfinite(largest := largest_of(X)):
            raise InputError("Input X contains NaN or infinity; drop or impute those rows or columns first.")
        too_large(largest, np.dtype("float64" if X.dtype == torch.float64 else "float32"), "X")
        return X.contiguous()

    def _check_weight(self, sample_weight: Any, n: int) -> Tensor:
        if sample_weight is None:
            return torch.ones(n, dtype=torch.float64)
        if isinstance(sample_weight, Tensor):
            sample_weight = sample_weight.detach().cpu().double().numpy()
        w = np.asarray(sample_weight, dtype=np.float64)
        w = np.full(n, w) if w.ndim == 0 else w
        if w.shape != (n,):
            raise InputError(f"sample_weight of shape {w.shape} was given, expected ({n},): one weight per row.")
        return checked_weights(torch.from_numpy(w.copy()), "sample_weight")

    def _hold_out(self, n: int, default: float, labels: np.ndarray | None = None) -> np.ndarray | None:
        """Row numbers kept out of training, or None. Every class keeps at least one row in training."""
        fraction = self.validation_fraction
        if fraction is not None and (isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 <= fraction < 1):
            raise InputError(f"validation_fraction={fraction!r} was given, expected a number from 0 to below 1, or None.")
        if not isinstance(self.early_stopping, (bool, np.bool_)) and not is_auto(self.early_stopping):
            raise InputError(f"early_stopping={self.early_stopping!r} was given, expected True, False or 'auto'.")
        stops = self._stops_early()
        if fraction is None:
            fraction = max(default, 0.1) if stops else default
        if is_auto(self.early_stopping) and fraction == 0:
            return None
        if stops and fraction == 0:
            raise InputError("early_stopping=True needs held-out rows: set validation_fraction above 0, or leave it out.")
        size = int(round(fraction * n))
        if size < 1 or n - size < 2:
            if stops and not is_auto(self.early_stopping):
                raise InputError(f"early_stopping=True needs held-out rows, and {n} rows are too few to keep any out; set it to False.")
            return None
        out = self._random().permutation(n)[n - size :]
        if labels is not None:
            # A class whose rows are all out gets its first one back.
            left = np.bincount(labels) - np.bincount(labels[out], minlength=labels.max() + 1)
            lost = np.flatnonzero((left == 0) & (np.bincount(labels) > 0))
            first = {code: row for row, code in zip(out[::-1], labels[out][::-1], strict=True)}
            out = np.setdiff1d(out, [first[code] for code in lost])
        return np.sort(out) if len(out) else None

    def _stops_early(self) -> bool:
        """Whether the best score of held-out rows ends the fit: as asked, or for a solver whose regularisation it is."""
        if not is_auto(self.early_stopping):
            return bool(self.early_stopping)
        name = self.solver.solver if isinstance(self.solver, Plan) else self.solver
        named = solvers.NAMED.get(name) if isinstance(name, str) else name
        return bool(getattr(named, "stops_early", False))

    def _values(self, X: Any) -> Tensor:
        """f(X), (r, c): checked, on the model's device."""
        return self._through(X, self.model_ if hasattr(self, "model_") else None)

    def _through(self, X: Any, function: Any) -> Tensor:
        """A function of features, of whatever was given: an array at once, a table piece by piece."""
        check_is_fitted(self, "model_")
        encoder = getattr(self, "encoder_", None)
        with torch.no_grad():
            names = getattr(self, "feature_names_in_", None)
            if encoder is None and names is not None and hasattr(X, "iloc") and to_open(X) and set(names) <= set(X.columns):
                X = X[list(names)]  # a frame with more columns than the model was trained on
            if encoder is None and not to_open(X):
                return function(self._check_X(X, reset=False))
            table, encoder = as_table(X, encoder, self.n_features_in_, getattr(self, "_matrix", None), self._host_bytes() // 4)
            parts = [function(torch.tensor(encoder.encode(table, a, b))).cpu() for a, b in pieces(table)]
            return torch.cat(parts) if parts else torch.empty(0, self.model_.alpha.shape[1], dtype=self.model_.alpha.dtype)

    # ---- model files -----------------------------------------------------------------------------------------------------

    def save(self, folder: Any) -> None:
        """Write the fitted model as a folder of safetensors and JSON; `kernelmill.load` reads it back, on any device."""
        check_is_fitted(self, "model_")
        params = {name: value for name, value in self.get_params(deep=False).items() if name not in ("callbacks", "checkpoint", "resume")}
        fitted = {name: getattr(self, name) for name in self._saved if hasattr(self, name)}
        save_model(
            folder,
            self.model_,
            {
                "estimator": type(self).__name__,
                "params": params,
                "fitted": fitted,
                "plan": self.plan_.to_dict(),
                "history": self.history_,
            },
            getattr(self, "encoder_", None),
        )

    _saved = [
        "n_iter_", "ridge_", "n_features_in_", "feature_names_in_", "classes_", "temperature_", "n_outputs_", "y_ndim_", "rows_seen_",
        "_matrix",
    ]  # fmt: skip

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.non_deterministic = False
        return tags
