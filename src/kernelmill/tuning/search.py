"""Bandwidth, feature scale, kernel and ridge, chosen on a subsample by leave-one-out error.

On r rows the leave-one-out residuals of kernel ridge have a closed form, [K_λ⁻¹y]_i / [K_λ⁻¹]_ii:
every row validates, and one factor of an r×r matrix tells all. Bandwidths (one per feature where
there are few) and the ridge follow its gradient.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import Kernel, Radial, resolve
from ..projection import NotPositiveDefinite, factor
from .descent import NARROWEST, RIDGES, WIDEST, Reach, minimise
from .loo import LeaveOneOut, Profile, loo_residuals
from .sample import CHECK_ROWS, FINAL_ROWS, FIRST_ROWS, Sample, scale_of

log = logging.getLogger("kernelmill")


# How far, in logarithms, bandwidths may differ without much penalty: few rows must not invent
# irrelevant features.
SPREAD = 1.5

MAX_CENTERS = 2000

MANY_FEATURES = 64  # above this a bandwidth per feature is noise on so few rows: one for all

LARGE = 4000  # rows on which the common factor of the bandwidths is chosen

STEP, MOST_STEPS = -math.log(0.6), 7  # between two factors, and how many are tried

CANDIDATES = ["laplacian", "matern", "gaussian"]


@dataclass(frozen=True)
class Choice:
    """A kernel, a ridge, and the squared error that chose them, on rows they were not fitted to."""

    kernel: Kernel
    ridge: float
    error: float


def tune(kernel: Kernel | None, ridge: float | None, sample: Sample) -> Choice:
    """The kernel with its bandwidth chosen, and the ridge unless it is given.

    A kernel with a bandwidth already set keeps it; None tries several kernels. The cost does not
    depend on the size of the data. Candidates descend on the leave-one-out error of a few rows,
    then are compared in the regime of the real run: all rows centers, or p centers for n rows in
    the same proportion. The best ridge of the one is far too large for the other.
    """
    candidates: list[Kernel | str] = list(CANDIDATES) if kernel is None else [kernel]
    choices, starts = [], []
    for candidate in candidates:
        start = resolve(candidate)
        free = isinstance(start, Radial) and isinstance(start.bandwidth, str)
        if (
            isinstance(start, Radial)
            and isinstance(start.bandwidth, str)
            and start.bandwidth != "auto"
        ):
            start.validate(sample.X.shape[1])  # says what a bandwidth may be
        for per_feature in _scales(sample.X) if free else [None]:
            found = _descend(copy.deepcopy(start), per_feature, None, ridge, sample, FIRST_ROWS)
            choices.append(_compare(found, ridge, sample))
            starts.append((per_feature, found))
            log.info(
                "tuning: %s, ridge %.2g: error %.4g",
                type(found.kernel).__name__,
                choices[-1].ridge,
                choices[-1].error,
            )
    best = min(range(len(choices)), key=lambda i: choices[i].error)
    per_feature, found = starts[best]
    if per_feature is not None and len(sample.X) > FIRST_ROWS:
        refined = _descend(
            copy.deepcopy(found.kernel), per_feature, found, ridge, sample, FINAL_ROWS
        )
        choices.append(_compare(refined, ridge, sample))
        log.info("tuning: refined on %d rows: error %.4g", FINAL_ROWS, choices[-1].error)
    return min(choices, key=lambda choice: choice.error)


def retune(kernel: Kernel, choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The choice with another kernel: its ridge, unless one is given, and its error."""
    return (
        choice
        if kernel is choice.kernel
        else _compare(_Found(kernel, choice.ridge, None), ridge, sample)
    )


def rescale(choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The chosen kernel with all bandwidths times one factor, which LARGE rows choose: for runs
    with more centers than that.

    A gradient on hundreds of rows finds which features matter; how narrow the kernel should be
    shows only where rows are close together (covertype, 30,000 centers: 87.6 % as descended, 90.6 %
    at 0.4 times that).
    """
    kernel = choice.kernel
    held = min(2000, len(sample.X) // 5)
    rows = LARGE
    if not isinstance(kernel, Radial) or len(sample.X) < rows + held:
        return choice
    X, Y, w = sample.X[:rows], sample.Y[:rows], sample.w[:rows]
    V, Y_V, w_V = sample.X[-held:], sample.Y[-held:], sample.w[-held:, None]
    bandwidth = torch.as_tensor(kernel.bandwidth, dtype=torch.float64)

    def scaled(log_factor: float) -> Radial:
        changed, value = copy.deepcopy(kernel), bandwidth * math.exp(log_factor)
        changed.bandwidth = value.item() if value.ndim == 0 else value
        return changed

    def error(log_factor: float) -> float:
        found = scaled(log_factor)
        K, K_V, least = found(X), found(V, X), math.inf
        for lam in (1e-3, 1e-1) if choice.ridge < 1e-2 else (1e-2, 1.0):
            L, info = torch.linalg.cholesky_ex(K + torch.diag(lam / w))
            if not info.item():
                least = min(
                    least, (w_V * (K_V @ torch.cholesky_solve(Y, L) - Y_V) ** 2).sum().item()
                )
        return least

    typical = math.log(Reach.of(kernel.embedding(X.mean(0), torch.float64)(X)).median)
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
    return retune(scaled(factor_), choice, ridge, sample)


def _lowest(places: list[float], errors: list[float]) -> float:
    """Where the parabola through the lowest error and its neighbours is lowest."""
    i = min(range(len(errors)), key=errors.__getitem__)
    if i in (0, len(errors) - 1):
        return places[i]
    (a, b, c), step = errors[i - 1 : i + 2], places[i] - places[i - 1]
    bend = a - 2 * b + c
    return places[i] + (0.5 * step * (a - c) / bend if bend > 0 and math.isfinite(bend) else 0.0)


def _scales(X: Tensor) -> list[Tensor | None]:
    """Where to start from: features as they are, when they are many and alike (pixels, embeddings),
    and each by its own spread.
    """
    spread = scale_of(X)
    if X.shape[1] <= MANY_FEATURES:
        return [spread]
    alike = spread.max() / spread[spread > 0].median() < 100
    return [torch.ones_like(spread), spread] if alike else [spread]


@dataclass(frozen=True)
class _Found:
    kernel: Kernel
    ridge: float
    theta: Tensor | None  # logarithms of the bandwidths in units of per_feature


def _descend(
    kernel: Kernel,
    per_feature: Tensor | None,
    start: _Found | None,
    ridge: float | None,
    sample: Sample,
    rows: int,
) -> _Found:
    """Quasi-Newton steps on the logarithms of bandwidths and ridge, down the leave-one-out error of
    the first rows.

    Where the run will have fewer centers than rows, a given ridge is for that regime and not for
    this one: it is left free here.
    """
    X, Y, w = sample.X[:rows], sample.Y[:rows], sample.w[:rows]
    given = ridge if sample.ratio >= 1 else None
    log_ridge = X.new_tensor(math.log(max(start.ridge, RIDGES[0]) if start else 1e-2))
    parameters = []
    if given is None:
        parameters.append(log_ridge.requires_grad_())
    base = theta = None
    varying: Tensor | slice = slice(None)
    K, reach = torch.empty(0), Reach(1.0, X.new_ones(1))
    if per_feature is not None:
        base = X / per_feature
        base = base - base.mean(0)
        reach = Reach.of(base)
        size = base.shape[1] if base.shape[1] <= MANY_FEATURES else 1
        median = base.new_full((size,), math.log(reach.median))
        theta = (
            start.theta.clone() if start and start.theta is not None else median
        ).requires_grad_()
        # A bandwidth that nothing depends on must not move the others.
        varying = (base != base[0]).any(0) if size > 1 else slice(None)
        parameters.append(theta)
    else:
        K = kernel(X)
    clamp = lambda t: t.clamp(math.log(RIDGES[0]), math.log(RIDGES[1]))  # noqa: E731

    def error() -> Tensor:
        lam = clamp(log_ridge).exp() if given is None else X.new_tensor(float(given))
        gram, penalty = K, X.new_zeros(())
        if base is not None and theta is not None:
            x = base * torch.exp(-reach.bounded(theta))
            sq = (x * x).sum(1)
            assert isinstance(kernel, Radial)
            gram = Profile.apply(
                (sq[:, None] + sq - 2 * x @ x.T).clamp(min=0).fill_diagonal_(0), kernel
            )
            moved = theta[varying]
            penalty = ((moved - moved.mean()) ** 2).sum() / (SPREAD**2 * len(X))
        total = LeaveOneOut.apply(gram, Y, lam / w, w)
        return torch.log(total / w.sum() + 1e-300) + penalty

    if parameters:
        minimise(error, parameters, theta if start is None else None)
    if per_feature is not None and theta is not None:
        theta = reach.bounded(theta.detach())
        bandwidth = (per_feature * torch.exp(theta)).expand(X.shape[1]).cpu()
        same = bool((bandwidth == bandwidth[0]).all())
        kernel.bandwidth = bandwidth[0].item() if same else bandwidth.clone()  # type: ignore[attr-defined]
    found = clamp(log_ridge.detach()).exp().item() if given is None else given
    return _Found(kernel, float(found), None if theta is None else theta.detach())


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
            residual = loo_residuals(K, Y, lam / w)
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
