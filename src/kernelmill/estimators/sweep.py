"""sweep: a grid of one bandwidth × ridge in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from .. import centers as ways
from ..distributed.team import Alone
from ..errors import InputError
from ..kernels import Laplacian, Radial
from ..learning.request import Request, resolve_kernel
from ..learning.rows import Data, Held, Rows, read
from ..ops import in_own_modes
from ..planning.plan import Plan
from ..scoring import ERRORS, score
from ..solvers import loss_of
from ..tuning.grid import Grid, Sizes, median_distance, sizes_for, try_grid
from ..types import DataLike
from .classifier import KernelClassifier
from .regressor import KernelRegressor

HELD_SHARE, MOST_HELD = 0.2, 5000  # of the rows, where validation_fraction does not say
MEDIANS = np.geomspace(0.2, 5, 7)  # of the distance of two rows
RIDGES = np.geomspace(1e-4, 10, 6)  # of rows with a mean weight of 1
# Scores that count rows, and the standard errors by which two of them are as good as equal.
COUNTED, NEAR = ("accuracy", "balanced_accuracy", "f1"), 0.25


@dataclass(frozen=True, eq=False)
class Sweep:
    """What `sweep` found; prints as a table.

    Parameters
    ----------
    bandwidths, ridges : list of float
        What was tried.
    scores : array of shape (bandwidths, ridges)
        Of the rows kept out; greater is better, so that errors are negative.
    score : str
        The name of the score: the estimator's `scoring`, or accuracy, or r2.
    rows : int
        Rows that were kept out.
    sizes : dict
        Rows and centers of each model that was tried, and the bytes they took together.
    best : dict
        The bandwidth and the ridge of the best score. Of shares of rows, such as accuracies, that
        differ by less than a quarter of a standard error, the one with the largest ridge is best.
    estimator : KernelClassifier or KernelRegressor
        The one that was given, with these set; not fitted.
    """

    bandwidths: list[float]
    ridges: list[float]
    scores: np.ndarray
    score: str
    rows: int
    sizes: dict[str, int]
    best: dict[str, float]
    estimator: KernelClassifier | KernelRegressor

    def __str__(self) -> str:
        sign = -1 if self.score in ERRORS else 1
        lines = [["bandwidth", *(f"{ridge:.3g}" for ridge in self.ridges)]]
        for bandwidth, row in zip(self.bandwidths, self.scores, strict=True):
            cells = [f"{sign * value:.4g}" for value in row]
            for j, ridge in enumerate(self.ridges):
                best = (bandwidth, ridge) == (self.best["bandwidth"], self.best["ridge"])
                cells[j] += "*" if best else " "
            lines.append([f"{bandwidth:.4g}", *cells])
        lines[0][1:] = [f"{text} " for text in lines[0][1:]]
        widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
        table = [
            "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        said = f"{self.score} of {rows} kept out, by bandwidth and ridge; * is best"
        return "\n".join([said, *table])


@in_own_modes()
def sweep(
    estimator: KernelClassifier | KernelRegressor,
    X: DataLike,
    y: DataLike = None,
    *,
    bandwidths: Sequence[float] | None = None,
    ridges: Sequence[float] | None = None,
    sample_weight: DataLike = None,
) -> Sweep:
    """Try every pair of a bandwidth and a ridge on rows that are kept out, in one call.

    All of them share the distances of rows and centers, and all ridges of a bandwidth its kernel
    values. A large problem is tried on a share of its rows, with as large a share of its centers.
    The ridge that is found is used for all rows as it is: λ stands for how noisy the targets are,
    which is the same however many rows there are.

    Parameters
    ----------
    estimator : KernelClassifier or KernelRegressor
        Its kernel must be radial; "auto" is taken for "laplacian". n_centers, centers ("balanced",
        or your own; other ways are taken for "uniform"), class_weight, scoring, columns,
        validation_fraction, device, memory_budget and random_state are heeded.
    X : array, tensor or table
        Rows, as `fit` takes them.
    y : array or str
        Their targets, or the name of their column.
    bandwidths : sequence of float, optional
        None: seven, from a fifth of the median distance of rows to five times that.
    ridges : sequence of float, optional
        None: 1e-4 to 10 in steps of ten, times the mean weight of rows.
    sample_weight : array or str, optional
        A weight for each row, or the name of a column.
    """
    kernel = _check(estimator)
    given = [_numbers("bandwidths", bandwidths, 0.0), _numbers("ridges", ridges, None)]
    rows, held, request, name = _read(estimator, X, y, sample_weight)
    data = read(rows, request, Alone())
    kernel.validate(data.source.d)
    tried = _grid(kernel, data, *given)
    grid = Grid(tried[0], [ridge / data.weight for ridge in tried[1]])
    scores, sizes = _scores(kernel, data, held, request, grid, name)
    i, j = _best(scores, name, len(held.y))
    best = {"bandwidth": tried[0][i], "ridge": tried[1][j]}
    found = clone(estimator).set_params(
        kernel=replace(kernel, bandwidth=best["bandwidth"]), ridge=best["ridge"]
    )
    told = {"rows": sizes.rows, "centers": sizes.centers, "bytes": sizes.bytes}
    return Sweep(*tried, scores, name, len(held.y), told, best, found)


def _check(estimator: object) -> Radial:
    """The kernel, of bandwidth 1; refuses what has none, and other losses than the square."""
    if not isinstance(estimator, (KernelClassifier, KernelRegressor)):
        raise InputError(
            f"estimator={estimator!r} was given, expected a KernelClassifier or KernelRegressor;"
            " rows that a pipeline transforms can be transformed first."
        )
    if isinstance(estimator.solver, Plan):
        raise InputError("solver is a plan, which has its own ridge; sweep with solver='auto'.")
    loss = loss_of(estimator.solver)
    if loss.name != "square":
        raise InputError(
            f"solver={estimator.solver!r} has the {loss.name} loss, and sweep tries models of the"
            " square loss; use GridSearchCV, or solver='auto'."
        )
    kernel = resolve_kernel(estimator.kernel) or Laplacian()
    if not isinstance(kernel, Radial):
        raise InputError(
            f"kernel={estimator.kernel!r} was given, expected one with a bandwidth, such as"
            " 'laplacian', or 'auto'; others can be compared by GridSearchCV."
        )
    if getattr(kernel.bandwidth, "ndim", 0) or isinstance(kernel.bandwidth, (list, tuple)):
        raise InputError(
            "the kernel has a bandwidth for each feature, and sweep tries one number for all of"
            " them; divide the columns by theirs, and give the kernel's name."
        )
    return replace(kernel, bandwidth=1.0)


def _numbers(name: str, given: Sequence[float] | None, above: float | None) -> list[float] | None:
    """Finite numbers in rising order, each once, and above 0 where 0 is `above`, as their squares
    are; else 0 or more."""
    if given is None:
        return None
    try:
        found = [] if isinstance(given, (str, bytes)) else sorted({float(value) for value in given})
    except (TypeError, ValueError, OverflowError):
        found = []
    # Of bandwidths the squares are divided by.
    bounds = [value if above is None else value * value for value in found]
    least = bounds[0] if bounds else -1.0
    if not np.isfinite(bounds).all() or least < 0 or (above is not None and least == 0):
        bound = "of 0 or more" if above is None else "above 0 whose squares are so too"
        raise InputError(f"{name}={given!r} was given, expected finite numbers {bound}, or None.")
    return found


def _read(
    estimator: KernelClassifier | KernelRegressor, X: DataLike, y: DataLike, sample_weight: DataLike
) -> tuple[Rows, Held, Request, str]:
    """Rows as `fit` reads them, those kept out, the settings, and the name of the score."""
    reader = clone(estimator).set_params(
        kernel="laplacian",
        ridge=None,
        checkpoint=None,
        resume=False,
        callbacks=None,
        warm_start=False,
        early_stopping=False,
        ranks=1,
        verbose=0,
    )
    opened = reader._open(X, y, sample_weight, Alone())
    if not reader.validation_fraction:
        reader.validation_fraction = min(HELD_SHARE, MOST_HELD / max(1, len(opened.X)))
    rows = reader._read(opened, None)
    if rows.held is None:
        raise InputError(
            f"{_rows(len(opened.X))} given, of which none can be kept out to choose by; give more,"
            " or set bandwidth and ridge yourself."
        )
    held, name = rows.held, reader.score_name
    # A guess has no r2 either where targets do not differ.
    if name == "r2" and not np.isfinite(score(name, held.y.cpu() + 1, held.y.cpu(), held.w.cpu())):
        raise InputError(
            f"{_rows(len(held.y))} kept out to choose by, whose targets do not differ, and there is"
            " no r2 of them; give more rows, set validation_fraction higher, or scoring."
        )
    return rows, rows.held, reader._request(rows.X, reader.device), reader.score_name


def _grid(
    kernel: Radial, data: Data, bandwidths: list[float] | None, ridges: list[float] | None
) -> tuple[list[float], list[float]]:
    """What is tried: as given, or around what is usual of these rows; to three digits."""
    if bandwidths is None:
        median = median_distance(kernel, data.source.some(500).X)
        bandwidths = [float(f"{value:.3g}") for value in median * MEDIANS]
    if ridges is None:
        ridges = [float(f"{value:.3g}") for value in data.weight * RIDGES]
    return bandwidths, ridges


def _scores(
    kernel: Radial, data: Data, held: Held, request: Request, grid: Grid, name: str
) -> tuple[np.ndarray, Sizes]:
    """(bandwidths, ridges) of the rows kept out, and how large the models were."""
    source, device = data.source, data.source.device
    own = request.centers_given(source.d, data.rows.X.dtype, data.rows.bounds)
    p = request.n_centers or source.n if own is None else len(own)
    # Own centers are no rows, however many there are.
    rows_of = max(source.n, p + 1) if own is not None else source.n
    machine = (device, data.budget // 2)
    sizes = sizes_for(rows_of, p, grid, len(held.y), source.c, machine)
    sizes = replace(sizes, rows=min(sizes.rows, source.n))
    generator = torch.Generator().manual_seed(request.seed)
    rows = torch.randperm(source.n, generator=generator)[: sizes.rows].sort().values
    units = data.rows.units
    mean, scale = units.mean.cpu().double(), units.scale.cpu().double()

    def judge(values: Tensor) -> float:
        return data.rows.score_held(name, values.cpu().double() * scale + mean)

    Z = None if sizes.every_row else _centers(data, own, request, sizes.centers, generator)
    scores = try_grid(kernel, source, rows, Z, held.X, grid, judge)
    return scores.numpy(), sizes


def _centers(
    data: Data, own: Tensor | None, request: Request, p: int, generator: torch.Generator
) -> Tensor:
    """(p, d) of the user's own, or of the rows."""
    if own is not None:
        return own[torch.randperm(len(own), generator=generator)[:p].sort().values]
    how = "balanced" if request.centers == "balanced" else "uniform"
    chosen = ways.choose(how, None, data.source, data.codes, p, generator)
    return data.source.take(chosen.sort().values).X


def _rows(n: int) -> str:
    return "1 row was" if n == 1 else f"{n:,} rows were"


def _best(scores: np.ndarray, name: str, rows: int) -> tuple[int, int]:
    """Of the scores that chance does not tell from the highest the largest ridge, of these the
    highest, of equal ones the narrowest bandwidth.

    Wide kernels with small ridges form a plain on which a few rows decide; of it the narrow end is
    quicker to solve for, and more rows want a narrower kernel.
    """
    if not np.isfinite(scores).any():
        raise InputError(
            "no model of the grid could be solved; try larger ridges, or other bandwidths."
        )
    highest = scores[np.isfinite(scores)].max()
    chance = (highest * (1 - highest) / rows) ** 0.5 if name in COUNTED else 0.0
    places = np.argwhere(scores >= highest - NEAR * chance)
    i, j = max(map(tuple, places), key=lambda at: (at[1], scores[at], -at[0]))
    return int(i), int(j)
