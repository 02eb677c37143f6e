"""Intervals and sets that hold the share of new rows they promise, whatever the model: conformal
prediction.

Of rows that a model did not learn from, residuals over a spread s(x) tell how large that of a new
row will be: it lies between any two of them as often as between any two others. So the interval
f(x) + s(x)·[low, high], low and high the right ones among m residuals, holds a new target with the
probability asked for, on average over new rows like these, without an assumption about noise or
model (Vovk; Lei et al., 2018). A spread that follows the noise makes intervals narrow where that
is small; a poor one costs width, not coverage.

The spread is learned from the same residuals, each left out of its own: log|r| by ridge over the
predicted value, the distance to what was learned (of some centers, in the kernel's own space), and
where the row lies among these centers. Of classes, what counts is the probability of the true one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import InputError
from .kernels import Points
from .model import KernelModel
from .ops import KernelProduct

CENTERS = 128  # that the spread looks at
KNOTS = 8  # of the predicted value
FEWEST = 20  # residuals from which anything is told; from ten times as many, a spread is learned
SMALL = 0.1  # of the median |r|, what logarithms are softened by
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # log|r| of normal noise has variance 1.2
GAIN = 0.005  # of the logarithm of the spread, what more terms must be worth
LARGEST = 700.0  # logarithm of a spread
WIDEST = 20.0  # the most that spreads differ from their median, by a factor


class Left(NamedTuple):
    """What was said of rows by a model that had not seen them: features (m, d), values and targets
    (m, c), weights (m,); `how` they were left out, and how much less such a model says of other
    rows than the one that has seen all, (m, c).
    """

    X: Tensor
    values: Tensor
    targets: Tensor
    w: Tensor
    how: str
    less: Tensor | float = 0.0


@dataclass(frozen=True)
class Intervals:
    """Residuals over their spread, (m, c) in order of the rows, their weights (m,), and the spread.

    Of each output the spread is exp(base + (terms − middle) @ slopes), the terms those of
    `Terms`: (k, c) slopes are 0 where the spread is the same everywhere.
    """

    scores: np.ndarray
    w: np.ndarray
    centers: np.ndarray  # (s, d) rows that distances are taken from
    knots: np.ndarray  # (KNOTS, c) of predicted values
    middle: np.ndarray  # (k, c)
    slopes: np.ndarray
    base: np.ndarray  # (c,)
    how: str

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> Intervals:
        """Of a stored model, checked: whatever is there may have been tampered with."""
        found = cls(**values)
        if found.scores.ndim != 2 or found.centers.ndim != 2 or not len(found.scores):
            raise ValueError("intervals are of another shape")
        (m, c), k = found.scores.shape, KNOTS + len(found.centers)
        shapes = {
            "w": (m,),
            "knots": (KNOTS, c),
            "middle": (k, c),
            "slopes": (k, c),
            "base": (c,),
        }
        wrong = [name for name, shape in shapes.items() if getattr(found, name).shape != shape]
        arrays = [value for name, value in values.items() if name != "how"]
        fine = all(part.dtype.kind == "f" and np.isfinite(part).all() for part in arrays)
        if wrong or not fine or not (found.w > 0).all() or np.abs(found.base).max() > LARGEST:
            raise ValueError(f"intervals do not fit each other: {wrong}")
        return found

    def spread(self, model: KernelModel, X: Tensor, values: Tensor) -> Tensor:
        """(r, c) of rows with these predicted values."""
        base = torch.from_numpy(self.base).to(values)
        if not self.slopes.any():
            return base.exp().expand(len(X), -1)
        terms = Terms(model, torch.from_numpy(self.centers))
        seen = terms.of_rows(X)
        logs = []
        for j in range(len(self.base)):
            all_terms = terms.with_values(seen, values[:, j], torch.from_numpy(self.knots[:, j]))
            middle, slopes = (
                torch.from_numpy(part[:, j]).to(all_terms) for part in (self.middle, self.slopes)
            )
            logs.append((all_terms - middle) @ slopes)
        limit = float(np.log(WIDEST))
        return (base + torch.stack(logs, 1).clamp(-limit, limit).to(values)).exp()

    def limits(self, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """(c,) between which the score of a new row lies with this probability, as often below as
        above.
        """
        tail = (1 - check_coverage(coverage)) / 2
        columns = self.scores.T
        low = [-quantile(-column, self.w, 1 - tail) for column in columns]
        high = [quantile(column, self.w, 1 - tail) for column in columns]
        if not np.isfinite([*low, *high]).all():
            raise too_few(coverage, self.w, 2)
        return np.array(low), np.array(high)

    @property
    def deviation(self) -> np.ndarray:
        """(c,) root mean square of the scores."""
        return np.sqrt(np.average(self.scores**2, axis=0, weights=self.w))


def check_coverage(coverage: float) -> float:
    """A share of rows between 0 and 1, or the error that says so."""
    try:
        share = float(coverage)
    except (TypeError, ValueError):
        share = np.nan
    if isinstance(coverage, bool) or not 0 < share < 1:
        raise InputError(
            f"coverage={coverage!r} was given, expected a share of rows between 0 and 1, such as"
            " 0.9."
        )
    return share


def too_few(coverage: float, w: np.ndarray, tails: int) -> InputError:
    needed = int(np.ceil(tails / (1 - coverage)))
    return InputError(
        f"coverage={coverage:g} was asked for, which takes about {needed:,} rows that the model did"
        f" not learn from, and there are {np.count_nonzero(w):,}; ask for less, or fit with a"
        " larger validation_fraction."
    )


def quantile(scores: np.ndarray, w: np.ndarray, share: float) -> float:
    """The least score with so much of the weight at or below it, where a new row, of mean weight,
    counts as above all: infinite where they are too few.
    """
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(w[order])
    there = w > 0
    needed = share * (below[-1] + w[there].mean()) * (1 - 1e-12)
    place = int(np.searchsorted(below, needed))
    return float(scores[order][place]) if place < len(scores) else np.inf


# ---- the spread


class Terms:
    """What a spread depends on: hat functions of the predicted value, the distance of a row to some
    centers in the kernel's space, and its place among them.
    """

    def __init__(self, model: KernelModel, centers: Tensor):
        self._model = model
        self._K, _ = model.prepared()
        self._points = self._K.points(centers.to(model.Z))
        self._L = _factor(self._dense(self._points))

    def _dense(self, A: Points) -> Tensor:
        """(s, r) K of the centers and these, as of rows of length 1."""
        K: KernelProduct = self._K
        sizes = [K.diagonal(side).double().clamp(min=1e-300).sqrt() for side in (self._points, A)]
        return K.dense(self._points, A).double() / sizes[0][:, None] / sizes[1]

    def of_rows(self, X: Tensor) -> Tensor:
        """(r, 1 + s) the logarithm of the distance, and coordinates."""
        found = []
        for part in X.split(16_384):
            k = self._dense(self._K.points(self._model.as_learned(part)))
            place = torch.linalg.solve_triangular(self._L, k, upper=False).T
            left = (1 - (place * place).sum(1)).clamp(min=1e-6)
            found.append(torch.cat([left.log()[:, None] / 2, place], 1))
        return torch.cat(found) if found else torch.empty(0, 1 + len(self._L)).to(self._L)

    def with_values(self, seen: Tensor, values: Tensor, knots: Tensor) -> Tensor:
        """(r, k) terms of rows with these predicted values, of one output."""
        f, knots = values.to(seen), knots.to(seen)
        widths = (knots[1:] - knots[:-1]).clamp(min=torch.finfo(seen.dtype).tiny)
        hats = ((f[:, None] - knots[:-1]) / widths).clamp(0, 1)
        return torch.cat([hats, seen], 1)


def _factor(A: Tensor) -> Tensor:
    """Of K of the centers, which rounding or copies may have spoiled: a rough one serves."""
    for more in (1e-6, 1e-4, 1e-2, 1.0):
        L, info = torch.linalg.cholesky_ex(A + more * len(A) * torch.eye(len(A)).to(A))
        if not info.item():
            break
    return L


def fit_conformal(model: KernelModel, left: Left, scale: Tensor) -> Intervals | None:
    """Of rows that were left out; None where they are too few to say anything. `scale` (c,) is the
    deviation of the targets.
    """
    counted = left.w > 0
    # New rows are predicted by the model of all rows, and not by one without row i: what that adds
    # to predictions on average belongs to the limits (to the first order, jackknife+). Without it,
    # a row of the most frequent target would be predicted a little too far from it, always.
    X, values, targets, w = (
        part[counted.to(part.device)].detach().cpu()
        for part in (left.X, left.values + left.less, left.targets, left.w)
    )
    if len(w) < FEWEST or not bool(torch.isfinite(values).all()):
        return None
    centers = model.some_centers(CENTERS)
    terms = Terms(model, centers)
    seen = terms.of_rows(X).cpu()
    outputs = []
    for j in range(values.shape[1]):
        r = (targets[:, j].double() - values[:, j].double()) / scale[j].double().cpu()
        knots = torch.quantile(values[:, j].double(), torch.linspace(0, 1, KNOTS).double())
        outputs.append((knots, *_fit_spread(terms.with_values(seen, values[:, j], knots), r, w)))
    knots, middle, slopes, base, spread = (
        torch.stack(parts, 1) if parts[0].ndim else torch.stack(parts)
        for parts in zip(*outputs, strict=True)
    )
    base = base + scale.double().cpu().log()
    scores = (targets.double() - values.double()) / (scale.double().cpu() * spread)
    return Intervals(
        scores.numpy(),
        w.double().numpy(),
        centers.cpu().numpy(),
        knots.numpy(),
        middle.numpy(),
        slopes.numpy(),
        base.numpy(),
        left.how,
    )


def _fit_spread(terms: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """What the spread of residuals is made of: middle, slopes, base; and the spread of each row,
    learned without it.

    The fewest terms under which the residuals are likely: none, those of one number each, all.
    """
    size, w = r.abs(), w / w.mean()  # whatever the unit of weights
    typical = size.median().clamp(min=1e-300)
    base, ones = typical.log(), torch.ones_like(r)
    middle = (w[:, None] * terms).sum(0) / w.sum()
    none = torch.zeros(terms.shape[1], dtype=terms.dtype)
    best = _cost(r, ones * typical, w), none, base, ones * typical
    if len(r) < 10 * FEWEST or float(size.max()) == 0.0:
        return middle, none, base, ones * typical
    t = (size + SMALL * typical).log()
    mean = (w * t).sum() / w.sum()
    limit = float(np.log(WIDEST))
    for count in (KNOTS, terms.shape[1]):  # hats and the distance; then all
        P = terms[:, :count] - middle[:count]
        G = P.T @ (w[:, None] * P)
        found = []
        for ridge in RIDGES:
            # G + ridge·I is well conditioned: K of the centers is, and hats lie between 0 and 1.
            A = torch.linalg.solve(G + ridge * torch.eye(count).to(G), P.T * w)
            slopes = A @ (t - mean)
            lever = (P * A.T).sum(1) + w / w.sum()
            without = t - (t - mean - P @ slopes) / (1 - lever).clamp(min=1e-3)
            spread = (base + (without - mean).clamp(-limit, limit)).exp()
            whole = torch.cat([slopes, none[count:]])
            found.append((_cost(r, spread, w), whole, base, spread))
        likeliest = min(found, key=lambda one: one[0])
        best = likeliest if likeliest[0] < best[0] - GAIN else best
    return middle, *best[1:]


def _cost(r: Tensor, spread: Tensor, w: Tensor) -> float:
    """How unlikely residuals are under a two-sided exponential distribution of this spread, up to
    a factor that all have in common: less than the width of intervals it depends on chance.
    """
    share = w / w.sum()
    return float((share * spread.log()).sum() + (share * r.abs() / spread).sum().log())


# ---- classes


@dataclass(frozen=True)
class Sets:
    """Of rows that a classifier did not learn from: one less the probability of their true class,
    and their weights.
    """

    scores: np.ndarray
    w: np.ndarray
    how: str

    @classmethod
    def of(
        cls, probabilities: Tensor, targets: Tensor, w: Tensor, how: str, counts_as: Tensor
    ) -> Sets | None:
        """targets: (m, c) shares of the classes; a merged row counts for each class it has.
        `counts_as` (c,) is what a row of each class counts, where classes were given weights: a
        preference, and not how often they come.
        """
        rows, codes = torch.nonzero((targets > 0) & (w > 0)[:, None], as_tuple=True)
        if len(rows) < FEWEST:
            return None
        scores = 1 - probabilities[rows, codes]
        counts = (w[:, None] * targets)[rows, codes] / counts_as.to(w)[codes]
        return cls(scores.double().numpy(), counts.double().numpy(), how)

    @classmethod
    def from_dict(cls, values: dict) -> Sets:
        found = cls(**values)
        fine = np.isfinite(found.scores).all() and np.isfinite(found.w).all()
        fine = fine and found.scores.ndim == 1 and len(found.scores) and (found.w > 0).all()
        if not fine or found.scores.shape != found.w.shape:
            raise ValueError("scores of prediction sets do not fit each other")
        return found

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def holds(self, probabilities: Tensor, coverage: float) -> Tensor:
        """(r, c) the classes of each row's set; the likeliest always is in it."""
        limit = quantile(self.scores, self.w, check_coverage(coverage))
        if not np.isfinite(limit):
            raise too_few(coverage, self.w, 1)
        found = 1 - probabilities.double() <= limit + 1e-12
        likeliest = probabilities.argmax(1, keepdim=True)
        return found.scatter_(1, likeliest, True)
