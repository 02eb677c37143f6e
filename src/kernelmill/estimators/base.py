"""What both estimators share. The estimator validates and keeps scikit-learn's manners; tuning, planning and solvers do the rest."""

from __future__ import annotations

import logging
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from .. import kernels, solvers
from ..data import Columns, Encoder, Stream, learn
from ..distributed.environment import restarted
from ..distributed.team import Alone, Communicator, agree, together
from ..distributed.torch_team import join
from ..errors import InputError
from ..export import write_onnx
from ..model import KernelModel
from ..ops import in_own_modes, own_modes
from ..planning.arguments import is_auto
from ..planning.device import device_of
from ..planning.memory import parse_bytes
from ..planning.plan import Plan
from ..storage.model_folder import save_model
from ..storage.run_folder import peek, seconds_of
from .agreement import agree_on_settings
from .partial import grown
from .rows import MERGE_ROWS, checked_weights, largest_of, refuse_sparse, stratified, too_large
from .tables import Given, as_table, given, pieces, to_open

log = logging.getLogger("kernelmill")

FLOATS = [np.float64, np.float32, np.float16]
CHECKED_ROWS = 1000
WINDOW_BYTES = 512 << 20  # of streamed rows that are mixed with each other


class KernelEstimator(BaseEstimator):
    """Common constructor and fit. Not for use by itself: see KernelRegressor and KernelClassifier."""

    model_: KernelModel
    plan_: Plan
    history_: list[dict[str, Any]]
    ridge_: float
    rows_seen_: int
    timings_: dict[str, float]
    encoder_: Encoder | None
    _fitted_with: dict[str, str]
    _comm: Communicator = Alone()
    _drawn: int | None = None
    _learned: Encoder | None = None
    _matrix: str | None = None
    _target: str | None = None
    _interrupted = False
    _stands: int  # the first so many centers stand for the rows seen
    _weight_seen: float
    _equations: solvers.DirectState | None = None  # of all chunks given to partial_fit

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
        ranks: int | str = "auto",
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
        self.ranks = ranks
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def __getstate__(self):
        return {
            name: value for name, value in super().__getstate__().items() if name != "_comm"
        }  # a model says itself whether it is shared

    def set_params(self, **params: Any):
        """As scikit-learn's; `kernel__bandwidth` and `solver__q` also work where a name was given instead of an object."""
        for part, room in (("kernel", kernels), ("solver", solvers)):
            if isinstance(getattr(self, part), str) and any(name.startswith(part + "__") for name in params) and part not in params:
                if getattr(self, part) == "auto":
                    example = next(iter(room.NAMED))
                    raise InputError(f"{part}='auto' has no settings to set; give a name or an object first, such as {part}={example!r}.")
                setattr(self, part, room.resolve(getattr(self, part)))
        return super().set_params(**params)

    @in_own_modes()
    def add_centers(self, Z: Any) -> Any:
        """More centers for a fitted model: rows as `predict` takes them. Predictions stay as they are until `partial_fit`, or `fit` with
        warm_start=True, gives the new ones weights."""
        check_is_fitted(self, "model_")
        self.model_, self._equations = grown(self.model_, self._through(Z, lambda X: X)), None
        return self

    def _new_rows(self, X: Any, y: Any, sample_weight: Any) -> tuple[Tensor, Any, Any]:
        """Rows for partial_fit, as features."""
        if to_open(X, y):
            table, y, sample_weight = given(X, y, sample_weight, self._host_bytes(self.model_.comm) // 4, self.kinds())
            X = table.table
        elif getattr(self, "encoder_", None) is None:
            return self._check_X(X, reset=False), y, sample_weight
        return self._through(X, lambda features: features), y, sample_weight

    def _random(self) -> np.random.RandomState:
        """Numbers that depend on random_state alone; of a run with checkpoints they are the same when it goes on."""
        return check_random_state(self.random_state if self._drawn is None else self._drawn)

    # ---- data in and out -------------------------------------------------------------------------------------------------

    def _open(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """X as a checked tensor, or as a table that is still to be encoded; targets and weights as arrays."""
        self._learned, self._drawn, self._before, self._comm = None, None, {}, self._joined(X)
        agree_on_settings(self, X, y)
        self._target = y if isinstance(y, str) else None
        if self.columns is not None and not isinstance(self.columns, Columns):
            raise InputError(f"columns={self.columns!r} was given, expected kernelmill.Columns(...) or None.")
        if self.checkpoint is not None:
            seconds_of(self.checkpoint_every)
            self._before = peek(self.checkpoint) if self.resume or restarted() else {}
            fixed = isinstance(self.random_state, Integral) and not isinstance(self.random_state, bool)
            new = int(self.random_state) if fixed else int(check_random_state(self.random_state).randint(2**31 - 1))
            self._drawn = new if fixed else int(self._before.get("random_state", new))
        if self._comm.size > 1 and not isinstance(self.random_state, Integral):  # all ranks draw the same
            own = self._drawn
            self._drawn = self._comm.same(lambda: int(self._random().randint(2**31 - 1)) if own is None else own)
        if not to_open(X, y, self.columns):
            if self.columns is not None:
                raise InputError("columns= was given, which is for tables and data frames, and X is an array; leave it out.")
            return self._check_X(X, reset=True), y, sample_weight
        return given(X, y, sample_weight, self._host_bytes(self._comm) // 4, (self.columns or Columns()).kinds)

    def _joined(self, X: Any) -> Communicator:
        """The ranks that this fit is shared by."""
        if self.ranks == 1:
            return Alone()
        comm = join(device_of(self.device, X if isinstance(X, Tensor) else None))
        if not is_auto(self.ranks) and self.ranks != comm.size:
            raise InputError(f"ranks={self.ranks!r} was given in a job of {comm.size} ranks; leave it out, or set ranks=1 to fit alone.")
        return comm

    def _open_scored(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The same for a score."""
        if not to_open(X, y):
            return X, y, sample_weight
        table, y, sample_weight = given(X, y, sample_weight, self._host_bytes(self.model_.comm) // 4, self.kinds())
        return table.table, y, sample_weight

    def kinds(self) -> dict[str, str]:
        """Of the columns that the model was trained on, whatever they look like in another file."""
        encoder, classes = getattr(self, "encoder_", None), getattr(self, "classes_", None)
        found = {} if encoder is None else dict(zip(encoder.order, encoder.kinds, strict=False))
        if encoder is not None and not encoder.kinds:  # a model from before they were stored
            found = {category.name: "text" for category in encoder.categories}
        labels = self._target and classes is not None and classes.dtype.kind in "UO"
        return {**found, **({str(self._target): "text"} if labels else {})}

    def _host_bytes(self, comm: Communicator) -> int:
        """Host memory that this fit may take; what rank 0 may, on all ranks: how rows are read follows from it."""
        return comm.same(lambda: parse_bytes(self.memory_budget if device_of(self.device) == "cpu" else None, "cpu"))

    def _encoded(self, X: Any, Y: Tensor, keep: Tensor, held: Tensor | None, w: Tensor) -> Any:
        """A table's rows as features: in memory where half of what may be used holds them, or streamed. Tensors are left as they are."""
        if not isinstance(X, Given):
            return X
        table, columns = X.table, self.columns or Columns()
        train = np.zeros(table.n, bool)
        train[keep.numpy()] = True
        out = None if held is None else np.isin(np.arange(table.n), held.numpy())
        warm = self.warm_start and hasattr(self, "model_")
        if warm:  # centers are in the features of the first fit
            table, encoder = as_table(table, self.encoder_, self.n_features_in_, self._matrix, 0)
        else:
            table = columns.named(table)
            encoder = learn(columns, table, X.skip, Y.numpy(), train, self.columns is not None, w.numpy())
        self._learned = encoder
        room, stored = self._host_bytes(self._comm), self._before.get("window_rows")
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
        try:
            w = np.asarray(sample_weight, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("sample_weight holds something that is no number, expected a weight of 0 or more for each row.") from None
        w = np.full(n, w) if w.ndim == 0 else w
        if w.shape != (n,):
            raise InputError(f"sample_weight of shape {w.shape} was given, expected ({n},): one weight per row.")
        return checked_weights(torch.from_numpy(w.copy()), "sample_weight")

    def _hold_out(self, n: int, default: float, labels: np.ndarray | None = None) -> np.ndarray | None:
        """Row numbers kept out of training, or None: of every class the same share, and never all of them."""
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
        order = self._random().permutation(n)
        out = order[n - size :] if labels is None else stratified(order, labels, fraction)
        return np.sort(out) if len(out) else None

    def _share_to_check(self, n: int) -> float:
        """Of a large regression whose kernel is chosen: rows on which the final model is compared with what the choice promised."""
        if isinstance(self.solver, Plan):  # a plan says how many rows were trained on
            return max(0.0, 1 - self.solver.n / n) if n > MERGE_ROWS else 0.0
        chosen = is_auto(self.kernel) or isinstance(getattr(kernels.resolve(self.kernel), "bandwidth", None), str)
        begun_before = bool(self._before) and "expected" not in self._before  # a run of a version that kept none out
        return min(0.02, CHECKED_ROWS / n) if chosen and n > MERGE_ROWS and not begun_before else 0.0

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

    @together("model_.comm")
    def _through(self, X: Any, function: Any) -> Tensor:
        """A function of features, of whatever was given: an array at once, a table piece by piece."""
        check_is_fitted(self, "model_")
        encoder = getattr(self, "encoder_", None)
        with own_modes():
            names = getattr(self, "feature_names_in_", None)
            if encoder is None and names is not None and hasattr(X, "iloc") and to_open(X) and set(names) <= set(X.columns):
                X = X[list(names)]  # a frame with more columns than the model was trained on
            if encoder is None and not to_open(X):
                return function(self._check_X(X, reset=False))
            agree(self.model_.comm, {"call": "predict, of a table"})
            table, encoder = as_table(
                X, encoder, self.n_features_in_, getattr(self, "_matrix", None), self._host_bytes(self.model_.comm) // 4
            )
            agree(self.model_.comm, {"call": "predict, of a table", "rows to predict": str(table.n)})
            parts = [function(torch.tensor(encoder.encode(table, a, b))).cpu() for a, b in pieces(table)]
            table.files.check()
            return torch.cat(parts) if parts else torch.empty(0, self.model_.alpha.shape[1], dtype=self.model_.alpha.dtype)

    # ---- model files -----------------------------------------------------------------------------------------------------

    @together("model_.comm")
    def save(self, folder: Any) -> None:
        """Write the fitted model as a folder of safetensors and JSON; `kernelmill.load` reads it back, on any device."""
        check_is_fitted(self, "model_")
        agree(self.model_.comm, {"call": "save"})
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

    def to_onnx(self, path: Any) -> None:
        """Write an ONNX file that takes what `predict` takes, column by column, and gives its predictions; a classifier's also gives
        probabilities. K(X, Z) is held: run it on some hundred rows at a time."""
        check_is_fitted(self, "model_")
        classes = getattr(self, "classes_", None)
        flat = classes is None and getattr(self, "y_ndim_", 1) == 1
        write_onnx(path, self.model_, getattr(self, "encoder_", None), classes, getattr(self, "_calibration", None), flat)

    _saved = [
        "n_iter_", "ridge_", "n_features_in_", "feature_names_in_", "classes_", "temperature_", "bias_", "floor_", "n_outputs_",
        "y_ndim_", "rows_seen_", "_matrix", "_stands", "_weight_seen", "_target", "timings_", "confusion_",
    ]  # fmt: skip

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.non_deterministic = False
        return tags
