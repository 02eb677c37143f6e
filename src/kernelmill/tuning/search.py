"""Bandwidth, feature scale, kernel and ridge, chosen on a subsample by leave-one-out error.

On r rows the leave-one-out residuals of kernel ridge have a closed form, [K_λ⁻¹y]_i / [K_λ⁻¹]_ii:
every row validates, and one factor of an r×r matrix tells all. Bandwidths (one per feature where
there are few) and the ridge follow its gradient.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from ..kernels import Features, Kernel, Laplacian, Radial, Sum, resolve
from ..projection import NotPositiveDefinite, factor
from ..ridge import solve_ridge
from .descent import FACTORS, NARROWEST, RIDGES, WIDEST, Reach, minimise
from .loo import LeaveOneOut, loo_error, loo_residuals
from .sample import CHECK_ROWS, FINAL_ROWS, FIRST_ROWS, Sample, scale_of

log = logging.getLogger("kernelmill")


# How far, in logarithms, bandwidths may differ without much penalty: few rows must not invent
# irrelevant features. Of classes less: the squared error of their values is mostly noise, which
# bandwidths fit (600 rows of hotel: log loss .51 and .47 with 1.5, .46 and .43 with .5).
SPREAD, OF_CLASSES = 1.5, 0.5

# Of the logarithm of the error: a descent ends where less is gained, but the last ones do not.
ENOUGH = 2e-3

MAX_CENTERS = 2000

MANY_FEATURES = 64  # above this a bandwidth per feature is noise on so few rows: one for all

WIDE = 32  # features of one column, above which they weigh as one

LARGE = 4000  # rows on which the common factor of the bandwidths is chosen

STEP, MOST_STEPS = -math.log(0.6), 7  # between two factors, and how many are tried

MOST_OUTPUTS = 64  # of a descent: a thousand classes are as well told by as many sums of them

CANDIDATES = ["laplacian", "matern", "gaussian"]


@dataclass(frozen=True)
class Choice:
    """A kernel, a ridge, and the squared error that chose them, on rows they were not fitted to."""

    kernel: Kernel
    ridge: float
    error: float
    label: str = ""  # which of several recipes it is
    values: Tensor | None = None  # of the rows that judged it: see Verdict


@dataclass(frozen=True)
class _Found:
    kernel: Kernel
    ridge: float
    theta: Tensor | None  # logarithms of the bandwidths in units of per_feature


@dataclass(frozen=True)
class Pace:
    """How far a descent goes: steps, and factors of the common bandwidth that are scanned
    before them.
    """

    steps: int
    factors: tuple[float, ...] = ()
    enough: float = 0.0  # see ENOUGH


FROM_AFAR = Pace(15, FACTORS)  # from the median distance
FROM_ANOTHER = Pace(10, (0.1, 0.3, 1.0))  # from the bandwidths of another kernel


@dataclass(frozen=True)
class Candidate:
    """A kernel whose bandwidths were descended, and the sample as it sees it.

    `features` are what the sample's rows were made of: they become the kernel's own.
    """

    found: _Found
    per_feature: Tensor | None
    sample: Sample
    features: Features | None
    rows: int  # on which they were

    @property
    def kernel(self) -> Kernel:
        """Of rows as they are."""
        if self.features is None:
            return self.found.kernel
        kernel = copy.copy(self.found.kernel)
        assert isinstance(kernel, Radial)
        kernel.features = self.features
        return kernel

    @property
    def as_found(self) -> _Found:
        return replace(self.found, kernel=self.kernel)


def tune(kernel: Kernel | None, ridge: float | None, sample: Sample) -> Choice:
    """The kernel with its bandwidth chosen, and the ridge unless it is given.

    A kernel with a bandwidth already set keeps it; None tries several. The cost does not depend on
    the size of the data. Bandwidths descend on the leave-one-out error of a few rows, then are
    compared in the regime of the real run: all rows centers, or p centers for n rows in the same
    proportion. The best ridge of the one is far too large for the other.
    """
    names: list[Kernel | str] = list(CANDIDATES) if kernel is None else [kernel]
    candidates = [each for name in names for each in descend(name, ridge, sample, FIRST_ROWS)]
    choices = [_compare(each.as_found, ridge, sample) for each in candidates]
    last = candidates[min(range(len(choices)), key=lambda i: choices[i].error)]
    if last.per_feature is not None and len(sample.X) > FIRST_ROWS:
        choices.append(_compare(refine(last, ridge, FINAL_ROWS).as_found, ridge, sample))
        log.info("tuning: refined on %d rows: error %.4g", FINAL_ROWS, choices[-1].error)
    return min(choices, key=lambda choice: choice.error)


def descend(
    kernel: Kernel | str,
    ridge: float | None,
    sample: Sample,
    rows: int,
    features: Features | None = None,
    near: Candidate | None = None,
) -> list[Candidate]:
    """The kernel, from each place that its bandwidths may start from: `near` those of another
    kernel on the same rows, where one is given.
    """
    start = resolve(kernel)
    free = isinstance(start, Radial) and isinstance(start.bandwidth, str)
    if free and isinstance(start, Radial) and start.features is not None:
        features = start.features  # bandwidths are of these
        features.validate(sample.X.shape[1])
        start = replace(start, features=None)
        groups = features.column if features.map is None else torch.arange(len(features))
        sample = replace(sample, X=features.apply(sample.X), columns=groups.to(sample.X.device))
    if free and isinstance(start, Radial) and start.bandwidth != "auto":
        start.validate(sample.X.shape[1])  # says what a bandwidth may be
    places: list[Tensor | None] = [None]
    if near is not None:
        places = [near.per_feature]
    elif features is not None:
        places = [sample.X.new_ones(sample.X.shape[1])]
    elif free:
        places = _scales(sample)
    return [
        Candidate(
            _descend(
                copy.deepcopy(start),
                place,
                None if near is None else near.found,
                ridge,
                sample,
                rows,
                FROM_AFAR if near is None else FROM_ANOTHER,
            ),
            place,
            sample,
            features,
            min(rows, len(sample.X)),
        )
        for place in places
    ]


def refine(
    candidate: Candidate, ridge: float | None, rows: int, steps: int = FROM_AFAR.steps
) -> Candidate:
    """Descended once more, on more rows, from the bandwidths that fewer gave."""
    if candidate.per_feature is None:
        return candidate
    last = candidate.found
    found = _descend(
        copy.deepcopy(last.kernel),
        candidate.per_feature,
        last,
        ridge,
        candidate.sample,
        rows,
        Pace(steps),
    )
    return replace(candidate, found=found, rows=min(rows, len(candidate.sample.X)))


def average(
    candidate: Candidate, ridge: float | None, rows: int, parts: int, steps: int
) -> Candidate:
    """With the geometric mean of the bandwidths, and of the ridges, that parts of the sample give,
    each of so many rows at most: what bandwidths owe to the noise of one part the others do not.
    """
    sample = candidate.sample
    if candidate.per_feature is None:
        return candidate
    found = []
    for rows_of_part in _parts(len(sample.X), rows, parts):
        part = sample.some(rows_of_part.to(sample.X.device))
        start = candidate.found
        found.append(
            _descend(
                copy.deepcopy(start.kernel),
                candidate.per_feature,
                start,
                ridge,
                part,
                rows,
                Pace(steps, enough=ENOUGH),
            )
        )
    return replace(candidate, found=_mean(found), rows=len(sample.X))


def _parts(n: int, rows: int, count: int) -> list[Tensor]:
    """Numbers of rows: others in each part, or where that is not possible all but some."""
    order = torch.arange(n)
    if n >= count * rows:
        return [order[k * rows : (k + 1) * rows] for k in range(count)]
    pieces = torch.chunk(order, count)
    others = [torch.cat([*pieces[k + 1 :], *pieces[:k]]) for k in range(len(pieces))]
    return [part[:rows] for part in others]


def _mean(found: list[_Found]) -> _Found:
    """Of the logarithms."""
    kernel = copy.copy(found[0].kernel)
    each_ = [
        torch.as_tensor(each.kernel.bandwidth, dtype=torch.float64).log()  # type: ignore[attr-defined]
        for each in found
    ]
    # One number where all bandwidths of a part are alike.
    mean = torch.stack(torch.broadcast_tensors(*each_)).mean(0).exp()
    kernel.bandwidth = mean.item() if mean.ndim == 0 else mean  # type: ignore[attr-defined]
    ridge = math.exp(sum(math.log(max(each.ridge, 1e-300)) for each in found) / len(found))
    thetas = [each.theta for each in found if each.theta is not None]
    return _Found(kernel, ridge, torch.stack(thetas).mean(0) if thetas else None)


def in_regime(choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The choice with its ridge, unless one is given, and its error in the regime of the real
    run.
    """
    found = _compare(_Found(choice.kernel, choice.ridge, None), ridge, sample)
    return replace(choice, kernel=found.kernel, ridge=found.ridge, error=found.error)


def scale_bandwidth(kernel: Radial, factor: float) -> Radial:
    """The same with all bandwidths times a factor."""
    changed = copy.copy(kernel)
    value = torch.as_tensor(kernel.bandwidth, dtype=torch.float64) * factor
    changed.bandwidth = value.item() if value.ndim == 0 else value
    return changed


def retune(kernel: Kernel, choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The choice with another kernel: its ridge, unless one is given, and its error."""
    same = kernel is choice.kernel
    return choice if same else in_regime(replace(choice, kernel=kernel), ridge, sample)


def rescale(choice: Choice, sample: Sample) -> Kernel:
    """The chosen kernel with all bandwidths times one factor, which LARGE rows choose: for runs
    with more centers than that.

    A gradient on hundreds of rows finds which features matter; how narrow the kernel should be
    shows only where rows are close together (covertype, 30,000 centers: 87.6 % as descended, 90.6 %
    at 0.4 times that).
    """
    kernel = choice.kernel
    held = min(2000, len(sample.X) // 5)
    rows = LARGE
    if not isinstance(kernel, (Radial, Sum)) or len(sample.X) < rows + held:
        return kernel
    X, Y, w = sample.X[:rows], sample.Y[:rows].float(), sample.w[:rows].float()
    V, Y_V, w_V = sample.X[-held:], sample.Y[-held:].float(), sample.w[-held:, None].float()

    def scaled(log_factor: float) -> Kernel:
        factor = math.exp(log_factor)
        if isinstance(kernel, Sum):
            return Sum([scale_bandwidth(part, factor) for part in kernel.parts], kernel.weights)
        return scale_bandwidth(kernel, factor)

    ridges = [1e-3, 1e-1] if choice.ridge < 1e-2 else [1e-2, 1.0]
    K_of, K_V_of = _at_any_bandwidth(kernel, X, X), _at_any_bandwidth(kernel, V, X)

    def error(log_factor: float) -> float:
        factor, errors = math.exp(log_factor), {math.inf: ridges[0]}
        K, K_V = K_of(factor), K_V_of(factor)
        for lam in ridges:
            alpha = solve_ridge(K, lam / w, Y)
            if alpha is not None:
                errors[(w_V * (K_V @ alpha - Y_V) ** 2).sum().item()] = lam
        least = min(errors)
        if least < math.inf:  # the better one at the first place serves the others
            ridges[:] = [errors[least]]
        return least

    first = kernel.parts[0] if isinstance(kernel, Sum) else kernel
    typical = math.log(Reach.of(first.embedding(X.mean(0), torch.float64)(X)).median)
    inside = lambda k: typical + math.log(NARROWEST) <= k * STEP <= typical + math.log(WIDEST)  # noqa: E731
    errors = {k: error(k * STEP) for k in (0, -1) if k == 0 or inside(k)}
    while len(errors) < MOST_STEPS:  # downhill, one step beyond the lowest
        lowest = min(errors, key=errors.__getitem__)
        ahead = [k for k in (lowest - 1, lowest + 1) if k not in errors and inside(k)]
        if not ahead:
            break
        errors[ahead[0]] = error(ahead[0] * STEP)
    places = sorted(errors)
    factor_ = _lowest([k * STEP for k in places], [errors[k] for k in places])
    log.info("tuning: bandwidths times %.2g on %d rows", math.exp(factor_), rows)
    return scaled(factor_)


def _at_any_bandwidth(kernel: Radial | Sum, A: Tensor, B: Tensor) -> Callable[[float], Tensor]:
    """K(A, B) in float32 with all bandwidths times a factor, from distances that are taken once,
    in float64: copies must be at 0.
    """
    together = kernel if isinstance(kernel, Sum) else Sum([kernel])
    parts, shares = together.parts, together.shares
    distances = []
    for part in parts:
        embed = part.embedding(B.mean(0), torch.float64)
        a, b = part.points(embed(A)), part.points(embed(B))
        distances.append(part.sq_dist(a, b).float())

    def at(factor: float) -> Tensor:
        each = zip(parts, shares, distances, strict=True)
        K = [part.profile(sq / factor**2).mul_(share) for part, share, sq in each]
        return reduce(Tensor.add_, K)

    return at


def _lowest(places: list[float], errors: list[float]) -> float:
    """Where the parabola through the lowest error and its neighbours is lowest."""
    i = min(range(len(errors)), key=errors.__getitem__)
    if i in (0, len(errors) - 1):
        return places[i]
    (a, b, c), step = errors[i - 1 : i + 2], places[i] - places[i - 1]
    bend = a - 2 * b + c
    return places[i] + (0.5 * step * (a - c) / bend if bend > 0 and math.isfinite(bend) else 0.0)


def by_spread(sample: Sample, ridge: float) -> Choice:
    """A Laplacian that sees every column by its spread: a start for neighbourhoods, which find what
    bandwidths of far fewer rows hide.
    """
    spread = scale_of(sample.X) * share_scale(sample)
    typical = Reach.of(sample.X[:FINAL_ROWS] / spread).median
    kernel = Laplacian(bandwidth=(spread * typical).cpu())
    return Choice(kernel, ridge, math.inf, "laplacian, each column by its spread")


def _scales(sample: Sample) -> list[Tensor | None]:
    """Where to start from: features as they are, when they are many and alike (pixels,
    embeddings), and each by its own spread.
    """
    X = sample.X
    spread = scale_of(X) * share_scale(sample)
    if _column_count(sample) <= MANY_FEATURES:
        return [spread]
    alike = spread.max() / spread[spread > 0].median() < 100
    return [torch.ones_like(spread), spread] if alike else [spread]


def _column_count(sample: Sample) -> int:
    return sample.X.shape[1] if sample.columns is None else int(sample.columns.max()) + 1


def together(sample: Sample) -> Tensor:
    """(D,) groups for one bandwidth of all features; a WIDE group keeps one of its own."""
    one = torch.zeros(sample.X.shape[1], dtype=torch.long, device=sample.X.device)
    if sample.shares is None or sample.columns is None:
        return one
    apart = torch.where(sample.shares > WIDE, sample.columns + 1, one)
    return torch.unique(apart, return_inverse=True)[1]


def share_scale(sample: Sample) -> Tensor:
    """(D,) what standardised features are divided by, so that those of a WIDE group, such as the
    random code of a name, weigh as one.
    """
    if sample.shares is None:
        return sample.X.new_ones(sample.X.shape[1])
    k = sample.shares.to(sample.X)
    return torch.where(k > WIDE, k, 1.0).sqrt()


def _descend(
    kernel: Kernel,
    per_feature: Tensor | None,
    start: _Found | None,
    ridge: float | None,
    sample: Sample,
    rows: int,
    pace: Pace,
) -> _Found:
    """Quasi-Newton steps on the logarithms of bandwidths and ridge, down the leave-one-out error of
    the first rows.

    Where the run will have fewer centers than rows, a given ridge is for that regime and not for
    this one: it is left free here.
    """
    X, Y, w = sample.X[:rows], fewer_outputs(sample.Y[:rows]), sample.w[:rows]
    given = ridge if sample.ratio >= 1 else None
    log_ridge = X.new_tensor(math.log(max(start.ridge, RIDGES[0]) if start else 1e-2))
    parameters = []
    if given is None:
        parameters.append(log_ridge.requires_grad_())
    base = theta = None
    varying: Tensor | slice = slice(None)
    # One bandwidth for all features of a column, or for all features where columns are many.
    column = torch.arange(X.shape[1]) if sample.columns is None else sample.columns
    column = column.to(X.device)
    count = int(column.max()) + 1
    if count > MANY_FEATURES:
        column, count = torch.zeros_like(column), 1
    K, reach, live = torch.empty(0), Reach(1.0, X.new_ones(1)), column >= 0
    if per_feature is not None:
        base = X / per_feature
        base = base - base.mean(0)
        reach = Reach.of(base)
        median = base.new_full((count,), math.log(reach.median))
        theta = (
            start.theta.clone() if start and start.theta is not None else median
        ).requires_grad_()
        # What never differs must not move the others, not even by rounding.
        live = (base != base[0]).any(0)
        if count > 1:
            varying = torch.unique(column[live])
        parameters.append(theta)
    else:
        K = kernel(X)
    clamp = lambda t: t.clamp(math.log(RIDGES[0]), math.log(RIDGES[1]))  # noqa: E731
    spread = SPREAD if sample.frequencies is None else OF_CLASSES

    def error() -> Tensor:
        lam = clamp(log_ridge).exp() if given is None else X.new_tensor(float(given))
        if base is None or theta is None:
            total = LeaveOneOut.apply(K, Y, lam / w, w)
            return torch.log(total / w.sum() + 1e-300)
        assert isinstance(kernel, Radial)
        x = (base * torch.exp(-reach.bounded(theta[column])))[:, live]
        total = loo_error(x, Y, lam / w, w, kernel)
        moved = theta[varying]
        penalty = ((moved - moved.mean()) ** 2).sum() / (spread**2 * len(X))
        return torch.log(total / w.sum() + 1e-300) + penalty

    if parameters:
        scan = theta if pace.factors else None
        more_will_follow = scan is not None and rows < len(sample.X)
        enough = ENOUGH if more_will_follow else pace.enough
        minimise(error, parameters, scan, pace.steps, pace.factors, enough)
    if per_feature is not None and theta is not None:
        theta = theta.detach()
        bounded = reach.bounded(theta[column])
        theta = theta + (bounded[0] - theta[column[0]])  # all are moved alike
        bandwidth = (per_feature * torch.exp(bounded)).cpu()
        same = bool((bandwidth == bandwidth[0]).all())
        kernel.bandwidth = bandwidth[0].item() if same else bandwidth.clone()  # type: ignore[attr-defined]
    found = clamp(log_ridge.detach()).exp().item() if given is None else given
    return _Found(kernel, float(found), None if theta is None else theta.detach())


def fewer_outputs(Y: Tensor) -> Tensor:
    """Targets in MOST_OUTPUTS random directions, where there are more: sums of squared errors are
    nearly the same there.
    """
    c = Y.shape[1]
    if c <= MOST_OUTPUTS:
        return Y
    signs = torch.randint(2, (c, MOST_OUTPUTS), generator=torch.Generator().manual_seed(0))
    return Y @ ((2 * signs - 1).to(Y) / MOST_OUTPUTS**0.5)


def _compare(found: _Found, ridge: float | None, sample: Sample) -> Choice:
    """The error of this kernel in the regime of the real run, with the best of a few ridges unless
    one is given.
    """
    kernel, start = found.kernel, found.ridge
    X, Y, w = sample.X[:CHECK_ROWS], sample.Y[:CHECK_ROWS], sample.w[:CHECK_ROWS]
    if sample.ratio < 1:
        return _compare_centers(kernel, start, ridge, sample)
    K = kernel(X)
    best = Choice(kernel, start if ridge is None else ridge, math.inf)
    for lam in [start * f for f in (0.1, 0.3, 1.0, 3.0)] if ridge is None else [ridge]:
        try:
            residual = loo_residuals(K, Y, lam / w, rough=True)
        except torch.linalg.LinAlgError:
            continue
        error = ((w[:, None] * residual * residual).sum() / (w.sum() * Y.shape[1])).item()
        if error < best.error:
            best = Choice(kernel, lam, error)
    return best


def _compare_centers(kernel: Kernel, start: float, ridge: float | None, sample: Sample) -> Choice:
    """Least squares in the span of p' of n' rows, p'/n' = p/n, scored on rows after them.

    One eigensystem serves every ridge.
    """
    held = max(1, min(2000, len(sample.X) // 5))
    rows = len(sample.X) - held
    p = max(2, min(MAX_CENTERS, int(sample.ratio * rows)))
    rows = min(rows, max(p, int(p / sample.ratio)))
    X, Y, root = sample.X[:rows], sample.Y[:rows], sample.w[:rows, None].sqrt()
    V, Y_V, w_V = sample.X[-held:], sample.Y[-held:], sample.w[-held:, None]
    best = Choice(kernel, start if ridge is None else ridge, math.inf)
    try:
        L = factor(kernel(X[:p])).L
    except NotPositiveDefinite:
        return best
    whiten = lambda A: torch.linalg.solve_triangular(L, kernel(A, X[:p]).T, upper=False).T  # noqa: E731
    Phi = root * whiten(X)
    values, vectors = torch.linalg.eigh(Phi.T @ Phi)
    right, test = vectors.T @ (Phi.T @ (root * Y)), whiten(V) @ vectors
    for lam in [start * f for f in (1e-6, 1e-4, 1e-2, 0.1, 1.0)] if ridge is None else [ridge]:
        inverse = 1 / (values.clamp(min=0) + lam).clamp(min=1e-12 * values[-1].item())
        error = (w_V * (test @ (inverse[:, None] * right) - Y_V) ** 2).sum() / (
            w_V.sum() * Y.shape[1]
        )
        if error.item() < best.error:
            best = Choice(kernel, lam, error.item())
    return best
