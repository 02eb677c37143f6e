"""What both estimators share.

The estimator validates and keeps scikit-learn's manners; `learn` does the rest.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .. import kernels, solvers
from ..callbacks.listeners import Callback, callbacks_of
from ..callbacks.progress import show_columns, watch
from ..conformal import Intervals, Sets
from ..data import Columns, Encoder, Stream, Table, matrix, within
from ..data import learn as learn_columns
from ..data.account import Account
from ..data.fitting import chosen_fields
from ..data.tables import ArrayTable, spread
from ..data.writing import Reading, Writing
from ..distributed.environment import is_restarted
from ..distributed.team import Alone, Communicator, agree, is_alone, telling, together
from ..distributed.torch_team import join
from ..errors import InputError, warn
from ..export import write_onnx
from ..gradients import contributions, draw_centers, effects
from ..kernels import Kernel
from ..learning import Fitted, Request, Rows, Surroundings, Warm
from ..learning.request import resolve_kernel
from ..learning.rows import MERGE_ROWS
from ..learning.streaming import Chunk, Continued, Kept, Memory, add_centers, extend
from ..model import KernelModel
from ..novelty import nearest, novelty, usual_distance
from ..ops import in_own_modes, own_modes
from ..planning.arguments import unless_auto, whole
from ..planning.device import device_of
from ..planning.memory import parse_bytes
from ..planning.plan import Plan
from ..scoring import USUAL, resolve_scoring
from ..signals import Ends
from ..solvers import HistoryRow, Solver
from ..storage.model_folder import Extra, save_model
from ..storage.run_folder import NoRun, Peeked, Run, peek, seconds_of
from ..types import DataLike
from .agreement import agree_on_data, agree_on_settings, fixed_seed, prints
from .inputs import (
    Given,
    How,
    Ways,
    as_table,
    given,
    is_frame,
    is_table_like,
    pieces,
    read_targets,
    without_copies,
)
from .origin import HeldOut, Origin, fingerprint_of, name_of, origin_of
from .validation import bounds_of, draw_stratified, largest_of, refuse_too_large

log = logging.getLogger("kernelmill")

FLOATS = [np.float64, np.float32, np.float16]
CHECKED_ROWS = 1000
WINDOW_BYTES = 512 << 20  # of streamed rows that are mixed with each other


RECORDS: dict[str, type[Intervals] | type[Sets]] = {"intervals_": Intervals, "sets_": Sets}

NOT_STORED = ("callbacks", "checkpoint", "resume")  # settings of a run, not of its model


@contextmanager
def unchanged_on_error(thing: object) -> Iterator[None]:
    """What raises inside leaves the attributes as they were."""
    before = dict(vars(thing))
    try:
        yield
    except BaseException:
        vars(thing).clear()
        vars(thing).update(before)
        raise


@dataclass(frozen=True)
class Opened:
    """What `fit` was given: X as a checked tensor, or a table that is still to be encoded; targets
    and weights as arrays.

    `drawn` is the seed of a run or job, which all its parts share; `before` what an earlier
    part of the run had chosen.
    """

    X: Tensor | Given
    y: DataLike
    sample_weight: DataLike
    comm: Communicator
    target: str | None = None
    drawn: int | None = None
    before: Peeked | None = None
    data: str = "arrays"  # its name
    fingerprint: str = ""
    began: float = 0.0
    ways: Ways = ()  # how targets are written


@dataclass(frozen=True)
class Job:
    """A fit that is ready to begin."""

    request: Request
    rows: Rows
    around: Surroundings
    warm: Warm | None
    opened: Opened


def first_chunk(job: Job) -> Surroundings:
    """Where a first chunk is learned: in one process, as the later ones."""
    if not is_alone(job.around.comm):
        raise InputError(
            f"partial_fit runs in one process, and this job has {job.around.comm.size} ranks; use"
            " fit."
        )
    return job.around


class KernelEstimator(BaseEstimator):
    """Common constructor and fit.

    Not for use by itself: see KernelRegressor and KernelClassifier.
    """

    model_: KernelModel
    plan_: Plan
    history_: list[HistoryRow]
    ridge_: float
    rows_seen_: int
    timings_: dict[str, float]
    n_iter_: int
    encoder_: Encoder | None
    _scores: tuple[str, ...]  # that can be asked for
    _fitted_with: dict[str, str]
    _matrix: str | None = None
    _bounds: np.ndarray | None = None  # of the columns of a matrix with fill values
    _target: str | None = None
    _target_ways: Sequence[dict[str, Any] | None] = ()
    _interrupted = False
    held_out_: HeldOut | None = None
    origin_: Origin
    _stands: int  # the first so many centers stand for the rows seen
    _weight_seen: float
    _equations: solvers.DirectState | None = None  # of all chunks given to partial_fit
    _kept: Kept | None = None  # some of their rows

    def __init__(  # noqa: PLR0913
        self,
        *,
        kernel: str | Kernel | Callable[[Tensor, Tensor], Tensor] = "auto",
        n_centers: int | None = None,
        solver: str | Solver | Plan = "auto",
        epochs: int | None = None,
        ridge: float | None = None,
        centers: str | ArrayLike | Tensor = "uniform",
        device: str = "auto",
        precision: str = "auto",
        memory_budget: int | str | None = None,
        validation_fraction: float | None = None,
        early_stopping: bool | Literal["auto"] = "auto",
        feature_learning: bool | Literal["auto"] = "auto",
        ensemble: bool | int | Literal["auto"] = "auto",
        time_limit: float | None = None,
        scoring: str | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        columns: Columns | None = None,
        checkpoint: str | os.PathLike | None = None,
        checkpoint_every: str | float = "5m",
        resume: bool = False,
        ranks: int | Literal["auto"] = "auto",
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
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
        self.feature_learning = feature_learning
        self.ensemble = ensemble
        self.time_limit = time_limit
        self.scoring = scoring
        self.callbacks = callbacks
        self.columns = columns
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.resume = resume
        self.ranks = ranks
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: object) -> Self:
        """As in scikit-learn; `kernel__bandwidth` and `solver__q` also work where a name was given
        instead of an object.

        Parameters
        ----------
        **params
            Arguments of the constructor, by name.
        """
        for part, room in (("kernel", kernels), ("solver", solvers)):
            if (
                isinstance(getattr(self, part), str)
                and any(name.startswith(part + "__") for name in params)
                and part not in params
            ):
                if getattr(self, part) == "auto":
                    example = next(iter(room.NAMED))
                    raise InputError(
                        f"{part}='auto' has no settings to set; give a name or an object first,"
                        f" such as {part}={example!r}."
                    )
                setattr(self, part, room.resolve(getattr(self, part)))
        return super().set_params(**params)

    @in_own_modes()
    def add_centers(self, Z: DataLike) -> Self:
        """More centers for a fitted model.

        Predictions stay as they are until `partial_fit`, or `fit` with warm_start=True, gives
        the new ones weights.

        Parameters
        ----------
        Z : array, tensor or table
            The new centers: rows, as `predict` takes them.
        """
        check_is_fitted(self, "model_")
        self.model_, self._equations = (
            add_centers(self.model_, self._through(Z, lambda X: X)),
            None,
        )
        return self

    # ---- a fit

    @contextmanager
    def _prepare(
        self, X: DataLike, y: DataLike, sample_weight: DataLike, classes: np.ndarray | None = None
    ) -> Iterator[Job]:
        """Open, check and encode the data; then, while the fit runs, keep its folder and listen
        to signals. A fit that fails leaves the estimator as it was.
        """
        comm, start = self._join(X), time.perf_counter()
        with unchanged_on_error(self), telling(comm):
            opened = self._open(X, y, sample_weight, comm)
            rows = self._read(opened, classes)
            if isinstance(rows.X, Stream):
                rows.X.table.files.mark()  # before the first row is trained on
            ends, store = Ends(comm), self._store(opened, rows)
            with closing(store), store.listening(), ends.listening():
                callbacks = callbacks_of(self.callbacks, self.verbose)
                around = Surroundings(comm, store, ends, callbacks, bool(self.verbose))
                request = self._request(rows.X, self._device(comm), opened.drawn)
                yield Job(
                    request.after(time.perf_counter() - start),
                    rows,
                    around,
                    self._warm(),
                    opened,
                )

    def _read(self, opened: Opened, classes: np.ndarray | None) -> Rows:
        """Checked targets and weights, and features: the rows to train on, and those kept out."""
        raise NotImplementedError

    def _scoring(self) -> str | None:
        """The score that was asked for, by its own name; None for the default."""
        return resolve_scoring(self.scoring, self._scores)

    @property
    def score_name(self) -> str:
        """The score of held-out rows in `history_`."""
        return self._scoring() or USUAL[not hasattr(self, "classes_")]

    def _request(self, X: DataLike, device: str, drawn: int | None = None) -> Request:
        """The constructor's arguments, resolved."""
        where = device_of(device, X)
        seed = int(self._random(drawn).randint(2**31 - 1))
        params = self.get_params(deep=False)
        return Request.of(
            params,
            device=where,
            early_stopping=self._stops_early(),
            scoring=self._scoring(),
            seed=seed,
        )

    def _device(self, comm: Communicator) -> str:
        """Where to train: a stored plan says it, but for ranks, which have a GPU each."""
        if isinstance(self.solver, Plan) and is_alone(comm):
            return self.solver.device
        return self.device

    def _warm(self) -> Warm | None:
        """The model to go on from, if warm_start asks for it."""
        if not self.warm_start or not hasattr(self, "model_"):
            return None
        # A model that was loaded does not say.
        return Warm(self.model_, self.ridge_, getattr(self, "_fitted_with", {}))

    def _store(self, opened: Opened, rows: Rows) -> NoRun:
        """The folder of the run, if there is one.

        Ranks must have the same data, and so must a run that is resumed.
        """
        comm = opened.comm
        if self.checkpoint is None and is_alone(comm):
            return NoRun()
        data = prints(rows.X, rows.y, rows.w, rows.held if rows.keep is None else None)
        agree_on_data(comm, tuple(rows.X.shape), data)
        if self.checkpoint is None:
            return NoRun()
        own = self.solver if isinstance(self.solver, Solver) else None
        goes_on = bool(self.resume) or is_restarted()
        run = Run(self.checkpoint, self.checkpoint_every, goes_on, comm, own)
        run.data, run.random_state = {**fixed_seed(self.random_state), **data}, opened.drawn or 0
        return run

    def _adopt(self, job: Job, fitted: Fitted) -> None:
        """Take over what a fit learned."""
        self.model_, self.plan_, self.history_ = fitted.model, fitted.plan, fitted.history
        self.ridge_, self.n_iter_, self.timings_ = fitted.ridge, fitted.epochs, fitted.timings
        self._interrupted, self._target = fitted.interrupted, job.opened.target
        self._target_ways = [None if way is None else asdict(way) for way in job.opened.ways]
        self._fitted_with = job.request.kept
        self.held_out_ = self._score_held_out(job.rows, fitted)
        seconds = time.perf_counter() - job.opened.began
        where = job.opened
        self.origin_ = origin_of(where.data, where.fingerprint, fitted.rows, seconds)
        self._keep_memory(Memory.of(fitted))
        self._keep_encoder(job.rows.encoder)
        if fitted.ended:
            warn(fitted.ended, ConvergenceWarning)

    def _score_held_out(self, rows: Rows, fitted: Fitted) -> HeldOut | None:
        """How good the model, or one like it, is on rows that it was not trained on."""
        raise NotImplementedError

    def _keep_memory(self, memory: Memory) -> None:
        """What is known of the rows seen, for chunks that come later."""
        self.rows_seen_, self._weight_seen = memory.rows, memory.weight
        self._stands, self._equations = memory.stands, memory.equations
        self._kept = memory.kept

    def _keep_encoder(self, encoder: Encoder | None) -> None:
        """What turns a table into features becomes the model's, now that it is trained."""
        self.encoder_, self._matrix, self._bounds = None, None, None
        if encoder is None:
            return
        lone = encoder.plain and len(encoder.inputs) == 1
        self.n_features_in_ = encoder.d if lone else len(encoder.inputs)
        self.__dict__.pop("feature_names_in_", None)
        if lone:
            self._matrix, self._bounds = encoder.inputs[0] or None, encoder.bounds
        else:
            self.encoder_, self.feature_names_in_ = encoder, np.array(encoder.inputs, dtype=object)

    def _extend(self, chunk: Chunk) -> None:
        """Train on more rows."""
        request = self._request(chunk.X, self.device)
        before = Continued(
            self.model_, self.plan_, self.ridge_, self.n_iter_, self.history_, self._memory
        )
        around = Surroundings(
            callbacks=callbacks_of(self.callbacks, self.verbose), verbose=bool(self.verbose)
        )
        after = extend(request, before, chunk, around)
        self.model_, self.plan_, self.ridge_ = after.model, after.plan, after.ridge
        self.history_, self.n_iter_ = after.history, after.epochs
        self._keep_memory(after.memory)
        self.held_out_ = None  # of a model that is no more
        self.origin_ = {**self.origin_, "rows": self.rows_seen_}
        if after.ended:
            warn(after.ended, ConvergenceWarning)

    @property
    def _memory(self) -> Memory:
        return Memory(self.rows_seen_, self._weight_seen, self._stands, self._equations, self._kept)

    def _new_rows(
        self, X: DataLike, y: DataLike, sample_weight: DataLike
    ) -> tuple[Tensor, DataLike, DataLike]:
        """Rows for partial_fit, as features."""
        arrays = getattr(self, "encoder_", None) is None and self._matrix is None
        if arrays and is_frame(X) and not isinstance(y, str):
            rows = self._check_X(X.to_numpy(), reset=False)
            return rows, self.read_targets(y), sample_weight
        if is_table_like(X, y):
            given, y, sample_weight = self.given(X, y, sample_weight)
            X = given.table
        encoder = getattr(self, "encoder_", None)
        # Of this chunk: those of others are not here any more.
        once = self.columns is not None and self.columns.drop_duplicates
        if encoder is None and not is_table_like(X):
            rows = self._check_X(X, reset=False)
            if once:
                table = ArrayTable({"X": rows.cpu().numpy()}, "the array")
                sample_weight = without_copies(table, ["X"], y, sample_weight)
            return rows, self.read_targets(y), sample_weight
        if once:
            X, encoder = self._as_table(X)
            sample_weight = without_copies(X, encoder.inputs, y, sample_weight)
        return self._through(X, lambda features: features), y, sample_weight

    def _random(self, drawn: int | None) -> np.random.RandomState:
        """Numbers that depend on random_state alone; of a run with checkpoints they are the
        same when it is resumed.
        """
        return check_random_state(self.random_state if drawn is None else drawn)

    # ---- data in and out

    def _join(self, X: DataLike) -> Communicator:
        """The ranks that this fit is shared by."""
        ranks = unless_auto(self.ranks)
        whole("ranks", ranks, 1)
        if ranks == 1:
            return Alone()
        return join(device_of(self.device, X if isinstance(X, Tensor) else None), ranks)

    def _open(
        self, X: DataLike, y: DataLike, sample_weight: DataLike, comm: Communicator
    ) -> Opened:
        agree_on_settings(self, comm, is_table_like(X, y, self.columns))
        self._scoring()  # refused before anything is read
        if self.columns is not None and not isinstance(self.columns, Columns):
            raise InputError(
                f"columns={self.columns!r} was given, expected kernelmill.Columns(...) or None."
            )
        before = self._peek()
        drawn = self._draw(before, comm)
        named = y if isinstance(y, str) else getattr(y, "name", None)
        target = named if isinstance(named, str) and named else None
        opened = Opened(X, y, sample_weight, comm, target, drawn, before, began=time.perf_counter())
        if is_table_like(X, y, self.columns):
            columns = self.columns or Columns()
            columns.check()
            how = How(columns.kinds, columns.reading, is_regressor(self))
            if self._warm() is not None and getattr(self, "encoder_", None) is not None:
                how = self._how()  # features are those of the first fit
            rows, y, sample_weight = given(X, y, sample_weight, self._host_bytes(comm) // 4, how)
            table = rows.table
            if columns.drop_duplicates:
                names = chosen_fields(columns, table, rows.skip)
                sample_weight = without_copies(columns.named(table), names, y, sample_weight)
            opened = replace(opened, data=name_of(table.where), fingerprint=fingerprint_of(table))
            return replace(opened, X=rows, y=y, sample_weight=sample_weight, ways=rows.ways)
        if self.columns is not None:
            raise InputError(
                "columns= was given, which is for tables and data frames, and X is an array;"
                " leave it out."
            )
        ways: Ways = ()
        if is_regressor(self):
            y, ways = read_targets(y, Reading(), self._ways if self._warm() is not None else ())
        return replace(opened, X=self._check_X(X, reset=True), y=y, ways=ways)

    def _peek(self) -> Peeked:
        """What the run that is to be resumed had chosen, without its tensors."""
        if self.checkpoint is None:
            return {}
        seconds_of(self.checkpoint_every)
        return peek(self.checkpoint) if self.resume or is_restarted() else {}

    def _draw(self, before: Peeked, comm: Communicator) -> int | None:
        """The seed of a run or a job, whose parts and ranks draw the same; None for any other
        fit.
        """
        seed, drawn = self.random_state, None
        if self.checkpoint is not None:
            if isinstance(seed, Integral) and not isinstance(seed, bool):
                drawn = int(seed)
            else:
                new = int(check_random_state(seed).randint(2**31 - 1))
                drawn = int(before.get("random_state", new))
        if is_alone(comm) or isinstance(seed, Integral):
            return drawn
        return comm.same(
            lambda: int(self._random(None).randint(2**31 - 1)) if drawn is None else drawn
        )

    def _open_scored(
        self, X: DataLike, y: DataLike, sample_weight: DataLike
    ) -> tuple[DataLike, DataLike, DataLike]:
        """Rows to score: a table with its targets and weights, or arrays as they are."""
        if not is_table_like(X, y):
            return X, self.read_targets(y), sample_weight
        table, y, sample_weight = self.given(X, y, sample_weight)
        return table.table, y, sample_weight

    def given(
        self, X: DataLike, y: DataLike, sample_weight: DataLike
    ) -> tuple[Given, DataLike, DataLike]:
        """Rows as those that the model was trained on were read."""
        return given(X, y, sample_weight, self._host_bytes(self.model_.comm) // 4, self._how())

    def read_targets(self, y: DataLike) -> DataLike:
        """Targets in an array as those of the training were read: texts as numbers."""
        how = self._how()
        return read_targets(y, how.marks or how.reading, how.ways)[0] if how.numbers else y

    def _how(self) -> How:
        """How tables are read: as in training."""
        encoder = getattr(self, "encoder_", None)
        reading = Reading() if encoder is None else encoder.reading
        # Where no column was written with them, the encoder does not know the marks that were set.
        marks = reading if self.columns is None else self.columns.reading
        percents = None if encoder is None else encoder.percents
        return How(self.kinds(), reading, is_regressor(self), marks, self._ways, percents)

    @property
    def _ways(self) -> Ways:
        """How the targets of the training were written."""
        return [None if way is None else Writing(**way) for way in self._target_ways]

    def kinds(self) -> dict[str, str]:
        """Of the columns that the model was trained on, whatever they look like in another
        file.
        """
        encoder, classes = getattr(self, "encoder_", None), getattr(self, "classes_", None)
        found = {} if encoder is None else dict(encoder.kinds)
        if self._target and classes is not None and classes.dtype.kind in "UO":
            found[str(self._target)] = "text"
        return found

    def _host_bytes(self, comm: Communicator) -> int:
        """Host memory that this fit may take; what rank 0 may, on all ranks: how rows are read
        follows from it.
        """
        budget = self.memory_budget if device_of(self.device) == "cpu" else None
        return comm.same(lambda: parse_bytes(unless_auto(budget), "cpu"))

    def _encode(
        self, opened: Opened, Y: Tensor, keep: Tensor, held: Tensor | None, w: Tensor
    ) -> tuple[Tensor | Stream, Encoder | None]:
        """A table's rows as features, and what makes them; tensors are left as they are, but for
        fill values.
        """
        if not isinstance(opened.X, Given):
            X = opened.X
            bounds = bounds_of(X, keep) if self._warm() is None else self._bounds
            made = None if bounds is None else matrix("", X.shape[1], "float32", bounds)
            return within(X, bounds), made
        table, columns = opened.X.table, self.columns or Columns()
        train = np.zeros(table.n, bool)
        train[keep.numpy()] = True
        out = None if held is None else np.isin(np.arange(table.n), held.numpy())
        if self._warm() is not None:  # centers are in the features of the first fit
            table, encoder = self._as_table(table)
        else:
            table = columns.named(table)
            encoder = learn_columns(
                columns, table, opened.X.skip, Y.numpy(), train, self.columns is not None, w.numpy()
            )
            if self.verbose and opened.comm.rank == 0 and encoder.account:
                show_columns(encoder.account)
        return (
            self._held_or_streamed(
                opened, Stream(table, encoder, self._window(opened, encoder), out)
            ),
            encoder,
        )

    def _window(self, opened: Opened, encoder: Encoder) -> int:
        """Bytes of features that are mixed with each other; those of the run that is resumed."""
        stored = (opened.before or {}).get("window_rows")
        if stored is not None:
            return stored * max(1, encoder.d * encoder.dtype.itemsize)
        return min(WINDOW_BYTES, max(1 << 20, self._host_bytes(opened.comm) // 12))

    def _held_or_streamed(self, opened: Opened, stream: Stream) -> Tensor | Stream:
        """Features in memory where half of what may be used holds them, else streamed."""
        stored, n = (opened.before or {}).get("window_rows"), stream.table.n
        fits = stored is None and stream.nbytes <= self._host_bytes(opened.comm) // 2
        if n <= MERGE_ROWS or stored == 0 or fits:
            return stream.whole()
        size = stream.nbytes / 2**30
        log.info(
            "%s: %.1f GiB of features are streamed, %d rows at a time",
            stream.table.where,
            size,
            stream.window_rows,
        )
        return stream

    def _check_X(self, X: DataLike, reset: bool) -> Tensor:
        """X as a float tensor of the user's own precision, without a copy where that is
        possible.
        """
        if (
            isinstance(X, Tensor)
            and X.is_cuda
            and X.ndim == 2
            and X.is_floating_point()
            and len(X) >= 2
        ):
            return self._check_on_gpu(X.detach(), reset)
        if isinstance(X, Tensor):
            X = X.detach().cpu()
            X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()
        if isinstance(X, np.ndarray) and X.dtype.kind in "iub" and X.dtype.itemsize <= 2:
            X = X.astype(np.float32)  # exact, and half the memory and time of float64
        X = validate_data(self, X, reset=reset, dtype=FLOATS, order="C", ensure_all_finite=False)
        rows = torch.from_numpy(X if X.flags.writeable else X.copy())
        if not np.isfinite(largest := largest_of(rows)):
            bad = np.flatnonzero(~np.isfinite(X).all(axis=0))
            shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
            count = int((~np.isfinite(X)).sum())
            raise InputError(
                f"Input X contains NaN or infinity ({count} values, in columns {shown}); drop or"
                " impute them first."
            )
        refuse_too_large(largest, X.dtype, "X")
        return rows if reset else within(rows, self._bounds)

    def _check_on_gpu(self, X: Tensor, reset: bool) -> Tensor:
        """The same checks for rows that are on a GPU already, where they stay."""
        if reset:
            self.n_features_in_ = X.shape[1]
            self.__dict__.pop("feature_names_in_", None)
        elif X.shape[1] != self.n_features_in_:
            name = type(self).__name__
            raise InputError(
                f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_}"
                " features as input."
            )
        if not np.isfinite(largest := largest_of(X)):
            raise InputError(
                "Input X contains NaN or infinity; drop or impute those rows or columns first."
            )
        refuse_too_large(
            largest, np.dtype("float64" if X.dtype == torch.float64 else "float32"), "X"
        )
        return X.contiguous() if reset else within(X, self._bounds).contiguous()

    def _hold_out(
        self, n: int, default: float, drawn: int | None, labels: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Row numbers kept out of training, or None: of every class the same share, and never
        all of them.
        """
        fraction, wanted = self.validation_fraction, unless_auto(self.early_stopping)
        if fraction is not None and (
            isinstance(fraction, bool)
            or not isinstance(fraction, Real)
            or not 0 <= float(fraction) < 1
        ):
            raise InputError(
                f"validation_fraction={fraction!r} was given, expected a number from 0 to below"
                " 1, or None."
            )
        if wanted is not None and not isinstance(wanted, (bool, np.bool_)):
            raise InputError(
                f"early_stopping={self.early_stopping!r} was given, expected True, False or 'auto'."
            )
        stops = self._stops_early()
        if fraction is None:
            fraction = max(default, 0.1) if stops else default
        if wanted is None and fraction == 0:
            return None
        if stops and fraction == 0:
            raise InputError(
                "early_stopping=True needs held-out rows: set validation_fraction above 0, or"
                " leave it out."
            )
        size = int(round(fraction * n))
        if size < 1 or n - size < 2:
            if stops and wanted is not None:
                raise InputError(
                    f"early_stopping=True needs held-out rows, and {n} rows are too few to keep"
                    " any out; set it to False."
                )
            return None
        order = self._random(drawn).permutation(n)
        out = (
            order[n - size :] if labels is None else draw_stratified(order, labels, float(fraction))
        )
        return np.sort(out) if len(out) else None

    def _share_to_check(self, n: int) -> float:
        """Of a large regression whose kernel is chosen: rows on which the final model is
        compared with what the choice promised.
        """
        if isinstance(self.solver, Plan):  # a plan says how many rows were trained on
            return max(0.0, 1 - self.solver.n / n) if n > MERGE_ROWS else 0.0
        kernel = resolve_kernel(self.kernel)
        chosen = kernel is None or isinstance(getattr(kernel, "bandwidth", None), str)
        return min(0.02, CHECKED_ROWS / n) if chosen and n > MERGE_ROWS else 0.0

    def _stops_early(self) -> bool:
        """Whether the best score of held-out rows ends the fit: as asked, or for a solver whose
        regularisation it is.
        """
        wanted = unless_auto(self.early_stopping)
        if wanted is not None:
            return bool(wanted)
        name = self.solver.solver if isinstance(self.solver, Plan) else self.solver
        named = solvers.NAMED.get(name) if isinstance(name, str) else name
        return bool(getattr(named, "stops_early", False))

    def _values(self, X: DataLike) -> Tensor:
        """f(X), (r, c): checked, on the model's device."""
        return self._through(X, lambda features: self.model_(features))

    def _as_table(self, X: DataLike, in_memory: int = 0) -> tuple[Table, Encoder]:
        """Rows as a table, and what makes features of them: see as_table."""
        encoder, d = getattr(self, "encoder_", None), self.n_features_in_
        return as_table(X, encoder, d, self._matrix, in_memory, self._bounds)

    @in_own_modes()
    @together("model_.comm")
    def _through(self, X: DataLike, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of features, of whatever was given: an array at once, a table piece by
        piece.
        """
        check_is_fitted(self, "model_")
        encoder = getattr(self, "encoder_", None)
        with own_modes():
            if encoder is None and self._matrix is None and is_frame(X):
                X = X.to_numpy()
            if encoder is None and not is_table_like(X):
                return function(self._check_X(X, reset=False))
            agree(self.model_.comm, {"call": "predict, of a table"})
            table, encoder = self._as_table(X, self._host_bytes(self.model_.comm) // 4)
            agree(
                self.model_.comm, {"call": "predict, of a table", "rows to predict": str(table.n)}
            )
            show = bool(self.verbose) and self.model_.comm.rank == 0
            with closing(watch(list(pieces(table)), show)) as shown:
                parts = [function(torch.tensor(encoder.encode(table, *at))).cpu() for at in shown]
            table.files.check()
            if not parts:
                return function(torch.empty(0, encoder.d))
            return torch.cat(parts)

    @property
    def columns_(self) -> Account:
        """What each column of the training table became: what it holds, how many features it has,
        where it is missing, and what is odd about it. A short table when printed, and in a
        notebook.
        """
        check_is_fitted(self, "model_")
        encoder = getattr(self, "encoder_", None)
        if encoder is None:
            raise AttributeError("the model was trained on an array, which has no columns.")
        return encoder.account

    @together("model_.comm")
    @in_own_modes()
    def novelty(self, X: DataLike) -> np.ndarray:
        """(rows,) how far each row is from what was learned, by the kernel itself: its distance to
        the nearest center, over the distance within which 99 of 100 centers have another one.
        Above 1, predictions are guesses; far above it, they are those of no rows at all.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        check_is_fitted(self, "model_")
        found = self._through(X, lambda features: novelty(self.model_, features)[:, None])
        return found[:, 0].cpu().numpy()

    def share_of_far_rows(self, X: DataLike, most: int = 20_000) -> float:
        """The share of rows, of `most` from all over a table, whose novelty is above 1."""
        table, encoder = self._as_table(X)
        far, rows, unit = 0, 0, usual_distance(self.model_)
        for start, stop in spread(table.n, most):
            features = torch.tensor(encoder.encode(table, start, stop))
            far += int((nearest(self.model_, features) > unit).sum())
            rows += stop - start
        return far / max(1, rows)

    # ---- which columns matter

    @property
    @together("model_.comm")
    @in_own_modes()
    def feature_importances_(self) -> np.ndarray:
        """How much the model's values depend on each column, as a share of 1; in the order of
        `feature_names_in_`, where columns have names.

        To first order, the mean squared change of the values where a row takes this column from
        another row: the gradients of up to 2,000 centers, multiplied by the differences of
        centers. No target is read: it is about the model, not about the world. Computed when it is
        asked for; all features made of a column count together.
        """
        check_is_fitted(self, "model_")
        rows = draw_centers(self.model_)
        units = self._units(self.model_(rows).double())
        found = effects(self.model_, rows, self._sources(), self.n_features_in_, units)
        return (found / found.sum().clamp(min=torch.finfo(found.dtype).tiny)).cpu().numpy()

    def explain(self, X: DataLike) -> np.ndarray | Tensor:
        """What each column adds to the prediction of each row, compared with the mean of the
        centers, to first order: gradient × (input − mean), (rows, columns), summed over the
        features made of a column. For several outputs, or more than two classes, (rows, columns,
        outputs). For a classifier it is what is added to `decision_function`.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        found = self._through(X, self._explain)
        if found.shape[2] == 1:
            found = found[:, :, 0]
        return found if isinstance(X, Tensor) else found.cpu().numpy()

    def _explain(self, features: Tensor) -> Tensor:
        """(r, columns, outputs) of features."""
        return contributions(self.model_, features, self._sources(), self.n_features_in_).mT

    def _units(self, values: Tensor) -> Tensor:
        """(c,) in which the values of outputs are compared with each other."""
        raise NotImplementedError

    def _sources(self) -> Tensor:
        """(d,) the column, as it was given, that each feature was made of."""
        encoder = getattr(self, "encoder_", None)
        if encoder is None:
            return torch.arange(self.model_.Z.shape[1])
        place = {name: i for i, name in enumerate(encoder.inputs)}
        return torch.tensor([place[name] for name, _ in encoder.sources])

    # ---- model files

    @classmethod
    def restored(cls, model: KernelModel, extra: Extra, encoder: Encoder | None) -> Self:
        """The estimator of a model folder."""
        estimator = cls(**extra["params"])
        if extra["fitted"].keys() != set(cls._saved):
            raise ValueError(f"it is no {cls.__name__}")
        for name, value in extra["fitted"].items():
            if name in RECORDS and value is not None:
                value = RECORDS[name].from_dict(value)
            setattr(estimator, name, value)
        estimator.model_, estimator.encoder_ = model, encoder
        if encoder is not None:
            estimator.feature_names_in_ = np.array(encoder.inputs, dtype=object)
        estimator.plan_, estimator.history_ = Plan.from_dict(extra["plan"]), extra["history"]
        return estimator

    @in_own_modes()
    @together("model_.comm")
    def save(self, folder: str | os.PathLike) -> None:
        """Write the fitted model as a folder of safetensors and JSON; `kernelmill.load` reads
        it back, on any device.

        Parameters
        ----------
        folder : path
            A new folder, or that of a model, which is replaced.
        """
        check_is_fitted(self, "model_")
        agree(self.model_.comm, {"call": "save"})
        params = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in NOT_STORED
        }
        fitted = {name: getattr(self, name) for name in self._saved}
        fitted = {
            name: value.to_dict() if isinstance(value, (Intervals, Sets)) else value
            for name, value in fitted.items()
        }
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

    def to_onnx(self, path: str | os.PathLike) -> None:
        """Write an ONNX file that takes what `predict` takes, column by column, and gives its
        predictions; a classifier's also gives probabilities. K(X, Z) is held: run it on a few
        hundred rows at a time.

        Parameters
        ----------
        path : path
            The file to write.
        """
        check_is_fitted(self, "model_")
        classes = getattr(self, "classes_", None)
        flat = classes is None and getattr(self, "y_ndim_", 1) == 1
        write_onnx(
            path,
            self.model_,
            getattr(self, "encoder_", None)
            or matrix("X", self.n_features_in_, "float32", self._bounds),
            classes,
            getattr(self, "_calibration", None),
            getattr(self, "decision_bias_", None),
            flat,
            self.about(),
        )

    def about(self) -> dict[str, Any]:
        """What there is to know about a fitted model: who made it, when and from which data, its
        columns and classes, how good it was on rows it did not see, its settings and sizes. As
        plain data: `kernelmill info` and ONNX files say the same.
        """
        check_is_fitted(self, "model_")
        model, encoder = self.model_, getattr(self, "encoder_", None)
        classes, held = getattr(self, "classes_", None), self.held_out_
        usual = type(self)().get_params(deep=False)
        settings = {
            name: f"array of shape {tuple(value.shape)}" if hasattr(value, "shape") else str(value)
            for name, value in self.get_params(deep=False).items()
            if name not in NOT_STORED
        }
        return {
            "model": type(self).__name__,
            "target": self._target,
            **self.origin_,
            "held_out": held and {"rows": held["rows"], "how": held["how"], **held["scores"]},
            "classes": None if classes is None else [str(name) for name in classes],
            "columns": None if encoder is None else dict(encoder.kinds),
            "kernel": kernels.kernel_line(model.kernel),
            "centers": model.n_centers,
            "features": model.Z.shape[1],
            "solver": self.plan_.solver,
            "ridge": self.ridge_,
            "precision": model.precision,
            "settings": {
                name: value for name, value in settings.items() if value != str(usual[name])
            },
        }

    _saved = [
        "n_iter_",
        "ridge_",
        "n_features_in_",
        "rows_seen_",
        "_matrix",
        "_bounds",
        "_stands",
        "_weight_seen",
        "_kept",
        "_target",
        "_target_ways",
        "timings_",
        "held_out_",
        "origin_",
    ]

    def _get_fitted_attr_html(self, doc_link: str = ""):
        """What scikit-learn shows of a fitted model in a notebook. It reads every attribute for
        that; importances, which are computed when they are read, are left out.
        """
        shown = BaseEstimator()
        vars(shown).update(vars(self))
        found = shown._get_fitted_attr_html(doc_link)
        found.estimator_class = type(self)
        return found

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = False
        return tags
