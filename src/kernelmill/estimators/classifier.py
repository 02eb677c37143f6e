"""KernelClassifier: one-hot least squares; probabilities calibrated on rows kept out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor

from ..calibration import Calibration, calibrate
from ..callbacks.listeners import Callback
from ..conformal import Sets, check_coverage
from ..data import Columns
from ..data.kinds import of_array, places
from ..distributed.team import is_alone
from ..errors import InputError, warn
from ..kernels import Kernel
from ..learning import Fitted, Held, Judged, Rows, Units, learn
from ..learning.rows import MERGE_ROWS, merge
from ..learning.streaming import Chunk, remember
from ..losses import Values
from ..ops import in_own_modes
from ..planning.arguments import unless_auto
from ..planning.device import device_of
from ..planning.memory import parse_bytes
from ..planning.plan import Plan
from ..scoring import CLASSES, decision_bias
from ..solvers import Solver, loss_of
from ..tuning.loo import loo_residuals
from ..tuning.sample import CHECK_ROWS, Effort, draw
from ..types import DataLike
from .base import KernelEstimator, Opened, first_chunk, unchanged_on_error
from .inputs import labels_of
from .origin import IN_TURN, KEPT_OUT, HeldOut, held_out_classes
from .validation import check_weights, require_positive_weights, split_rows, to_host

# Rows kept out of a large training set to calibrate on: so many, or a share of more rows.
CALIBRATION_ROWS, CALIBRATION_SHARE, MOST_CALIBRATION_ROWS = 2_000, 0.04, 5_000
# Rows of a class, that many times fewer than of an average one, which are too few to calibrate by:
# training rows of it are left out in turn, so many of all such classes.
FEW_HELD, UNEVEN, MOST_LEFT_OUT = 10, 4, 200
FEWEST_OF_CLASS = 5  # rows, below which its probability is a guess

FEWEST_NEW = 100  # rows of a chunk that prediction sets are made of
MOST_CONFUSED = 200  # classes of which a confusion matrix is kept


class KernelClassifier(ClassifierMixin, KernelEstimator):
    """Kernel classification with any number of centers.

    Minimises Σ wᵢ ‖f(xᵢ) − yᵢ‖² + ridge·‖f‖² over f = K(·, Z) α, with one column of targets per
    class; a solver such as `Falkon(loss="logistic")` brings its own loss. With nothing set,
    kernel, bandwidths, ridge, centers and solver are chosen from the data and its size.

    `predict_proba` gives calibrated probabilities, `decision_function` their logarithms, `predict`
    the likeliest class: softmax of the values `model_(X)` and of their logarithms, each with its
    slope, and a bias for each class. These are fitted on leave-one-out predictions of small data,
    and on up to 2,000 rows held out of large data; on those rows they are never worse than the
    frequencies of the classes.

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
        end. None: a tenth, at most 2,000 rows, where there are more than 2,500; else
        none.
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
        What kernels are chosen by, the score of held-out rows, and what `predict` decides for:
        "accuracy", "log_loss", "roc_auc", "balanced_accuracy" or "f1" (of the second of two
        classes, the mean of more), or scikit-learn's name for one of them. None: kernels are
        chosen by log loss, and rows scored by accuracy. For balanced accuracy and F1 classes
        get thresholds, `decision_bias_`, chosen on the rows of the calibration.
    callbacks : callable or list of callables, optional
        Each gets every Event; returning True stops the fit.
    class_weight : dict or "balanced", optional
        As in scikit-learn: a factor for the weights of each class's rows.
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
    classes_ : array
        The labels of the classes, in the order of the columns of `predict_proba`.
    slope_, log_slope_, bias_, floor_ : float, float, array, float
        The calibration: softmax of slope · f + log_slope · log(max(f, floor)) + bias of the
        values f = model_(X).
    decision_bias_ : array
        What is added to them before the largest decides, for the score that was asked for.
    held_out_ : dict or None
        Scores of rows that the model, or one like it, did not see: `rows`, `how` they were kept
        out, and `scores` by name.
    sets_ : Sets or None
        What prediction sets are made of: how likely the true class was, of rows that were kept out
        or left out in turn.
    confusion_ : array or None
        True classes in rows, predicted ones in columns, of rows that were kept out.
    origin_ : dict
        Which library made the model, when, of which data and of how many rows.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    classes_: np.ndarray
    slope_: float
    log_slope_: float
    bias_: np.ndarray
    floor_: float
    decision_bias_: np.ndarray
    sets_: Sets | None = None
    _counts_as: Tensor
    _scores = tuple(CLASSES)
    _saved = [
        *KernelEstimator._saved,
        "classes_",
        "slope_",
        "log_slope_",
        "bias_",
        "floor_",
        "decision_bias_",
        "confusion_",
        "sets_",
    ]

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
        class_weight: str | Mapping[Any, float] | None = None,
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
        self.class_weight = class_weight

    @in_own_modes(gradients=True)
    def fit(
        self, X: DataLike, y: DataLike = None, sample_weight: DataLike = None
    ) -> KernelClassifier:
        """Train on rows and their labels.

        Parameters
        ----------
        X : array, tensor or table
            (n, d) rows; or a table: a data frame, the path of a file or a folder, an Arrow table or
            dataset, an HDF5 group, a torch dataset or loader.
        y : array or str
            (n,) labels of any sortable kind; of a table also the name of their column, or the path
            of a .npy file.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        with self._prepare(X, y, sample_weight) as job:
            self._adopt(job, learn(job.request, job.rows, job.around, warm=job.warm))
        return self

    @in_own_modes(gradients=True)
    def partial_fit(
        self,
        X: DataLike,
        y: DataLike = None,
        classes: ArrayLike | Tensor | None = None,
        sample_weight: DataLike = None,
    ) -> KernelClassifier:
        """Train on more rows, without those before.

        The first call fits, and chooses kernel and centers among its rows; later calls continue
        from there. Give each a few thousand rows.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them.
        y : array or str
            Their labels.
        classes : array, optional
            All labels that may come; needed in the first call.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        if not hasattr(self, "model_"):
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            with self._prepare(X, y, sample_weight, np.unique(to_host(classes)[0])) as job:
                fitted = learn(job.request, job.rows, first_chunk(job), warm=job.warm)
                self._adopt(job, fitted)
                self._keep_memory(remember(job.request, fitted))
            return self
        if classes is not None and not np.array_equal(
            np.unique(to_host(classes)[0]), self.classes_
        ):
            raise ValueError(
                f"classes={classes!r} are not the same as on the last call to partial_fit,"
                f" {self.classes_!r}."
            )
        X, y, sample_weight = self._new_rows(X, y, sample_weight)
        if (found := self._places(y)) is not None and (found >= 0).all():
            y = self.classes_[found]
        codes = self._check_labels(y, len(X), self.classes_)
        w = check_weights(sample_weight, len(X))
        used = w > 0
        X, codes, w = X[used.to(X.device)], codes[used], w[used]
        w = self._class_weighted(w, codes, on_the_way=True)
        # Rows that were not learned yet say how sure the model may be,
        # each chunk in its share of all.
        with torch.no_grad():
            values = self.model_(X).cpu().double()
        targets = torch.nn.functional.one_hot(codes, len(self.classes_)).double()
        share, old = len(X) / (self.rows_seen_ + len(X)), self._calibration
        new = old
        if len(self.classes_) > 1:
            shares = (w[:, None] * targets).sum(0)
            new = calibrate(values, targets, w, shares, old.floor)
        decision = self._decide(new, values, targets, w)
        mixed, sets = old.mix(new, share), self.sets_
        chances = torch.softmax(mixed.logits(values), 1)
        if len(w) >= FEWEST_NEW or sets is None:  # few rows do not replace many
            sets = Sets.of(chances, targets, w.double(), KEPT_OUT, self._counts_as) or sets
        with unchanged_on_error(self):
            self._extend(Chunk(X, torch.nn.functional.one_hot(codes, len(self.classes_)), w, True))
            self._keep_calibration(mixed)
            self.sets_ = sets
            self.decision_bias_ = (1 - share) * self.decision_bias_ + share * decision
        return self

    @property
    def _calibration(self) -> Calibration:
        bias = torch.from_numpy(self.bias_)
        return Calibration(self.slope_, self.log_slope_, bias, self.floor_)

    def _logits(self, X: DataLike) -> Tensor:
        """Logarithms of the probabilities, but for a constant of each row."""
        values = self._values(X)
        return self._calibration.logits(values)

    def _sums(self, values: Tensor) -> Tensor:
        """The same, of values, with what is added to decide: the largest wins."""
        logits = self._calibration.logits(values)
        return logits + torch.from_numpy(self.decision_bias_).to(logits)

    def _keep_calibration(self, found: Calibration) -> None:
        self.slope_, self.log_slope_ = found.slope, found.log_slope
        self.bias_, self.floor_ = found.bias.numpy(), found.floor

    def _decide(
        self, calibration: Calibration, values: Tensor, targets: Tensor, w: Tensor
    ) -> np.ndarray:
        """(c,) what is added to the logits for the score that was asked for."""
        logs = torch.log_softmax(calibration.logits(values), 1)
        return decision_bias(self._scoring(), logs, targets, w).numpy()

    def _read(self, opened: Opened, classes: np.ndarray | None = None) -> Rows:
        codes = self._check_labels(opened.y, len(opened.X), classes)
        w = self._class_weighted(check_weights(opened.sample_weight, len(opened.X)), codes)
        if classes is None:
            warn_of_rare(self.classes_, torch.bincount(codes[w > 0]))
        keep, out = self._training_rows(w, codes.numpy(), opened)
        X, encoder = self._encode(opened, codes, keep, out, w)
        held = None if out is None else Held(X[out.to(X.device)], codes[out], w[out])
        dtype = torch.float64 if X.dtype == torch.float64 else torch.float32
        units = Units.of(self._shares(codes, w, keep).to(dtype))
        if len(keep) > MERGE_ROWS:
            return Rows(
                X, codes, w, units, codes, held, None if len(keep) == len(X) else keep, encoder
            )
        one_hot = torch.nn.functional.one_hot(codes[keep], len(self.classes_)).double()
        X, Y, w = merge(X[keep.to(X.device)], one_hot, w[keep], loss_of(self.solver).averages)
        return Rows(X, Y.to(dtype), w, units, Y.argmax(1), held, None, encoder)

    def _shares(self, y: Tensor, w: Tensor, keep: Tensor | None) -> Tensor:
        """(c,) the classes' shares of the weight, over these rows; y: class codes, or one-hot rows
        that were merged.
        """
        y, w = (y, w) if keep is None else (y[keep], w[keep])
        zeros = torch.zeros(len(self.classes_), dtype=torch.float64)
        total = zeros.index_add_(0, y, w) if y.ndim == 1 else (w[:, None] * y.double()).sum(0)
        return total / w.sum()

    def _score_held_out(self, rows: Rows, fitted: Fitted) -> HeldOut | None:
        """By the rows that probabilities are calibrated on, which is done here too."""
        self.confusion_: np.ndarray | None = None
        self.decision_bias_ = np.zeros(len(self.classes_))
        self.held_out_, self.sets_ = None, None
        self._keep_calibration(self._calibrate(rows, fitted))
        return self.held_out_

    def _class_weighted(self, w: Tensor, codes: Tensor, on_the_way: bool = False) -> Tensor:
        """Weights of rows, times those of their classes, which `_counts_as` keeps."""
        before, w = w, self._times_class(w, codes, on_the_way)
        self._counts_as = torch.ones(len(self.classes_), dtype=torch.float64)
        used = before > 0
        self._counts_as[codes[used]] = (w[used] / before[used]).double()
        return w

    def _times_class(self, w: Tensor, codes: Tensor, on_the_way: bool) -> Tensor:
        if self.class_weight is None:
            return w
        if on_the_way and isinstance(self.class_weight, str):
            raise ValueError(
                "class_weight='balanced' needs all rows at once: give partial_fit a dict of"
                " weights."
            )
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            # By weight: one of k is k copies.
            totals = torch.bincount(codes, weights=w, minlength=len(self.classes_))
            w = w * (w.sum() / (totals > 0).sum() / totals)[codes]
            return require_positive_weights(torch.nan_to_num(w), "class_weight times sample_weight")
        try:
            w = w * torch.from_numpy(
                compute_sample_weight(self.class_weight, self.classes_[codes.numpy()])
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"class_weight={self.class_weight!r} was given: {error}") from None
        return require_positive_weights(w, "class_weight times sample_weight")

    def _training_rows(
        self, w: Tensor, codes: np.ndarray, opened: Opened
    ) -> tuple[Tensor, Tensor | None]:
        """Numbers of the rows to train on, and of those kept out for the calibration and the
        validation score.
        """
        rows = torch.nonzero(w > 0)[:, 0]
        default = 0.0
        if len(rows) > self._most_left_out(opened):
            wanted = max(CALIBRATION_ROWS, CALIBRATION_SHARE * len(rows))
            default = min(0.1, min(wanted, MOST_CALIBRATION_ROWS) / len(rows))
        out = self._hold_out(len(rows), default, opened.drawn, codes[rows.numpy()])
        return split_rows(rows, out)

    def _most_left_out(self, opened: Opened) -> int:
        """Up to how many rows each is left out once, so that none has to be kept out for the
        calibration.
        """
        if opened.before:  # a run goes on with the rows that it began with
            return len(opened.X) if opened.before["each_row"] else CHECK_ROWS
        before = self.plan_ if self._warm() is not None else self.solver
        if isinstance(before, Plan):  # so does a stored plan, and a model
            return len(opened.X) if before.each_row else CHECK_ROWS
        sizes = self.solver, self.n_centers, self.time_limit
        every_row = all(unless_auto(given) is None for given in sizes)
        every_row = every_row and (self.centers is None or isinstance(self.centers, str))
        if not every_row or not is_alone(opened.comm):
            return CHECK_ROWS
        device = device_of(self.device, opened.X if isinstance(opened.X, Tensor) else None)
        budget = parse_bytes(unless_auto(self.memory_budget), device)
        return max(CHECK_ROWS, Effort.on(torch.device(device), budget).each)

    def _check_labels(self, y: DataLike, n: int, known: np.ndarray | None = None) -> Tensor:
        if isinstance(y, Tensor):
            y = y.detach().cpu().numpy()
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None.")
        y = column_or_1d(labels_of(y), warn=True)
        check_consistent_length(np.empty(n), y)
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise InputError("Input y contains NaN or infinity; every row needs a label.")
        if known is not None:
            codes = np.searchsorted(known, y).clip(max=len(known) - 1)
            if (strange := known[codes] != y).any():
                raise InputError(
                    f"y has the label {str(y[strange][0])!r}, which is not among the classes"
                    f" {known[:10]}."
                )
            self.classes_ = known
            return torch.from_numpy(codes.astype(np.int64))
        classes, codes = _encode_labels(y)
        if (
            self.warm_start
            and hasattr(self, "model_")
            and not np.array_equal(classes, self.classes_)
        ):
            raise InputError(
                f"warm_start=True, but the labels changed from {self.classes_[:5]} to"
                f" {classes[:5]}; set warm_start=False."
            )
        self.classes_ = classes
        return torch.from_numpy(codes)

    def _calibrate(self, rows: Rows, fitted: Fitted) -> Calibration:
        """From held-out rows, and of classes that have hardly any there, leave-one-out predictions;
        on small data, where none are held out, from what choosing said of rows without having seen
        them, or from leave-one-out predictions of all.
        """
        c, held, judged = len(self.classes_), rows.held, fitted.judged
        if c == 1:
            return Calibration.none(1)
        X, y, w = rows.X, rows.y, rows.w
        shares = self._shares(y, w, rows.keep)
        if held is not None:
            values = self._no_grad_values(held.X)
            known = Judged(values, self._one_hot(held.y), held.w)
            known = self._with_rare(known, fitted, shares)
            found = self._fit_decisions(*known, shares, KEPT_OUT)
            decided = found.logits(values) + torch.from_numpy(self.decision_bias_)
            self.confusion_ = confusion(decided, held.y, c)
            return found
        values_are = loss_of(self.solver).values
        # Values of ±1 have no closed form: sharper than they should be, on the learned rows.
        if values_are is Values.MARGINS:
            return self._fit_decisions(self._no_grad_values(X), self._one_hot(y), w, shares)
        if judged is not None and values_are is not Values.LOGITS:
            return self._fit_decisions(judged.values, judged.targets, judged.w, shares, IN_TURN)
        plan = self.plan_
        each = Effort.on(torch.device(plan.device), plan.budget).each if plan.every_row else 0
        used = torch.nonzero(w > 0)[:, 0]
        # The user kept no rows out: leave-one-out on some rows is near enough.
        if len(used) > max(CHECK_ROWS, each):
            drawn = torch.Generator().manual_seed(plan.seed)
            assert rows.codes is not None
            some, stands_for = draw(len(used), rows.codes[used], drawn, CHECK_ROWS)
            used = used[some]
            w = w.index_copy(0, used, w[used] * stands_for.to(w))
        X, y, w = X[used.to(X.device)], y[used.to(y.device)], w[used]
        if values_are is Values.LOGITS:  # probabilities are what it learned
            found = Calibration.none(c)
            self.decision_bias_ = self._decide(found, self._no_grad_values(X), self._one_hot(y), w)
            return found
        return self._calibrate_by_leaving_out(X, self._one_hot(y), w, shares)

    def _with_rare(self, held: Judged, fitted: Fitted, shares: Tensor) -> Judged:
        """Held-out rows, and with them training rows of classes that have hardly any there, each
        left out in turn; all in the classes' shares.
        """
        c, codes = len(self.classes_), fitted.data.codes
        counts = held.targets.sum(0).cpu()
        few = torch.nonzero((counts < FEW_HELD) & (UNEVEN * c * counts < len(held.w)))[:, 0]
        square = loss_of(fitted.solver).values is Values.NUMBERS
        if codes is None or not square or not 0 < len(few) <= MOST_LEFT_OUT:
            return held
        most, rare = MOST_LEFT_OUT // len(few), []
        for k in few.tolist():
            rows = torch.nonzero(codes.cpu() == k)[:, 0]
            rare.append(rows[:: max(1, math.ceil(len(rows) / most))])
        wanted = torch.cat(rare)
        told = fitted.leverages(wanted) if len(wanted) else None
        if told is None:
            return held
        (found, batch), mean = told, fitted.data.rows.units.mean.cpu().double()
        said, targets = self._no_grad_values(batch.X).cpu().double() - mean, batch.Y.cpu().double()
        values = found.without(said, targets, torch.ones_like(found.lever))[0] + mean
        w = torch.cat([held.w, batch.w.cpu().double() * fitted.data.weight])
        targets = torch.cat([held.targets, targets + mean])
        there = (w[:, None] * targets).sum(0) / w.sum()
        w = w * (targets @ torch.where(there > 0, shares / there, 0.0))
        return Judged(torch.cat([held.values, values]), targets, w)

    def _calibrate_by_leaving_out(
        self, X: DataLike, Y: Tensor, w: Tensor, shares: Tensor
    ) -> Calibration:
        centered = Y - self.model_.intercept.cpu().double()
        try:
            K = self.model_.kernel(X.to(self.model_.Z.device).double())
            least = 1e-8 * w.mean().item() * K.diagonal().mean().item()
            ridge = max(self.ridge_, least) / w
            residual = loo_residuals(K, centered.to(K.device), ridge.to(K)).cpu()
        except torch.linalg.LinAlgError:
            return Calibration.none(len(self.classes_))
        return self._fit_decisions(Y - residual, Y, w, shares, IN_TURN)

    def _fit_decisions(
        self, values: Tensor, targets: Tensor, w: Tensor, shares: Tensor, how: str = ""
    ) -> Calibration:
        """The calibration of these rows, and with it thresholds for the score asked for. `how`:
        they were kept out of training, if they were.
        """
        found = calibrate(values, targets, w, shares)
        self.decision_bias_ = self._decide(found, values, targets, w)
        if how:
            logits = found.logits(values)
            chances, decided = (
                torch.softmax(logits, 1),
                logits + torch.from_numpy(self.decision_bias_),
            )
            alone = w[:, None].double() * targets / self._counts_as  # without weights of classes
            rows, shares = alone.sum(1), alone / alone.sum(1, keepdim=True).clamp(min=1e-300)
            self.held_out_ = held_out_classes(chances, decided, shares, rows, how)
            self.sets_ = Sets.of(chances, targets.double(), w.double(), how, self._counts_as)
        return found

    def _no_grad_values(self, X: DataLike) -> Tensor:
        with torch.no_grad():
            return self.model_(X).cpu().double()

    def _one_hot(self, y: Tensor) -> Tensor:
        """(n, c) float64 targets, from class codes or from rows that were merged."""
        return (
            y.double()
            if y.ndim == 2
            else torch.nn.functional.one_hot(y, len(self.classes_)).double()
        )

    def score(self, X: DataLike, y: DataLike, sample_weight: DataLike = None) -> float:
        """Accuracy, like scikit-learn's.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        y : array or str
            Known labels, or the name of their column.
        sample_weight : array or str, optional
            A weight for each row, or the name of a column.
        """
        X, y, sample_weight = self._open_scored(X, y, sample_weight)
        y, predicted, weight = to_host(y, self.predict(X), sample_weight)
        if (found := self._places(y)) is not None:
            y, predicted = found, places(predicted, self.classes_)
        return accuracy_score(y, predicted, sample_weight=weight)

    def _places(self, y: DataLike) -> np.ndarray | None:
        """Where labels of another kind than the classes' stand among them, -1 where they do not: a
        CSV file may write them otherwise.
        """
        y = np.asarray(to_host(y)[0])
        same = (
            y.ndim != 1 or y.dtype.kind == "O" or of_array(y) == of_array(self.classes_) != "date"
        )
        return None if same else places(y, self.classes_)

    def decision_function(self, X: DataLike) -> np.ndarray | Tensor:
        """Logarithms of the probabilities, up to a constant for each row, (r, classes); for two
        classes (r,), the log-odds of the second. With thresholds, `decision_bias_` is added:
        `predict` gives the class of the largest. `model_(X)` gives the values f(X) that they are
        made of.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        values = self._decisions(self._values(X))
        if len(self.classes_) <= 2:
            values = values[:, 0]
        return values if isinstance(X, Tensor) else values.cpu().numpy()

    def _decisions(self, values: Tensor) -> Tensor:
        """(r, classes) logarithms of probabilities, but for a constant of each row, and thresholds;
        (r, 1) of two classes.
        """
        sums = self._sums(values)
        if len(self.classes_) == 2:
            sums = sums[:, 1:] - sums[:, :1]
        return sums

    def _units(self, values: Tensor) -> Tensor:
        """Shares of classes are of one unit: a rare class counts little."""
        return torch.ones_like(values[0])

    def _explain(self, features: Tensor) -> Tensor:
        parts = super()._explain(features)
        values = self.model_(features)
        with torch.enable_grad():
            decisions = self._decisions(values.requires_grad_())
            explained = []
            for decision in decisions.unbind(1):
                (slope,) = torch.autograd.grad(decision.sum(), values, retain_graph=True)
                explained.append(torch.einsum("rkc,rc->rk", parts, slope.to(parts)))
        return torch.stack(explained, 2)

    def decided(self, probabilities: np.ndarray) -> np.ndarray:
        """Places in `classes_` that these probabilities decide for: the likeliest, or by the
        thresholds that `scoring` chose.

        Parameters
        ----------
        probabilities : array of shape (rows, classes)
            What `predict_proba` gave.
        """
        with np.errstate(divide="ignore"):
            return (np.log(probabilities) + self.decision_bias_).argmax(1)

    def predict(self, X: DataLike) -> np.ndarray | Tensor:
        """The likeliest labels, or where `scoring` chose thresholds, those that they decide for. A
        tensor where X is one and the labels are numbers.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        codes = self._sums(self._values(X)).argmax(1).cpu().numpy()
        labels = self.classes_[codes]
        return (
            torch.from_numpy(labels)
            if isinstance(X, Tensor) and labels.dtype.kind in "iufb"
            else labels
        )

    def predict_proba(self, X: DataLike) -> np.ndarray | Tensor:
        """Calibrated probabilities, (r, classes), in the order of `classes_`.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        probabilities = torch.softmax(self._logits(X), 1)
        return probabilities if isinstance(X, Tensor) else probabilities.cpu().numpy()

    def predict_set(self, X: DataLike, coverage: float = 0.9) -> np.ndarray | Tensor:
        """(r, classes) which classes each row may be of: its true class is among them with the
        probability asked for, for new rows like those of the training, on average over them,
        however good the model. The likeliest class is always there.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        coverage : float
            The share of rows whose true class is in their set.
        """
        check_coverage(coverage)
        probabilities = torch.softmax(self._logits(X), 1)
        if len(self.classes_) == 1:
            found = torch.ones_like(probabilities, dtype=torch.bool)
        elif self.sets_ is None:
            raise InputError(
                "this model has no prediction sets: no rows were kept out of its training; fit it"
                " again with validation_fraction=0.1."
            )
        else:
            found = self.sets_.holds(probabilities, coverage)
        return found if isinstance(X, Tensor) else found.cpu().numpy()

    def predict_log_proba(self, X: DataLike) -> np.ndarray | Tensor:
        """Logarithms of `predict_proba`.

        Parameters
        ----------
        X : array, tensor or table
            Rows, as `fit` takes them; further columns of a table are ignored.
        """
        logs = torch.log_softmax(self._logits(X), 1)
        return logs if isinstance(X, Tensor) else logs.cpu().numpy()


def _encode_labels(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted labels, and for each row the number of its own.

    Whole numbers of a small range are counted: sorting millions is slow.
    """
    if (
        y.dtype.kind in "iu"
        and len(y)
        and abs(int(y.min())) < 2**62
        and int(y.max()) - int(y.min()) < 1_000_000
    ):
        place = y.astype(np.int64) - int(y.min())
        present = np.bincount(place) > 0
        return (np.flatnonzero(present) + int(y.min())).astype(y.dtype), (np.cumsum(present) - 1)[
            place
        ]
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    return classes, codes.reshape(-1).astype(np.int64)


def warn_of_rare(classes: np.ndarray, counts: Tensor) -> None:
    """Warn of a class with too few rows to calibrate by."""
    few = torch.nonzero((counts > 0) & (counts < FEWEST_OF_CLASS))[:, 0]
    if len(classes) < 2 or not len(few):
        return
    k = int(few[counts[few].argmin()])
    rows = "1 row" if counts[k] == 1 else f"{int(counts[k])} rows"
    others = (
        "" if len(few) == 1 else f", one of {len(few)} classes with fewer than {FEWEST_OF_CLASS}"
    )
    warn(
        f"class {str(classes[k])!r} has {rows}{others}, which is too few"
        f" to tell how likely it is; give at least {FEWEST_OF_CLASS} rows of each class."
    )


def confusion(values: Tensor, codes: Tensor, c: int) -> np.ndarray | None:
    """(c, c) how often each class, in rows, was taken for which; None where there are too many."""
    if c > MOST_CONFUSED:
        return None
    return torch.bincount(codes * c + values.argmax(1), minlength=c * c).view(c, c).numpy()
