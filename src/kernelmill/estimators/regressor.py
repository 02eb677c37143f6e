"""KernelRegressor: least squares in the span of the centers."""

from __future__ import annotations

import math
from typing import Literal, overload

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d
from torch import Tensor

from ..errors import InputError
from ..learning import Fitted, Held, Rows, learn
from ..learning.rows import MERGE_ROWS, merge, squares, units_of
from ..learning.streaming import Chunk, remember
from ..ops import in_own_modes
from ..scoring import NUMBERS
from ..solvers import loss_of
from ..tuning.loo import loo_residuals
from ..types import DataLike
from .base import KernelEstimator, Opened, first_chunk
from .inputs import in_seconds
from .origin import IN_TURN, KEPT_OUT, HeldOut, held_out_numbers
from .validation import check_weights, refuse_too_large, split_rows, to_host

LEFT_OUT = 1_000  # rows that tell how good a model is where nothing else does


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Kernel regression with any number of centers.

    Minimises Σ wᵢ ‖f(xᵢ) − yᵢ‖² + ridge·‖f‖² over f = K(·, Z) α. With nothing set, kernel,
    bandwidths, ridge, centers and solver are chosen from the data and its size.

    Parameters
    ----------
    kernel : "auto", str, kernel object or callable
        "auto" compares kernels, and features for them to see, on a sample; a name such as
        "laplacian"; an object such as `kernels.Laplacian(bandwidth=20.0)`; or a function K(A, B).
    n_centers : int, optional
        How many rows become centers. None lets the plan decide.
    solver : "auto", str, solver object or Plan
        "auto" takes the fastest that fits; a name such as "falkon"; an object such as
        `solvers.EigenPro4(q=100)`; or the `plan_` of an earlier fit, to do the same again.
    epochs : int, optional
        Passes over the data, or iterations. None lets the plan decide; some solvers end when they
        have converged. With solver="auto" these are the passes of EigenPro 4 and 2: an exact
        solution is always solved to its end.
    ridge : float, optional
        λ of the objective above, a sum over rows and not a mean. None chooses it.
    centers : str or array of shape (p, d)
        "uniform", "balanced", "kmeans++", "farthest", "rpcholesky"; "kmeans": means of rows, so
        that no row is in the model; or the centers themselves.
    device : str
        "auto", "cpu", "cuda", "cuda:1", …
    precision : str
        What features are rounded to: "auto", "float8", "float16", "bfloat16", "tf32", "float32" or
        "float64". Kernel values and sums are float32, or float64 for "float64"; the direct
        solution, Gaussian processes and, with "auto", Falkon are computed in float64.
    memory_budget : int or str, optional
        Bytes, or a string such as "8GB", that the fit may take beyond X and y. None: what is free.
    validation_fraction : float, optional
        Share of the rows held out of training, to score each epoch and to check the model at the
        end. None: 2 %, at most 1,000 rows, where there are more than 10,000 and the
        kernel is chosen; else none.
    early_stopping : bool or "auto"
        Stop when the score of held-out rows has not improved for 3 epochs, and keep the best
        weights. "auto": only for solvers that regularise by stopping (NYTRO, 50 steps).
    feature_learning : bool or "auto"
        Whether a kernel that is chosen may see encoded columns (clipped tails, quantiles, codes as
        names) and a metric learned from its own gradients; False leaves columns as they are.
    ensemble : bool, int or "auto"
        The most kernels that a sum of them may have; "auto" is 3, and one is taken where it is as
        good. False or 1: a single kernel.
    time_limit : float, optional
        Seconds that the fit should take: half of them for choosing, which then tries less, and half
        for solving, with as many centers as can be afforded. None tries everything.
    scoring : str, optional
        What kernels are chosen by, and the score of held-out rows: "r2", "rmse", "squared_error"
        or "absolute_error", or scikit-learn's name for one of them. None: "r2". What is minimised
        is the solver's loss.
    callbacks : callable or list of callables, optional
        Each gets every Event; returning True stops the fit.
    columns : Columns, optional
        How the columns of a table become features; None uses all but the target.
    checkpoint : path, optional
        Folder that checkpoints of the run are written to; None writes none.
    checkpoint_every : str or float
        Time between two checkpoints: "30s", "5m", "2h", or seconds.
    resume : bool
        Resume the run in `checkpoint`, or start it if there is none; without it, a folder that
        holds a run is refused.
    ranks : int or "auto"
        Processes that share the centers. "auto": all of the torchrun job that this is one of; a
        number is compared with it; 1 is this process alone.
    warm_start : bool
        Start from the weights, kernel and centers of the model that is already fitted.
    random_state : int, RandomState instance or None
        As in scikit-learn.
    verbose : int
        1 shows a progress bar, in `predict` of a table or file too.

    Attributes
    ----------
    model_ : KernelModel
        The model, with `.kernel`, `.Z` and `.alpha`.
    plan_ : Plan
        Every size that was used.
    history_ : list of dict
        One dict per projection and epoch.
    ridge_ : float
        The ridge that was used.
    timings_ : dict
        Seconds of choosing and of solving.
    encoder_ : Encoder or None
        How the columns of a table became features; `names` are those of the features.
    columns_ : Account
        What each column of the training table became; prints as a table.
    feature_importances_ : array
        How much the values depend on each column, with sum 1.
    rows_seen_ : int
        Rows that `fit` and `partial_fit` were given.
    n_iter_ : int
        Epochs or iterations that were made.
    held_out_ : dict or None
        Scores of rows that the model, or one like it, did not see: `rows`, `how` they were kept
        out, and `scores` by name.
    origin_ : dict or None
        Which library made the model, when, of which data and of how many rows.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    n_outputs_: int
    y_ndim_: int
    _scores = tuple(NUMBERS)

    @in_own_modes(gradients=True)
    def fit(
        self, X: DataLike, y: DataLike = None, sample_weight: DataLike = None
    ) -> KernelRegressor:
        """Train on rows and their targets.

        Parameters
        ----------
        X : array, tensor or table
            (n, d) rows; or a table: a data frame, the path of a file or a folder, an Arrow table or
            dataset, an HDF5 group, a torch dataset or loader.
        y : array, str or list of str
            (n,) or (n, outputs) targets; of a table also the names of their columns, or the path of
            a .npy file. Dates are seconds since 1970.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        with self._prepare(X, y, sample_weight) as job:
            self._adopt(job, learn(job.request, job.rows, job.around, warm=job.warm))
        return self

    def _read(self, opened: Opened, classes: np.ndarray | None = None) -> Rows:
        Y = self._check_y(opened.y, len(opened.X))
        w = check_weights(opened.sample_weight, len(opened.X))
        used = torch.nonzero(w > 0)[:, 0]
        share = self._share_to_check(len(used), opened.before or {})
        keep, out = split_rows(used, self._hold_out(len(used), share, opened.drawn))
        X, encoder = self._encode(opened, Y, keep, out, w)
        held = None if out is None else Held(X[out.to(X.device)], Y[out], w[out])
        units = units_of(Y, w, keep)
        if len(keep) > MERGE_ROWS:
            return Rows(X, Y, w, units, None, held, None if len(keep) == len(X) else keep, encoder)
        before = squares(Y[keep], w[keep], units)
        X, Y, w = merge(X[keep.to(X.device)], Y[keep], w[keep], loss_of(self.solver).averages)
        scatter = (before - squares(Y, w, units)).clamp(min=0)
        return Rows(X, Y, w, units._replace(scatter=scatter), None, held, None, encoder)

    def _score_held_out(self, rows: Rows, fitted: Fitted) -> HeldOut | None:
        held, judged = rows.held, fitted.judged
        if held is not None:
            values = self.model_(held.X).cpu()
            return held_out_numbers(values, held.y.cpu(), held.w.cpu(), KEPT_OUT)
        if judged is None:
            return self._score_left_out(rows)
        scale, mean = rows.units.scale.cpu().double(), rows.units.mean.cpu().double()
        values, targets = (part * scale + mean for part in (judged.values, judged.targets))
        return held_out_numbers(values, targets, judged.w, IN_TURN)

    def _score_left_out(self, rows: Rows) -> HeldOut | None:
        """Where nothing was chosen, and so nothing judged: few rows, each predicted by the others
        with this kernel and ridge. Some of many would tell of another model.
        """
        used = torch.arange(len(rows.y)) if rows.keep is None else rows.keep
        if len(used) > LEFT_OUT:
            return None
        X, Y, w = rows.X[used.to(rows.X.device)], rows.y[used].double(), rows.w[used].double()
        mean = rows.units.mean.cpu().double()
        try:
            K = self.model_.kernel(X.to(self.model_.Z.device).double()).cpu()
            ridge = max(self.ridge_, 1e-8 * K.diagonal().mean().item()) / w
            left = loo_residuals(K, Y - mean, ridge)
        except torch.linalg.LinAlgError:
            return None
        found = held_out_numbers(Y - left, Y, w, IN_TURN)
        return found if len(Y) > 1 and all(map(math.isfinite, found["scores"].values())) else None

    @in_own_modes(gradients=True)
    def partial_fit(
        self, X: DataLike, y: DataLike = None, sample_weight: DataLike = None
    ) -> KernelRegressor:
        """Train on more rows, without those before.

        The first call fits, and chooses kernel and centers among its rows; later calls continue
        from there. Give each a few thousand rows.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them.
        y : array or str
            Their targets.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        if not hasattr(self, "model_"):
            with self._prepare(X, y, sample_weight) as job:
                fitted = learn(job.request, job.rows, first_chunk(job), warm=job.warm)
                self._adopt(job, fitted)
                self._keep_memory(remember(job.request, fitted))
            return self
        X, y, sample_weight = self._new_rows(X, y, sample_weight)
        before = self.y_ndim_, self.n_outputs_
        Y = self._check_y(y, len(X))
        if (self.y_ndim_, self.n_outputs_) != before:
            (self.y_ndim_, self.n_outputs_), given = before, self.n_outputs_
            raise InputError(f"y has {given} columns, the model was fitted with {self.n_outputs_}.")
        w = check_weights(sample_weight, len(X))
        used = w > 0
        self._extend(Chunk(X[used.to(X.device)], Y[used], w[used], False))
        return self

    def _check_y(self, y: DataLike, n: int) -> Tensor:
        if isinstance(y, Tensor):
            y = y.detach().cpu()
            y = (y.float() if y.dtype in (torch.bfloat16, torch.float16) else y).numpy()
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        y = in_seconds(y)
        if getattr(getattr(y, "dtype", None), "kind", "O") in "US":
            first = next(
                (value for value in y.ravel().tolist() if not _is_number(value)), y.ravel()[0]
            )
            raise InputError(
                f"y holds texts, such as {str(first)!r}, expected numbers; use KernelClassifier for"
                " labels, or fix the column."
            )
        y = check_array(
            y, ensure_2d=False, dtype=[np.float64, np.float32], input_name="y", allow_nd=False
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_consistent_length(np.empty(n), y)
        refuse_too_large(float(np.abs(y).max()) if y.size else 0.0, y.dtype, "y")
        self.y_ndim_ = y.ndim
        self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        return torch.from_numpy(np.array(y.reshape(n, -1)))

    def _units(self, values: Tensor) -> Tensor:
        """Deviations: outputs count alike, whatever their scale."""
        spread = values.std(0, correction=0)
        return torch.where(spread > 0, spread, 1.0)

    def score(self, X: DataLike, y: DataLike, sample_weight: DataLike = None) -> float:
        """R², like scikit-learn's.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        y : array or str
            Known targets, or the name of their column.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        X, y, sample_weight = self._open_scored(X, y, sample_weight)
        y, predicted, weight = to_host(in_seconds(y), self.predict(X), sample_weight)
        return r2_score(y, predicted, sample_weight=weight)

    @overload
    def predict(self, X: DataLike, return_std: Literal[False] = False) -> np.ndarray | Tensor: ...

    @overload
    def predict(
        self, X: DataLike, return_std: Literal[True]
    ) -> tuple[np.ndarray | Tensor, np.ndarray | Tensor]: ...

    def predict(
        self, X: DataLike, return_std: bool = False
    ) -> np.ndarray | Tensor | tuple[np.ndarray | Tensor, np.ndarray | Tensor]:
        """f(X): a numpy array, or a tensor where X is one.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        return_std : bool
            Also give the standard deviation of the targets, noise included: (f(X), deviation).
            Needs a model that was trained by solver="sgpr".
        """
        values = self._values(X)
        if return_std and self.model_.uncertainty is None:
            raise InputError("return_std=True needs a Gaussian process: fit with solver='sgpr'.")
        answers = [values]
        if return_std:
            with torch.no_grad():
                answers.append(self._through(X, self.model_.std).to(values))
        answers = [answer[:, 0] if self.y_ndim_ == 1 else answer for answer in answers]
        given = [answer if isinstance(X, Tensor) else answer.cpu().numpy() for answer in answers]
        return (given[0], given[1]) if return_std else given[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
