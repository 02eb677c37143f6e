"""Bandwidth, feature scale, kernel and ridge, chosen on a subsample by leave-one-out error.

On r rows the leave-one-out residuals of kernel ridge have a closed form, [K_λ⁻¹y]_i / [K_λ⁻¹]_ii: every row validates, and one
factor of an r×r matrix tells all. Bandwidths (one per feature where there are few) and the ridge follow its gradient.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .kernels import Kernel, Radial, resolve
from .projection import NotPositiveDefinite, factor

log = logging.getLogger("kernelmill")

FIRST_ROWS, FINAL_ROWS = 500, 1000  # rows the gradient sees, for every candidate and for the best one: a step costs about r³
SPREAD = 1.5  # how far, in logarithms, bandwidths may differ without much penalty: few rows must not invent irrelevant features
CHECK_ROWS = 2500  # rows on which finalists are compared when every row is a center
SAMPLE_ROWS = 12_000  # rows on which they are compared when not
MAX_CENTERS = 2000
MANY_FEATURES = 64  # above this a bandwidth per feature is noise on so few rows: one for all
LARGE = 4000  # rows on which the common factor of the bandwidths is chosen
STEP, MOST_STEPS = -math.log(0.6), 7  # between two factors, and how many are tried
ELBO_ROWS = 4000  # rows on which the bound of a Gaussian process is descended
CANDIDATES = ["laplacian", "matern", "gaussian"]
RIDGES = (1e-10, 1e3)
RARE, FEW = 0.1, 50  # the share of the sample that each class gets, and rows of a class too small to count for it
NARROWEST, WIDEST = 0.01, 20.0  # median distances a bandwidth may be: wider is the same model of a smaller ridge, with fewer digits


@dataclass(frozen=True)
class Choice:
    """A kernel, a ridge, and the squared error that chose them, on rows they were not fitted to."""

    kernel: Kernel
    ridge: float
    error: float


class Profile(torch.autograd.Function):
    """A radial profile with its slope by a central difference: exact to about ten digits for any profile, smooth or not."""

    @staticmethod
    def forward(ctx, sq_dist: Tensor, kernel: Radial) -> Tensor:
        step = 1e-5
        up, down = kernel.profile(sq_dist * (1 + step)), kernel.profile(sq_dist * (1 - step))
        ctx.save_for_backward(torch.where(sq_dist > 0, (up - down) / (2 * step * sq_dist.clamp(min=1e-300)), 0.0))
        return kernel.profile(sq_dist.clone())

    @staticmethod
    def backward(ctx, grad: Tensor):
        (slope,) = ctx.saved_tensors
        return grad * slope, None


def loo_residuals(K: Tensor, Y: Tensor, ridge: Tensor) -> Tensor:
    """Leave-one-out residuals y_i − f_{−i}(x_i) of kernel ridge; `ridge` (r,) is λ/w of each row. Leading axes are batches."""
    size = K.detach().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    L = torch.linalg.cholesky(K + torch.diag_embed(ridge + 1e-10 * K.shape[-1] * size))
    inverse = torch.cholesky_inverse(L)
    return (inverse @ Y) / inverse.diagonal(dim1=-2, dim2=-1)[..., None]


def scale_of(X: Tensor) -> Tensor:
    """A typical spread of each feature; 1 for a constant one, so that nothing is divided by zero."""
    spread = X.std(0, correction=0)
    tiny = 1e-12 * X.abs().amax(0).clamp(min=1e-300)
    return torch.where(spread > tiny, spread, torch.ones_like(spread))


def draw(n: int, codes: Tensor | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers of the rows to tune on, in random order, and how many rows each stands for, 1 on average.

    A rare class is drawn more often than it occurs, and weighs less for it: among 500 rows of which one in a hundred is of it, five would
    decide everything.
    """
    order = torch.randperm(n, generator=generator)
    counts = torch.zeros(1) if codes is None else torch.bincount(codes.cpu()).double()
    there = counts > 0
    wanted = min(RARE, 0.5 / max(1, int(there.sum())))
    if codes is None or not bool((counts[there] < wanted * n).any()):
        rows = order[:SAMPLE_ROWS]
        return rows, torch.ones(len(rows), dtype=torch.float64)
    share = torch.where(there, (counts / n).clamp(min=wanted), 0.0)
    share = share / share.sum()
    enough = counts >= FEW  # of a class with fewer rows all are taken, and it does not decide how many of the others
    most = (counts[enough] / share[enough]).min().item() if bool(enough.any()) else n
    size = min(n, max(FINAL_ROWS, min(SAMPLE_ROWS, most)))
    take = torch.minimum(counts, (share * size).ceil())
    sorted_codes, places = torch.sort(codes.cpu()[order], stable=True)
    rank = torch.arange(n) - (counts.cumsum(0) - counts).long()[sorted_codes]
    chosen = places[rank < take[sorted_codes]]
    rows = order[chosen[torch.randperm(len(chosen), generator=generator)]]
    weight = (counts / take.clamp(min=1))[codes.cpu()[rows]]
    return rows, weight / weight.mean()


@dataclass(frozen=True)
class Sample:
    """Rows to tune on, float64, in random order: the first ones are fitted, later ones validate. `ratio` is p/n of the real run.

    A Gaussian process also asks how many targets a row stands for: `weight` is the mean weight, by which w was divided, and `scatter` (c,)
    what their mean lost of Σ w y², for a row of w = 1.
    """

    X: Tensor
    Y: Tensor
    w: Tensor
    ratio: float
    weight: float = 1.0
    scatter: Tensor | None = None


def tune(kernel: Kernel | str, ridge: float | None, sample: Sample) -> Choice:
    """The kernel with its bandwidth chosen, and the ridge unless it is given.

    A kernel with a bandwidth already set keeps it; "auto" tries several kernels. The cost does not depend on the size of the data.
    Candidates descend on the leave-one-out error of a few rows, then are compared in the regime of the real run: all rows centers,
    or p centers for n rows in the same proportion. The best ridge of the one is far too large for the other.
    """
    names: list[Kernel | str] = list(CANDIDATES) if isinstance(kernel, str) and kernel == "auto" else [kernel]
    choices, starts = [], []
    for candidate in names:
        start = resolve(candidate)
        free = isinstance(start, Radial) and isinstance(start.bandwidth, str)
        if isinstance(start, Radial) and isinstance(start.bandwidth, str) and start.bandwidth != "auto":
            start.validate(sample.X.shape[1])  # says what a bandwidth may be
        for per_feature in _scales(sample.X) if free else [None]:
            found = _descend(copy.deepcopy(start), per_feature, None, ridge, sample, FIRST_ROWS)
            choices.append(_compare(found, ridge, sample))
            starts.append((per_feature, found))
            log.info("tuning: %s, ridge %.2g: error %.4g", type(found.kernel).__name__, choices[-1].ridge, choices[-1].error)
    best = min(range(len(choices)), key=lambda i: choices[i].error)
    per_feature, found = starts[best]
    if per_feature is not None and len(sample.X) > FIRST_ROWS:
        refined = _descend(copy.deepcopy(found.kernel), per_feature, found, ridge, sample, FINAL_ROWS)
        choices.append(_compare(refined, ridge, sample))
        log.info("tuning: refined on %d rows: error %.4g", FINAL_ROWS, choices[-1].error)
    return min(choices, key=lambda choice: choice.error)


def again(kernel: Kernel, choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The choice with another kernel: its ridge, unless one is given, and its error."""
    return choice if kernel is choice.kernel else _compare(_Found(kernel, choice.ridge, None), ridge, sample)


def rescaled(choice: Choice, ridge: float | None, sample: Sample) -> Choice:
    """The chosen kernel with all bandwidths times one factor, which LARGE rows choose: for runs with more centers than that.

    A gradient on hundreds of rows finds which features matter; how narrow the kernel should be shows only where rows are close together
    (covertype, 30,000 centers: 87.6 % as descended, 90.6 % at 0.4 times that).
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
                least = min(least, (w_V * (K_V @ torch.cholesky_solve(Y, L) - Y_V) ** 2).sum().item())
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
    return again(scaled(factor_), choice, ridge, sample)


def _lowest(places: list[float], errors: list[float]) -> float:
    """Where the parabola through the lowest error and its neighbours is lowest."""
    i = min(range(len(errors)), key=errors.__getitem__)
    if i in (0, len(errors) - 1):
        return places[i]
    (a, b, c), step = errors[i - 1 : i + 2], places[i] - places[i - 1]
    bend = a - 2 * b + c
    return places[i] + (0.5 * step * (a - c) / bend if bend > 0 and math.isfinite(bend) else 0.0)


def tune_elbo(kernel: Kernel | str, ridge: float | None, noise: Tensor | None, sample: Sample, p: int, Z: Tensor | None) -> Choice:
    """The bandwidth and the ridge that maximise Titsias' bound for p inducing points: Z, or the first rows of the sample.

    Starts from the leave-one-out choice, which also picks the kernel where it is "auto". ELBO_ROWS rows stand for all.
    """
    start = tune(kernel, ridge, sample)
    given = kernel if not isinstance(kernel, str) else resolve(kernel) if kernel != "auto" else None
    free = isinstance(start.kernel, Radial) and (given is None or (isinstance(given, Radial) and isinstance(given.bandwidth, str)))
    if not free and ridge is not None:
        return start
    X, Y, w = sample.X[:ELBO_ROWS], sample.Y[:ELBO_ROWS], sample.w[:ELBO_ROWS]
    Z = sample.X[: min(p, MAX_CENTERS // 2)] if Z is None else Z
    found = copy.deepcopy(start.kernel)
    log_ridge = X.new_tensor(math.log(max(start.ridge, 1e-6) if ridge is None else ridge))
    parameters = [log_ridge.requires_grad_()] if ridge is None else []
    base = torch.as_tensor(found.bandwidth, dtype=torch.float64, device=X.device) if free else None  # type: ignore[attr-defined]
    theta, middle = X.new_zeros(() if base is None else base.shape), X.mean(0)
    reach = None if base is None else Reach.of(X / base)
    if free:
        parameters.append(theta.requires_grad_())

    def bandwidths() -> Tensor:
        assert base is not None and reach is not None
        return base * torch.exp(reach.bounded(theta))

    def matrix(A: Tensor, B: Tensor) -> Tensor:
        if base is None or not isinstance(found, Radial):
            return found(A, B)
        a, b = ((side - middle) / bandwidths() for side in (A, B))
        squares = ((a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T).clamp(min=0)
        return Profile.apply(squares.fill_diagonal_(0) if A is B else squares, found)

    diagonal = found.diagonal(found.points(found.embedding(X.mean(0), torch.float64)(X)))

    def loss() -> Tensor:
        lam = log_ridge.clamp(math.log(RIDGES[0]), math.log(RIDGES[1])).exp()
        return -elbo(matrix(Z, Z), matrix(X, Z), diagonal, Y, w, lam, noise, sample.weight, sample.scatter) / len(X)

    minimise(loss, parameters, None, steps=40)
    if free and base is not None:
        value = bandwidths().detach().cpu()
        found.bandwidth = value.item() if value.ndim == 0 else value  # type: ignore[attr-defined]
    best = min(RIDGES[1], max(RIDGES[0], log_ridge.detach().exp().item()))
    return Choice(found, best if ridge is None else ridge, start.error)


def elbo(
    K_ZZ: Tensor,
    K_XZ: Tensor,
    diagonal: Tensor,
    Y: Tensor,
    w: Tensor,
    lam: Tensor,
    noise: Tensor | float | None = None,
    weight: float = 1.0,
    scatter: Tensor | None = None,
) -> Tensor:
    """Titsias' bound, summed over outputs, with the likeliest signal variance, or with noise/λ where the noise is given.

    A row of weight k is k targets with one and the same noise, whether or not they are equal: their mean is Y, and what it lost of Σ w y²
    is `scatter`. λ is `lam` · `weight`, w being divided by that weight.
    """
    p = K_XZ.shape[1]
    L = torch.linalg.cholesky(K_ZZ + torch.diag(K_ZZ.new_full((p,), 1e-10 * p)))
    Phi = torch.linalg.solve_triangular(L, K_XZ.T, upper=False).T
    root = w.sqrt()[:, None]
    B = (root * Phi).T @ (root * Phi) / lam + torch.eye(p, dtype=Phi.dtype, device=Phi.device)
    R = torch.linalg.cholesky(B)
    right = torch.linalg.solve_triangular(R, (root * Phi).T @ (root * Y), upper=False) / lam
    squares = (w[:, None] * Y * Y).sum(0) + (0.0 if scatter is None else w.sum() * scatter)
    quadratic = squares / lam - (right * right).sum(0)  # yᵀ(Q + λ/w)⁻¹y of each output
    count, true = w.sum() * weight, lam * weight
    signal = quadratic / count if noise is None else torch.as_tensor(noise).to(quadratic) / true
    trace = (w * (diagonal - (Phi * Phi).sum(1))).sum() / lam
    return -0.5 * (count * (2 * math.pi * true * signal).log() + 2 * R.diagonal().log().sum() + quadratic / signal + trace).sum()


def _scales(X: Tensor) -> list[Tensor | None]:
    """Where to start from: features as they are, when they are many and alike (pixels, embeddings), and each by its own spread."""
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


def _descend(kernel: Kernel, per_feature: Tensor | None, start: _Found | None, ridge: float | None, sample: Sample, rows: int) -> _Found:
    """Quasi-Newton steps on the logarithms of bandwidths and ridge, down the leave-one-out error of the first rows.

    Where the run will have fewer centers than rows, a given ridge is for that regime and not for this one: it is left free here.
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
        theta = (start.theta.clone() if start and start.theta is not None else median).requires_grad_()
        varying = (base != base[0]).any(0) if size > 1 else slice(None)  # a bandwidth that nothing depends on must not move the others
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
            gram = Profile.apply((sq[:, None] + sq - 2 * x @ x.T).clamp(min=0).fill_diagonal_(0), kernel)
            moved = theta[varying]
            penalty = ((moved - moved.mean()) ** 2).sum() / (SPREAD**2 * len(X))
        residual = loo_residuals(gram, Y, lam / w)
        return torch.log((w[:, None] * residual * residual).sum() / w.sum() + 1e-300) + penalty

    if parameters:
        minimise(error, parameters, theta if start is None else None)
    if per_feature is not None and theta is not None:
        theta = reach.bounded(theta.detach())
        bandwidth = (per_feature * torch.exp(theta)).expand(X.shape[1]).cpu()
        same = bool((bandwidth == bandwidth[0]).all())
        kernel.bandwidth = bandwidth[0].item() if same else bandwidth.clone()  # type: ignore[attr-defined]
    found = clamp(log_ridge.detach()).exp().item() if given is None else given
    return _Found(kernel, float(found), None if theta is None else theta.detach())


@dataclass(frozen=True)
class Reach:
    """How far rows are from each other, and so how wide a kernel may be.

    Far above all distances K ≈ 1 − (r/b)^γ: b then moves nothing that the ridge does not, but the digits of K are those of (r/b)^γ, and
    few of them are left in float32. Far below, every row is alone. A feature of its own may be as wide as it likes: it is left out.
    """

    median: float  # distance between two rows
    squares: Tensor  # (d,) what each feature adds to the squared distance of a typical pair

    @classmethod
    def of(cls, rows: Tensor) -> Reach:
        distance = torch.pdist(rows[:500])
        distance = distance[distance > 0]
        median = distance.median().item() if len(distance) else 1.0
        squares = rows.var(0, correction=0)
        return cls(median, squares * (median**2 / squares.sum().clamp(min=1e-300)))

    def bounded(self, theta: Tensor) -> Tensor:
        """Logarithms of bandwidths, moved together to where the typical pair is within the bounds."""
        distance = 0.5 * torch.log((self.squares * torch.exp(-2 * theta)).sum().clamp(min=1e-300))
        return theta - (distance.clamp(-math.log(WIDEST), -math.log(NARROWEST)) - distance)


def minimise(error: Callable[[], Tensor], parameters: list[Tensor], scan: Tensor | None, steps: int = 15) -> None:
    """A coarse scan of the common bandwidth where asked for, then L-BFGS. Never ends above the best point it has seen."""
    best, least = [p.detach().clone() for p in parameters], math.inf

    def note(value: float) -> None:
        nonlocal best, least
        if value < least:
            best, least = [p.detach().clone() for p in parameters], value

    def restore() -> None:
        with torch.no_grad():
            for p, value in zip(parameters, best, strict=True):
                p.copy_(value)

    if scan is not None:
        start = scan.detach().clone()
        with torch.no_grad():
            for factor_ in (0.3, 1.0, 3.0, 10.0):
                scan.copy_(start + math.log(factor_))
                note(value_of(error))
        restore()
    optimizer = torch.optim.LBFGS(parameters, max_iter=steps, max_eval=2 * steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        try:
            value = error()
            value.backward()
        except torch.linalg.LinAlgError:
            return torch.tensor(1e10, dtype=torch.float64)
        note(value.item())
        return value

    optimizer.step(closure)
    restore()


def value_of(error: Callable[[], Tensor]) -> float:
    try:
        value = error().item()
    except torch.linalg.LinAlgError:
        return math.inf
    return value if math.isfinite(value) else math.inf


def _compare(found: _Found, ridge: float | None, sample: Sample) -> Choice:
    """The error of this kernel in the regime of the real run, with the best of a few ridges unless one is given."""
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
    """Least squares in the span of p' of n' rows, p'/n' = p/n, scored on rows after them. One eigensystem serves every ridge."""
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
        error = (w_V * (test @ (inverse[:, None] * right) - Y_V) ** 2).sum() / (w_V.sum() * Y.shape[1])
        if error.item() < best.error:
            best = Choice(kernel, lam, error.item())
    return best
