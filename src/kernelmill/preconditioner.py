"""λ, E, F, the preconditioned diagonal k, and the step they allow. Defined once, derived once.

P f = f − K(·, X_s) F Fᵀ f(X_s), with F = E √D, D = (1 − τ/Λ)₊/Λ: the top q eigen-directions of the
subsample are brought down to the level τ of the tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .kernels import Points
from .ops import KernelProduct

# First step in units of 1/B; it falls linearly to 0 over the run (docs/algorithm.md has the
# measurements).
OVERSTEP = 1.5
FRESH_ROWS = 5_000  # rows on which the step is measured; fewer inflate the top eigenvalue
# The largest step, in units of 1/B, once residuals of the last epoch are subtracted.
ANCHORED_STEP = 0.7
# β of a few outliers may be so many times B: rows with k above B have shorter steps of their own.
OUTLYING = 4
# A step of η moves predictions by sums that round to η·√p·ε: so much of a residual at most.
DIGITS = 0.03
# η·λ·epochs that brings every direction that the ridge leaves to its end, within 1 % where larger
# steps would be noise, and within 1e-9 where last residuals are subtracted, which takes the noise.
SHRINKING, ANCHORED_SHRINKING = 12.0, 60.0


@dataclass(frozen=True)
class Preconditioner:
    """F (s, q) and K(X_s,X_s) F in the run's precision, and the eigenvalues λ_1 … λ_{q+1} they came
    from, in float64.
    """

    F: Tensor
    KF: Tensor
    eigenvalues: Tensor
    tau: float

    @property
    def q(self) -> int:
        return self.F.shape[1]


@dataclass(frozen=True)
class Spectrum:
    """What fresh rows say of the preconditioned kernel: its top eigenvalue per row, and its
    diagonal k.
    """

    lambda_top: float
    k: Tensor


# Of the work with half as many directions, what a doubling must come to for another to be tried.
PAYS = 0.85
DENSE_ROWS = 4_000  # up to here all eigenvectors are computed; beyond, only those that are wanted


def top_eigensystem(K_ss: Tensor, q: int) -> tuple[Tensor, Tensor]:
    """The q + 1 largest eigenvalues and q eigenvectors of a symmetric float64 matrix, largest
    first.
    """
    if len(K_ss) > DENSE_ROWS and q + 1 <= len(K_ss) // 8:
        return subspace_iteration(K_ss, q)
    values, vectors = torch.linalg.eigh((K_ss + K_ss.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    return values[: q + 1].clamp(min=0), vectors[:, :q]


def subspace_iteration(K_ss: Tensor, q: int, rounds: int = 12) -> tuple[Tensor, Tensor]:
    """The same by products with a block of 1.25·q vectors: matrix products instead of a full
    decomposition.

    The last few vectors come out as mixtures of true ones. That is harmless: for any orthonormal V
    with VᵀKV = Λ the matrix VΛ⁻¹Vᵀ stays below K⁻¹, so that the preconditioned kernel stays
    positive; what it is worth is then measured on fresh rows, as always.
    """
    generator = torch.Generator(device=K_ss.device).manual_seed(0)
    V = torch.randn(
        len(K_ss),
        min(len(K_ss), q + q // 4 + 8),
        generator=generator,
        dtype=torch.float64,
        device=K_ss.device,
    )
    for _ in range(rounds):
        V = orthonormal(K_ss @ V)
    values, turn = torch.linalg.eigh(V.T @ (K_ss @ V))
    return values.flip(0)[: q + 1].clamp(min=0), V @ turn.flip(1)[:, :q]


def orthonormal(V: Tensor) -> Tensor:
    """An orthonormal basis of the columns, by products: V R⁻¹ with VᵀV = RᵀR, and once more for the
    digits that squaring takes; Householder's way, a launch a column, where it takes them all.
    """
    found = V
    for _ in range(2):
        L, failed = torch.linalg.cholesky_ex(found.T @ found)
        if failed.item():
            return torch.linalg.qr(V).Q
        found = torch.linalg.solve_triangular(L.T, found, upper=True, left=False)
    return found


# Eigenvalues below this share of the first are rounding.
RANK_FLOOR = {torch.float32: 1e-6, torch.float64: 1e-12}
# How far the top is brought down at most, as a share of the first.
TAU_FLOOR = {torch.float32: 1e-5, torch.float64: 1e-8}


def numerical_rank(values: Tensor, dtype: torch.dtype) -> int:
    """How many eigenvalues stand above the rounding of kernel values in `dtype`."""
    return int((values > RANK_FLOOR[dtype] * values[0]).sum())


def precondition(
    K_ss: Tensor, values: Tensor, E: Tensor, tau: float, dtype: torch.dtype
) -> Preconditioner:
    """F for the level τ, from an eigensystem with one eigenvalue more than vectors. q is cut at the
    numerical rank, and τ has a floor: a kernel of low rank would otherwise be preconditioned down
    to its own rounding.
    """
    q = min(E.shape[1], numerical_rank(values, dtype))
    top = values[:q]
    tau = max(tau, TAU_FLOOR[dtype] * values[0].item())
    D = ((1 - tau / top).clamp(min=0)) / top
    F = E[:, :q] * D.sqrt()
    return Preconditioner(F.to(dtype), (K_ss @ F).to(dtype), values, tau)


def diagonal(K: KernelProduct, X: Points, Q: Tensor) -> Tensor:
    """k(x) = K(x,x) − ‖Fᵀ K(X_s,x)‖², with Q = K(X, X_s) F: how far one unit of step moves a row's
    own prediction.

    Floored: rounding can pass zero.
    """
    k = K.diagonal(X)
    explained = torch.linalg.vector_norm(Q, dim=1, dtype=k.dtype)
    return torch.maximum(
        torch.addcmul(k, explained, explained, value=-1), 1e2 * torch.finfo(k.dtype).eps * k
    )


def fresh_spectrum(
    K: KernelProduct, F: Tensor, X_s: Points, X: Points, w: Tensor, generator: torch.Generator
) -> Spectrum:
    """λ_top and k of √w (K − KF(KF)ᵀ) √w on rows X.

    The subsample's own tail is 2 to 8 times too small to trust.
    """
    root = w.sqrt()[:, None]
    K_XX, K_Xs = K.dense(X, X), K.dense(X, X_s)
    Q = K_Xs @ F
    v = torch.randn(len(X), 1, generator=generator, dtype=K.dtype).to(K.device)
    top = torch.zeros((), dtype=K.dtype, device=K.device)
    for _ in range(30):  # 5 iterations give 0.7 to 0.9 of the value
        u = root * v
        u = root * (K_XX @ u - Q @ (Q.T @ u))
        top = u.norm() / v.norm()
        v = u / u.norm().clamp(min=torch.finfo(K.dtype).tiny)
    k = diagonal(K, X, Q)
    return Spectrum(max(top.item() / len(X), torch.finfo(K.dtype).tiny), w * k)


@dataclass(frozen=True)
class Step:
    """Batch m and first step η, with the numbers they came from."""

    m: int
    eta: float
    B: float
    beta: float


def largest_step(
    p: int, diagonal: float, dtype: torch.dtype, ridge: float, epochs: int, anchored: bool
) -> float:
    """The largest step that p centers whose largest K(z,z) is `diagonal` have digits for, and that
    a ridge asks for.
    """
    by_digits = DIGITS / (torch.finfo(dtype).eps * p**0.5 * diagonal)
    if not ridge:
        return by_digits
    return min(by_digits, (ANCHORED_SHRINKING if anchored else SHRINKING) / (ridge * epochs))


def measured_step(
    spectrum: Spectrum,
    beta: float,
    largest: int,
    m: int | None = None,
    overstep: float = OVERSTEP,
    most: float = math.inf,
) -> Step:
    """η = overstep/B, `most` at most, with B = max(mean k, β/OUTLYING), and the largest batch for
    which that is still stable, m = B/λ_top.

    Rows with k above B are held back one by one (`row_steps`), so that one outlier does not slow
    all others.
    """
    B = max(spectrum.k.mean().item(), beta / OUTLYING, overstep / most)
    if m is None:
        m = max(1, min(largest, int(B / spectrum.lambda_top)))
    return Step(m, overstep / max(B, m * spectrum.lambda_top), B, beta)


def printed_step(beta: float, tail: float, s: int, largest: int, m: int | None = None) -> Step:
    """The paper's recipe: critical batch m* = β·s/λ_{q+1}; η = 1/β below it, 2/(β + (m−1)λ_{q+1}/s)
    from there on.
    """
    critical = beta * s / tail if tail > 0 else math.inf
    if m is None:
        m = int(max(1, min(largest, critical)))
    return Step(m, 1 / beta if m < critical else 2 / (beta + (m - 1) * tail / s), beta, beta)


def row_steps(eta: float, k: Tensor, limit: float) -> Tensor:
    """The step of each row: η, but at most limit/k."""
    return (limit / k).clamp(max=eta)


def build(
    K: KernelProduct,
    X_s: Points,
    q: int,
    fresh: tuple[Points, Tensor],
    generator: torch.Generator,
    level: float = 0.0,
    most: int = 0,
    row: float = 0.0,
) -> tuple[Preconditioner, Spectrum]:
    """The preconditioner of a subsample and what fresh rows say of it.

    `fresh`: rows of the data and their weights.

    `level`: the ridge as an eigenvalue of the subsample. Of K + λ no direction is below λ: brought
    down further than that, the top ones would be the slowest (a wide Gaussian, λ = 0.14: after 5
    epochs 3 % of the spread of the solution instead of 92 %).

    `most`: q is doubled up to this, as long as it pays; `row` is what a step costs per row without
    the preconditioner, which adds s·q.
    """
    K_ss, s = K.dense64(X_s, X_s), len(X_s)
    X, w = fresh
    dense = most > q > 0 and s <= DENSE_ROWS
    values, E = top_eigensystem(K_ss, most if dense else q)
    work = lambda q: work_of(K, X_s, q, fresh, values, E, level, row)  # noqa: E731
    if dense:  # a doubling that does not pay may stand before others that do
        doublings = range(int(math.log2(most / q)) + 1)
        q <<= min(doublings, key=lambda k: work(q << k) / PAYS**k)
    while not dense and 0 < 2 * q <= most and work(q) < PAYS * work(q // 2):
        q *= 2
        values, E = top_eigensystem(K_ss, q)
    values, E = values[: q + 1], E[:, :q]
    pre = precondition(K_ss, values, E, max(level, values[-1].item()), K.dtype)
    spectrum = fresh_spectrum(K, pre.F, X_s, X, w, generator)
    # Directions that the subsample claims to know better than fresh rows confirm are left partly in
    # the tail; without this a large q makes the preconditioned kernel smaller than its own noise,
    # and training stalls silently.
    confirmed = s * spectrum.lambda_top / 4
    if confirmed > pre.tau:
        pre = precondition(K_ss, values, E, confirmed, K.dtype)
        spectrum = fresh_spectrum(K, pre.F, X_s, X, w, generator)
    return pre, spectrum


def work_of(
    K: KernelProduct,
    X_s: Points,
    q: int,
    fresh: tuple[Points, Tensor],
    values: Tensor,
    E: Tensor,
    level: float,
    row: float,
) -> float:
    """The work to a given error with q directions: the cost of a row, times the mean k of fresh
    rows, to which the number of steps is proportional.
    """
    X, w = fresh
    Q = K.dense(X, X_s) @ E[:, :q].to(K.dtype)
    explained = (w @ Q.square() / len(X)).double()  # (q,) times the eigenvalue
    whole = (w * K.diagonal(X)).mean().double()
    top, tau = values[:q], max(level, values[min(q, len(values) - 1)].item())
    share = (1 - tau / top.clamp(min=torch.finfo(torch.float64).tiny)).clamp(min=0) / top
    k = (whole - explained @ share.nan_to_num(0.0, 0.0)).clamp(min=0)
    return (row + len(X_s) * q) * k.item()
