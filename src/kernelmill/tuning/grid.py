"""A grid of one common bandwidth × ridge, tried at once on rows that are kept out.

Squared distances of rows and centers are taken once and serve every bandwidth. Where every row is
a center, (K + λ/w) α = y. Otherwise, with K(Z,Z) = L Lᵀ, the features Φ = K(X,Z) L⁻ᵀ are summed
into ΦᵀwΦ and Φᵀwy, chunk by chunk and once for every bandwidth; a ridge is then one factor of
ΦᵀwΦ + λ: six of 3,000 rows take 1.2 s on two cores, one eigendecomposition 3.6 s in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Points, Radial
from ..projection import NotPositiveDefinite, factor, factor_in_place, inverted
from ..ridge import by_factor, solve_ridge
from .descent import Reach

# Operations of a whole grid, at most: 11 to 17 s on two busy cores; of a GPU not measured.
ON_CPU, ON_GPU = 2.5e11, 4e13
LEAST_CENTERS = 1000  # that centers are not cut below: rows are
MOST_ROWS = 200_000
CHUNK = 4096  # rows whose distances are held at a time
# Of a row or center, what the others before it leave of K(z,z): from here on float32 has digits
# enough.
SINGLE = 0.01
BLOCK = 512  # columns of a Gram matrix that are multiplied at a time

Judge = Callable[[Tensor], float]  # of the values of the rows kept out, in the solver's units


@dataclass(frozen=True)
class Grid:
    """What is tried: bandwidths, and ridges over the mean weight of a row."""

    bandwidths: Sequence[float]
    ridges: Sequence[float]


@dataclass(frozen=True)
class Sizes:
    """Rows and centers of each model of the grid, and the bytes that are held at most."""

    rows: int
    centers: int
    every_row: bool
    bytes: int


def sizes_for(n: int, p: int, grid: Grid, held: int, outputs: int, machine: tuple) -> Sizes:
    """Of n rows and p centers as many as the grid may take, in about their proportion: the best
    ridge of a model with few centers is far too small where each row is one, and the other way
    round. `machine`: (device, bytes that may be used).
    """
    device, budget = machine
    work = ON_GPU if device.type == "cuda" else ON_CPU
    b, r = len(grid.bandwidths), len(grid.ridges)
    beside = 8 * (held + CHUNK) * outputs
    if p >= n:
        bytes_of = lambda m: 8 * m * (4 * m + 2 * held) + beside  # noqa: E731
        m = _most(n, lambda m: b * r * m**3 / 3 <= work and bytes_of(m) <= budget)
        return Sizes(m, m, True, bytes_of(m))

    def bytes_for(p: int) -> int:
        return 8 * p * (2 * b * p + 2 * p + 4 * min(n, CHUNK) + 2 * held + b * outputs) + beside

    def operations(rows: int, p: int) -> float:
        return b * (2.5 * rows * p**2 + (r + 1) * p**3 / 3)

    cut = (work / operations(n, p)) ** (1 / 3)  # of rows and of centers alike
    p = min(p, max(LEAST_CENTERS, int(cut * p)))
    p = _most(p, lambda p: bytes_for(p) <= budget)
    rows = _most(min(n, MOST_ROWS), lambda rows: operations(rows, p) <= work)
    rows = min(n, max(rows, 2 * p))
    return Sizes(rows, p, False, bytes_for(p))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to a limit that fits; 1 where none does."""
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def median_distance(kernel: Radial, X: Tensor) -> float:
    """Of two rows, as the kernel sees them with a bandwidth of 1."""
    unit = replace(kernel, bandwidth=1.0)
    return Reach.of(unit.embedding(X.double().mean(0), torch.float64)(X)).median


@dataclass(frozen=True)
class Distances:
    """Squared distances in float64, since those of near rows lose their digits first, and K of any
    bandwidth from them.
    """

    kernel: Radial  # of bandwidth 1
    origin: Tensor

    def points(self, X: Tensor) -> Points:
        X = X.to(self.origin.device)
        return self.kernel.points(self.kernel.embedding(self.origin, torch.float64)(X))

    def between(self, A: Points, B: Points) -> Tensor:
        return self.kernel.sq_dist(A, B)

    def values(self, sq_dist: Tensor, bandwidth: float, dtype: torch.dtype) -> Tensor:
        return self.kernel.profile(sq_dist.to(dtype) / bandwidth**2)


def try_grid(
    kernel: Radial,
    source: Source,
    rows: Tensor,
    Z: Tensor | None,
    X_held: Tensor,
    grid: Grid,
    judge: Judge,
) -> Tensor:
    """(bandwidths, ridges) what the judge says of each model of these rows; -inf where there is
    none. `Z` are the centers; None: every row is one.
    """
    unit, device = replace(kernel, bandwidth=1.0), source.device
    origin = (source.take(rows[:CHUNK]).X if Z is None else Z).to(device).double().mean(0)
    distances = Distances(unit, origin)
    if Z is None:
        return _every_row(distances, source, rows, X_held, grid, judge)
    return _centers(distances, source, rows, Z, X_held, grid, judge)


def _every_row(
    distances: Distances, source: Source, rows: Tensor, X_held: Tensor, grid: Grid, judge: Judge
) -> Tensor:
    """Targets in float32, those of classes, are solved for in float32 where that has digits enough;
    the others in float64, but for factors: see solve_ridge.
    """
    batch, device = source.take(rows), source.device
    X, V = distances.points(batch.X), distances.points(X_held)
    D, D_V = distances.between(X, X), distances.between(V, X)
    Y, w = batch.Y.to(device), batch.w.to(device).double()
    quick = Y.dtype == torch.float32 and device.type == "cpu"
    found = []
    for bandwidth in grid.bandwidths:
        K = distances.values(D, bandwidth, torch.float32 if quick else torch.float64)
        K_V = distances.values(D_V, bandwidth, K.dtype)
        row: list[float] = []
        for ridge in reversed(grid.ridges):  # the small ones, which may need float64, last
            alpha = _solve_single(K, ridge / w, Y) if K.dtype == torch.float32 else None
            if alpha is None:
                K, K_V = (distances.values(each, bandwidth, torch.float64) for each in (D, D_V))
                alpha = solve_ridge(K, ridge / w, Y.double())
            row.insert(0, _judged(alpha, K_V, judge))
        found.append(row)
    return torch.tensor(found, dtype=torch.float64)


def _solve_single(K: Tensor, diagonal: Tensor, Y: Tensor) -> Tensor | None:
    """In float32; None where that has too few digits."""
    L = K.clone().T  # by columns: LAPACK would copy it
    L.diagonal().add_(diagonal)
    enough = factor_in_place(L) and L.diagonal().square().min().item() >= SINGLE
    return by_factor(L)(Y) if enough else None


def _centers(
    distances: Distances,
    source: Source,
    rows: Tensor,
    Z: Tensor,
    X_held: Tensor,
    grid: Grid,
    judge: Judge,
) -> Tensor:
    centers = distances.points(Z)
    D_Z = distances.between(centers, centers)
    whitenings = [_whitening(distances.values(D_Z, b, torch.float64)) for b in grid.bandwidths]
    del D_Z
    systems = _normal_equations(distances, source, rows, centers, whitenings, grid)
    D_V = distances.between(distances.points(X_held), centers)
    found = []
    for bandwidth, white, system in zip(grid.bandwidths, whitenings, systems, strict=True):
        if white is None or system is None:
            found.append([-math.inf] * len(grid.ridges))
            continue
        K_V = distances.values(D_V, bandwidth, white.dtype)
        G, right = system.G(), system.right
        ones = G.new_ones(len(G))
        row = []
        for ridge in grid.ridges:
            beta = solve_ridge(G, ridge * ones, right)
            row.append(_judged(None if beta is None else white.weights(beta), K_V, judge))
        found.append(row)
    return torch.tensor(found, dtype=torch.float64)


def _judged(alpha: Tensor | None, K_V: Tensor, judge: Judge) -> float:
    if alpha is None or not bool(torch.isfinite(alpha).all()):
        return -math.inf
    return judge(K_V @ alpha)


@dataclass(frozen=True)
class Whitening:
    """K(·,Z) ↦ K(·,Z) L⁻ᵀ: by L, or on a GPU by its inverse, since solving for it is a chain of
    small launches there.
    """

    L: Tensor
    inverse: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.L.dtype

    def apply(self, K: Tensor) -> Tensor:
        if self.inverse:
            return K @ self.L.T
        return torch.linalg.solve_triangular(self.L, K.T, upper=False).T

    def weights(self, beta: Tensor) -> Tensor:
        """α = L⁻ᵀ β."""
        if self.inverse:
            return self.L.T @ beta
        return torch.linalg.solve_triangular(self.L.double().T, beta, upper=True).to(self.L)


def _whitening(K_ZZ: Tensor) -> Whitening | None:
    """In float32 on a CPU, where that has digits enough; None where there is no factor."""
    try:
        L = factor(K_ZZ).L
    except NotPositiveDefinite:
        return None
    if L.is_cuda:
        return Whitening(inverted(L), True)
    single = L.diagonal().square().min().item() >= SINGLE
    return Whitening(L.float() if single else L, False)


@dataclass
class System:
    """ΦᵀwΦ, of which the blocks on and above the diagonal are summed, and Φᵀwy."""

    upper: Tensor
    right: Tensor

    def add(self, Phi: Tensor, Y: Tensor) -> None:
        for i in range(0, len(self.upper), BLOCK):
            self.upper[i : i + BLOCK, i:] += Phi[:, i : i + BLOCK].T @ Phi[:, i:]
        self.right += Phi.T @ Y.to(Phi)

    def G(self) -> Tensor:
        return self.upper.triu() + self.upper.triu(1).T


def _normal_equations(
    distances: Distances,
    source: Source,
    rows: Tensor,
    centers: Points,
    whitenings: list[Whitening | None],
    grid: Grid,
) -> list[System | None]:
    """One pass over the rows for every bandwidth. Sums of chunks are in float64."""
    p, device = len(centers), source.device
    zeros = lambda columns: torch.zeros(p, columns, dtype=torch.float64, device=device)  # noqa: E731
    systems = [None if white is None else System(zeros(p), zeros(source.c)) for white in whitenings]
    for some in rows.split(CHUNK):
        batch = source.take(some)
        root = batch.w.to(device).double().sqrt()[:, None]
        Y = root * batch.Y.to(device).double()
        D = distances.between(distances.points(batch.X), centers)
        for bandwidth, white, system in zip(grid.bandwidths, whitenings, systems, strict=True):
            if white is not None and system is not None:
                Phi = white.apply(distances.values(D, bandwidth, white.dtype))
                system.add(Phi * root.to(Phi), Y)
    return systems
