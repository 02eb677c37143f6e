"""KernelRegressor: least squares in the span of the centers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)
from torch import Tensor

from ..callbacks.listeners import Callback
from ..conformal import Intervals, Left, fit_conformal
from ..data import Columns, Encoder, source_of
from ..error_bars import ErrorBars, error_bars, no_error_bars
from ..errors import InputError
from ..kernels import Kernel
from ..learning import Fitted, Held, Rows, Units, learn
from ..learning.rows import MERGE_ROWS, each_of, merge, squares, units_of
from ..learning.streaming import Chunk, Kept, remember
from ..model import KernelModel
from ..ops import in_own_modes
from ..planning.arguments import whole
from ..planning.plan import Plan
from ..processes import SampledProcess
from ..scoring import NUMBERS
from ..solvers import Solver, loss_of
from ..storage.model_folder import Extra
from ..tuning.left_out import SOME_CENTERS, Leverage, leverages
from ..types import DataLike
from ..uncertainty import Conformal, Posterior
from .base import KernelEstimator, Opened, first_chunk, unchanged_on_error
from .inputs import as_numbers
from .origin import IN_TURN, KEPT_OUT, HeldOut, held_out_numbers
from .validation import check_weights, refuse_too_large, split_rows, to_host

ENOUGH = 100  # held-out rows that intervals are made of; of fewer, rows are left out in turn


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
    uncertainty : "conformal", "posterior", or Posterior(...)
        How the model tells how sure it is. "conformal": intervals from residuals of rows it did not
        learn from, with the share of rows inside that was asked for. "posterior": a Gaussian
        process, whose functions are drawn and learned beside the mean; `uncertainty.Posterior` has
        its settings.
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
    intervals_ : Intervals or None
        What conformal intervals are made of: residuals of rows that were kept out, or left out in
        turn, over their spread.
    origin_ : dict
        Which library made the model, when, of which data and of how many rows.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    n_outputs_: int
    y_ndim_: int
    intervals_: Intervals | None = None
    _scores = tuple(NUMBERS)
    _saved = [*KernelEstimator._saved, "n_outputs_", "y_ndim_", "intervals_"]

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
        uncertainty: str | Conformal | Posterior = "conformal",
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
        super().__init__(
            kernel=kernel,
            n_centers=n_centers,
            solver=solver,
            epochs=epochs,
            ridge=ridge,
            centers=centers,
            device=device,
            precision=precision,
            memory_budget=memory_budget,
            validation_fraction=validation_fraction,
            early_stopping=early_stopping,
            feature_learning=feature_learning,
            ensemble=ensemble,
            time_limit=time_limit,
            scoring=scoring,
            callbacks=callbacks,
            columns=columns,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            resume=resume,
            ranks=ranks,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
        )
        self.uncertainty = uncertainty

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
        share = self._share_to_check(len(used))
        keep, out = split_rows(used, self._hold_out(len(used), share, opened.drawn))
        X, encoder = self._encode(opened, Y, keep, out, w)
        held = None if out is None else Held(X[out.to(X.device)], Y[out], w[out])
        units = units_of(Y, w, keep)
        if len(keep) > MERGE_ROWS:
            return Rows(X, Y, w, units, None, held, None if len(keep) == len(X) else keep, encoder)
        kept = X[keep.to(X.device)], Y[keep], w[keep]
        X, Y, w = merge(*kept, loss_of(self.solver).averages)
        scatter = (squares(*kept[1:], units) - squares(Y, w, units)).clamp(min=0)
        each = each_of(*kept, len(X))
        return Rows(X, Y, w, units._replace(scatter=scatter), None, held, None, encoder, each)

    def _score_held_out(self, rows: Rows, fitted: Fitted) -> HeldOut | None:
        """And with the same rows, intervals."""
        held, judged, units = rows.held, fitted.judged, rows.units
        scale, mean = units.scale.cpu().double(), units.mean.cpu().double()
        left, self.intervals_ = None, None
        if held is not None:
            values = self.model_(held.X).cpu()
            left = Left(held.X, values, held.y.cpu(), held.w.cpu(), KEPT_OUT)
        wanted = self.model_.process is None and (left is None or len(left.w) < ENOUGH)
        in_turn = self._left_out(fitted) if wanted else None
        told_by = in_turn or left
        if self.model_.process is None and told_by is not None:
            self.intervals_ = fit_conformal(self.model_, told_by, scale)
        if left is None and judged is not None:
            values, targets = (part * scale + mean for part in (judged.values, judged.targets))
            return held_out_numbers(values, targets, judged.w, IN_TURN)
        left = left or in_turn
        if left is None or not len(left.w):
            return None
        found = held_out_numbers(left.values, left.targets, left.w, left.how)
        return found if all(map(math.isfinite, found["scores"].values())) else None

    def _left_out(self, fitted: Fitted) -> Left | None:
        """Rows of the training, each as the model would have predicted it without it: of rows that
        were merged, each of them.
        """
        data, told = fitted.data, fitted.leverages()
        if told is None:
            return None
        (found, batch), units = told, data.rows.units
        mean, scale = (part.cpu().double() for part in units[:2])
        X, y, w = batch.X, batch.Y.cpu().double() * scale + mean, batch.w.cpu().double()
        w, share = w * data.weight, torch.ones_like(w)
        if data.rows.each is not None:
            keep = data.rows.keep
            at = found.rows if keep is None else keep.cpu()[found.rows]
            place, each = data.rows.each.of(at)
            found = Leverage(*(part[place] for part in found))
            share, w = each.w.double() / w[place], each.w.double()
            X, y = X[place.to(X.device)], each.y.double()
        return self._without(found, Held(X, y, w), share, units)

    def _without(self, found: Leverage, rows: Held, share: Tensor, units: Units) -> Left:
        """These rows, whose leverages were found, as the model would have predicted each without
        it.
        """
        mean, scale = (part.cpu().double() for part in units[:2])
        with torch.no_grad():
            said = (self.model_(rows.X).cpu().double() - mean) / scale
        values, less = found.without(said, (rows.y - mean) / scale, share)
        return Left(rows.X, values * scale + mean, rows.y, rows.w, IN_TURN, less * scale)

    def _kept_left_out(self) -> Left | None:
        """Of the rows of all chunks those that were kept, each as the model would have predicted it
        without it. They have leverages in a model of them alone with their share of the centers and
        of the ridge.
        """
        kept, model = self._kept, self.model_
        if kept is None:
            return None
        n = len(kept.w)
        units = units_of(kept.y, kept.w, torch.arange(n))
        ridge = self.ridge_ * n / self._weight_seen
        source = source_of(
            kept.X,
            kept.y,
            mean=model.intercept.cpu().double(),
            scale=units.scale,
            w=kept.w / kept.w.mean(),
            device=model.alpha.device,
        )
        p = max(1, round(model.n_centers * min(1.0, n / self.rows_seen_)))
        found = leverages(model.kernel, ridge, source, model.some_centers(SOME_CENTERS), p, 0)
        if found is None:
            return None
        rows = Held(*(part[found.rows] for part in kept[:3]))
        units = units._replace(mean=source.mean)
        return self._without(found, rows, torch.ones(len(rows.w)).double(), units)

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
        X, Y, w = X[used.to(X.device)], Y[used], w[used]
        with unchanged_on_error(self):
            self._extend(Chunk(X, Y, w, False))
            self._renew_intervals()
        return self

    def _renew_intervals(self) -> None:
        """Intervals from the rows of all chunks that were kept."""
        left, old = self._kept_left_out(), self.intervals_
        if left is None:
            return
        # After `fit`, which keeps no rows, few do not replace many.
        if len(left.w) >= ENOUGH or old is None or len(left.w) >= len(old.w):
            scale = units_of(left.targets, left.w, torch.arange(len(left.w))).scale
            self.intervals_ = fit_conformal(self.model_, left, scale) or old

    def _check_y(self, y: DataLike, n: int) -> Tensor:
        if isinstance(y, Tensor):
            y = y.detach().cpu()
            y = (y.float() if y.dtype in (torch.bfloat16, torch.float16) else y).numpy()
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        y = as_numbers(y)
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
        y, predicted, weight = to_host(as_numbers(y), self.predict(X), sample_weight)
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
        """
        if not return_std:
            return self._shaped(X, self._values(X))
        bars = self._error_bars()
        both = self._through(X, bars.beside)
        deviation = both[..., 1] * torch.from_numpy(bars.deviation).to(both)
        # Of targets that are all the same, 0: divided by, it would be no number.
        deviation = deviation.clamp(min=torch.finfo(deviation.dtype).tiny)
        return self._shaped(X, both[..., 0]), self._shaped(X, deviation)

    @in_own_modes()
    def predict_interval(
        self, X: DataLike, coverage: float = 0.9
    ) -> tuple[np.ndarray | Tensor, np.ndarray | Tensor]:
        """Between which values the targets of these rows lie, as (lower, upper): as often below as
        above, and in between with the probability asked for.

        With uncertainty="conformal" that holds for new rows like those of the training, on average
        over them, whatever the noise; less where a kernel was chosen on a few dozen rows. A
        Gaussian process takes its quantiles: they hold as far as the process describes the data.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        coverage : float
            The share of targets that lie inside.
        """
        bars = self._error_bars()
        bars.limits(coverage)  # what is refused is refused before anything is read
        lower, upper = bars.interval(self._through(X, bars.beside), coverage)
        return self._shaped(X, lower), self._shaped(X, upper)

    @in_own_modes()
    def sample(
        self,
        X: DataLike,
        n: int = 1,
        *,
        noise: bool = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> np.ndarray:
        """Targets that these rows might have, (rows, n), or (rows, outputs, n).

        Of a model with uncertainty="posterior", functions of the posterior: what is drawn for one
        row goes with what is drawn for another, and the same functions come at every call; n is at
        most its number of samples. Of any other, each row by itself: its prediction, and a residual
        from those of rows that the model did not learn from, or of a normal distribution.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        n : int
            How many.
        noise : bool
            Whether noise is added; False gives functions, which only a posterior has.
        random_state : int, RandomState instance or None
            As in scikit-learn: for noise and residuals.
        """
        count = whole("n", n, 1) or 1
        bars, generator = self._error_bars(), check_random_state(random_state)
        process = self.model_.process
        if isinstance(process, SampledProcess):
            found = self._functions(X, count, process.draws.shape[1])
            if noise:
                size = process.noise.cpu().double().sqrt().numpy()[:, None]
                found = found + size * generator.standard_normal(found.shape)
        elif not noise:
            raise InputError(
                "noise=False was given, and this model has no functions to draw; fit with"
                " uncertainty='posterior'."
            )
        else:
            both = self._through(X, bars.beside).cpu().double().numpy()
            found = both[:, :, :1] + both[:, :, 1:] * bars.draw(len(both), count, generator)
        return self._flat(found)

    def _functions(self, X: DataLike, count: int, most: int) -> np.ndarray:
        """(rows, outputs, count) functions of the posterior, of `most` that there are."""
        if count > most:
            raise InputError(
                f"n={count} was given, and the model has {most} functions; ask for fewer, or fit"
                f" with uncertainty.Posterior(samples={count})."
            )
        return self._through(X, self.model_.draw)[..., :count].cpu().double().numpy()

    @property
    def has_error_bars(self) -> bool:
        """Whether the model tells how sure it is."""
        check_is_fitted(self, "model_")
        return error_bars(self.model_, self.intervals_) is not None

    def _error_bars(self) -> ErrorBars:
        check_is_fitted(self, "model_")
        found = error_bars(self.model_, self.intervals_)
        if found is None:
            raise no_error_bars()
        return found

    def predict_with_error_bars(
        self, X: DataLike, coverages: Sequence[float]
    ) -> tuple[np.ndarray, np.ndarray, dict[float, tuple[np.ndarray, np.ndarray]]]:
        """Predictions, deviations, and an interval for each coverage, those that rows are too few
        for left out; X is read once.

        Parameters
        ----------
        X : array or table
            Rows, as `fit` takes them.
        coverages : list of float
            Shares of targets that lie inside.
        """
        bars = self._error_bars()
        both = self._through(X, bars.beside)
        found, size = (both[..., i].cpu().numpy() for i in (0, 1))
        limits = {}
        for coverage in coverages:
            with suppress(InputError):
                lower, upper = bars.interval(both, coverage)
                limits[coverage] = self._flat(lower.cpu().numpy()), self._flat(upper.cpu().numpy())
        return self._flat(found), self._flat(size * bars.deviation), limits

    def _flat(self, found: np.ndarray) -> np.ndarray:
        """As the targets were given."""
        return found[:, 0] if self.y_ndim_ == 1 else found

    def _shaped(self, X: DataLike, found: Tensor) -> np.ndarray | Tensor:
        """As the targets were given, and as X is: a tensor or an array."""
        found = found[:, 0] if self.y_ndim_ == 1 else found
        return found if isinstance(X, Tensor) else found.cpu().numpy()

    @classmethod
    def restored(cls, model: KernelModel, extra: Extra, encoder: Encoder | None) -> Self:
        found = super().restored(model, extra, encoder)
        if (kept := extra["fitted"]["_kept"]) is not None:
            found._kept = Kept.checked(kept, model.Z.shape[1], len(model.intercept))
        return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
