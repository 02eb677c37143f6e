"""(√w K √w + λ) β = √w Y for every row a center, α = √w β: products, residuals, and the
preconditioner that conjugate gradients need. K is never held whole (docs/solvers.md).

Fast products are float32, or float64 if asked for; residuals are float64. Rows are dealt out to
ranks; an iteration gathers one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .distributed.team import Alone, Communicator, gather, own_rows, shard
from .kernels import Kernel
from .ops import HALF, Gram, Rounded, bind, frame
from .projection import NotPositiveDefinite

LEAST, MOST, MOST_ON_GPU = 256, 2000, 4096  # rank of a preconditioner
WIDEST, WIDEST_ON_GPU = 512, 2048  # rows of its blocks
BLOCK = 256  # pivots drawn at a time
CHECKED = 1024  # rows whose residual is computed in float64 before an iterate is trusted
# Below this share of the largest, negative diagonals and curvatures are more than rounding.
NEGATIVE = 1e-4
CHECK_EVERY = 20  # iterations between two looks at the true residual of some rows
# The error of held-out rows is level where so many iterations gain less than this share of it, and
# the residual is so small beside its root: before, weights may be far and the error stand still.
LEVEL, GAIN, SMALL = 5, 5e-3, 0.1
# Fast products that leave more than this share of a residual have no digits left for it.
STALLED = 0.5
POWERS = 5  # iterations towards the principal direction of some rows
# What is added to the blocks of a preconditioner, of the largest diagonal value.
BELOW = 4 * torch.finfo(torch.float32).eps


class Blocks:
    """A block-diagonal matrix, held as the inverses of its blocks."""

    def __init__(self, rows: Tensor, inverses: Tensor):
        """`rows` (k, size): the rows that each block is of, n where it has fewer than `size`."""
        self.rows, self._inverses = rows, inverses

    def solve(self, r: Tensor) -> Tensor:
        """The inverse times r (n, c)."""
        padded = torch.cat([r, r.new_zeros(1, r.shape[1])])
        solved = torch.bmm(self._inverses, padded[self.rows])
        padded[self.rows.reshape(-1)] = solved.reshape(-1, r.shape[1])
        return padded[:-1]

    def inner(self, B: Tensor, tile_bytes: int) -> Tensor:
        """Bᵀ times the inverse times B, in float64."""
        r, size = B.shape[1], self.rows.shape[1]
        total = torch.zeros(r, r, dtype=torch.float64, device=B.device)
        padded = torch.cat([B, B.new_zeros(1, r)])
        at_once = max(1, tile_bytes // (16 * max(1, r) * size))
        for rows, inverses in zip(
            self.rows.split(at_once), self._inverses.split(at_once), strict=True
        ):
            part = padded[rows].double()
            total.addmm_(part.flatten(0, 1).T, torch.bmm(inverses, part).flatten(0, 1))
        return total


@dataclass(frozen=True)
class Preconditioner:
    """(B Bᵀ + D)⁻¹, where √w K √w ≈ B Bᵀ is a partial Cholesky factor with random pivots and D are
    the blocks of near rows of what B leaves, and λ.
    """

    B: Rounded  # (n, r), this rank's rows, in float32; products are float64
    L: Tensor  # L Lᵀ = 1 + Bᵀ D⁻¹ B
    D: Blocks
    comm: Communicator

    def solve(self, r: Tensor) -> Tensor:
        near = self.D.solve(r)
        inner = torch.cholesky_solve(self.comm.all_sum(self.B.T @ near), self.L)
        return near - self.D.solve(self.B @ inner)


class KernelSystem:
    """A = √w K(X,X) √w + λ, of which this rank has some rows."""

    def __init__(  # noqa: PLR0913
        self,
        kernel: Kernel,
        Z: Tensor,
        w: Tensor,
        ridge: float,
        comm: Communicator,
        *,
        device: str,
        precision: str,
        tile_bytes: int,
        room: int = 0,
    ):
        """`Z`, `w`: this rank's rows and their weights. `precision` is that of fast products,
        `room` the bytes in which K may be held.
        """
        self.comm, self.ridge = comm, ridge
        counts = comm.all_sum(torch.tensor(float(len(Z)), dtype=torch.float64))
        self.n = int(counts.item())
        place, self._tile_bytes = torch.device(device), tile_bytes
        origin, spread = frame(kernel, Z, comm.all_sum)
        X = gather(comm, Z, 0, self.n)
        self._exact = bind(kernel, origin, "float64", place, tile_bytes, spread)
        if precision in HALF:  # the system is that of rounded features, in float64 too
            rounded = bind(kernel, origin, precision, place, tile_bytes, spread)
            features = rounded.wide(rounded.points(X)).x[:, : kernel.width(X.shape[1])]
            self._X = self._exact.seen(features.contiguous())
        else:
            self._X = self._exact.points(X)
        self._own = self._X if comm.size == 1 else self._X[shard(comm)]
        self._root = w.to(place, torch.float64).sqrt()[:, None]
        self._roots = gather(comm, self._root, 0, self.n)
        diagonal = self._root[:, 0] ** 2 * self._exact.diagonal(self._own).double()
        self._diagonal, self._scale = diagonal, self._largest(diagonal)
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        if place.type == "cpu" or precision == "float64":
            # A CPU evaluates what it holds once: in float64, which keeps the distances of far rows.
            self._fast, self._points = self._exact, self._X
            self._gram = Gram(self._exact, self._own, self._X, room)
        else:
            fast = bind(kernel, origin, precision, place, tile_bytes, spread)
            points = fast.points(X)
            own = points if comm.size == 1 else points[shard(comm)]
            self._fast, self._points = fast, points
            self._gram = Gram(fast, own, points, room)

    # ---- vectors of this rank's rows

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column, over all ranks."""
        return self.comm.all_sum((a * b).sum(0))

    def right(self, Y: Tensor) -> Tensor:
        """√w Y."""
        return self._root * Y.to(self._root)

    def weights(self, beta: Tensor) -> Tensor:
        """α = √w β."""
        return self._root * beta

    def times(self, v: Tensor, exact: bool = False) -> Tensor:
        """A v, by the fast product or in float64, which costs several of them."""
        return self._root * self._product(self._root * v, exact) + self.ridge * v

    def _product(self, v: Tensor, exact: bool) -> Tensor:
        """K v, v sharded as all vectors are."""
        everywhere = gather(self.comm, v if exact else v.to(self.dtype), 0, self.n)
        if not exact:
            return (self._gram @ everywhere).double()
        if self.comm.size == 1:
            return self._exact.gram_times(self._X, everywhere)
        return self._exact.matmul(self._own, self._X, everywhere)

    def predict(self, V: Tensor, alpha: Tensor) -> Tensor:
        """Values of the model at other rows, by a fast product; on one rank."""
        K = self._fast
        return K.matmul(K.points(V), self._points, alpha.to(K.dtype)).double()

    def shrinkage(self, alpha: Tensor) -> Tensor:
        """λ β = λ α/√w; 0 where w is."""
        return torch.where(self._root > 0, self.ridge * alpha / self._root, 0.0)

    def residual(self, alpha: Tensor, b: Tensor) -> Tensor:
        """b − A β in float64."""
        return b - self._root * self._product(alpha, exact=True) - self.shrinkage(alpha)

    def drift(self, alpha: Tensor, b: Tensor, r: Tensor) -> float:
        """‖(b − A β) − r‖ / ‖b‖ of the worst column, estimated from some rows in float64."""
        count = min(self.n, CHECKED)
        rows = torch.linspace(0, self.n - 1, count).round().long()
        mine, at = own_rows(self.comm, rows)
        at = at[mine].to(r.device)
        all_rows = gather(self.comm, alpha, 0, self.n)
        product = self._exact.matmul(self._own[at], self._X, all_rows)
        true = (b - self.shrinkage(alpha))[at] - self._root[at] * product
        squares = self.comm.all_sum(((true - r[at]) ** 2).sum(0)) * (self.n / count)
        return self.relative(squares, b)

    def relative(self, squares: Tensor, b: Tensor) -> float:
        """The root of the largest share of ‖b‖² that `squares`, one for each column, are."""
        whole = self.dots(b, b)
        return (squares / whole.clamp(min=torch.finfo(whole.dtype).tiny)).sqrt().max().item()

    # ---- the preconditioner

    def preconditioner(self, rank: int, size: int, seed: int) -> Preconditioner:
        """A partial Cholesky factor of `rank` columns, and blocks of `size` rows at most of what it
        leaves.
        """
        B = self._partial_cholesky(rank, seed)
        D = self._blocks(B, size)
        inner = self.comm.all_sum(D.inner(B, self._tile_bytes))
        inner.diagonal().add_(1.0)
        return Preconditioner(Rounded(B), torch.linalg.cholesky(inner), D, self.comm)

    def _partial_cholesky(self, rank: int, seed: int) -> Tensor:
        """B of √w K √w ≈ B Bᵀ, this rank's rows in float32. Rows are drawn in proportion to the
        diagonal that is left of them, which takes those that earlier ones say least of.
        """
        K, own, root, comm = self._exact, self._own, self._root, self.comm
        draw = torch.Generator().manual_seed(seed)
        left, largest = self._diagonal, self._scale
        B = torch.empty(len(own), rank, dtype=torch.float32, device=root.device)
        r = 0
        while r < rank:
            everywhere = gather(comm, left[:, None], 0, self.n)[:, 0].cpu()
            if everywhere.min().item() < -NEGATIVE * largest:
                raise not_positive_definite(self.n)
            # Rows of which nothing but rounding is left are no pivots.
            possible = int((everywhere > 1e-7 * largest).sum())
            if not possible or everywhere.sum().item() <= self.ridge:
                break
            race = torch.empty(self.n, dtype=torch.float64).exponential_(generator=draw)
            pivots = (everywhere.clamp(min=0) / race).topk(min(BLOCK, rank - r, possible)).indices
            mine, at = own_rows(comm, pivots)
            of_pivots = torch.zeros(len(pivots), r, device=root.device)
            of_pivots[mine] = B[at[mine], :r]
            of_pivots = comm.all_sum(of_pivots)
            at_root = self._roots[pivots]
            block = root * K.dense64(own, self._X[pivots]) * at_root.T
            block -= (B[:, :r] @ of_pivots.T).double()
            core = torch.zeros(len(pivots), len(pivots), dtype=torch.float64, device=root.device)
            core[mine] = block[at[mine]]
            core = comm.all_sum(core)
            core = (core + core.T) / 2
            # float32 sums are off by so much: smaller directions are noise.
            core.diagonal().add_(1e-6 * max(core.diagonal().max().item(), 1e-6 * largest))
            L, failed = torch.linalg.cholesky_ex(core)
            if failed.item():
                break
            new = torch.linalg.solve_triangular(L, block.T, upper=False).T.float()
            B[:, r : r + len(pivots)] = new
            left = left - new.double().square().sum(1)
            left[at[mine]] = 0.0
            r += len(pivots)
        return B[:, :r].contiguous()

    def _blocks(self, B: Tensor, size: int) -> Blocks:
        """The blocks of √w K √w − B Bᵀ + λ that belong to near rows of this rank."""
        own, n = self._own, len(self._own)
        rows = near_rows(own.x, size)
        inverses = torch.zeros(*rows.shape, rows.shape[1], dtype=torch.float64, device=B.device)
        least = self.ridge + BELOW * self._scale  # B is known to so many digits
        for at, inverse in zip(rows, inverses, strict=True):
            at = at[at < n]
            points, root, part = own[at], self._root[at], B[at].double()
            block = torch.addmm(
                root * self._exact.dense64(points, points) * root.T, part, part.T, alpha=-1
            )
            block.diagonal().clamp_(min=0).add_(least)
            L, failed = torch.linalg.cholesky_ex(block)
            if failed.item():
                L = block.diagonal().sqrt().diag()
            half = torch.linalg.solve_triangular(L, torch.eye(len(at)).to(L), upper=False)
            inverse[: len(at), : len(at)] = half.T @ half
        return Blocks(rows, inverses)

    def _largest(self, values: Tensor) -> float:
        return gather(self.comm, values[:, None], 0, self.n).max().item()

    def is_noise(self, v: Tensor, curvature: Tensor) -> bool:
        """Whether vᵀ A v is no more than rounding makes of it in a fast product."""
        digits = 4 * torch.finfo(torch.float32).eps * self.n**0.5
        return bool((curvature.abs() < digits * self._scale * self.dots(v, v)).any())

    def check_curvature(self, v: Tensor, curvature: Tensor) -> None:
        """Raise where vᵀ A v is below 0 by more than rounding: K is no kernel matrix then."""
        if bool((curvature < -NEGATIVE * self._scale * self.dots(v, v)).any()):
            raise not_positive_definite(self.n)


@dataclass(frozen=True)
class Iterate:
    """Where conjugate gradients are: weights, their residual as it is carried along, the direction
    of the next step, and rᵀ P⁻¹ r.
    """

    alpha: Tensor
    r: Tensor
    direction: Tensor
    size: Tensor
    residual: float  # relative, of the worst column
    trusted: float  # the last one that was computed in float64
    slow: bool = False  # fast products have no digits left: each is float64
    step: int = 0


@dataclass(frozen=True)
class Solving:
    """Conjugate gradients for A β = b, to a relative residual of `tolerance`."""

    system: KernelSystem
    preconditioner: Preconditioner
    b: Tensor
    tolerance: float

    def start(self, alpha: Tensor, step: int = 0, slow: bool = False) -> Iterate:
        """At these weights, with their residual in float64."""
        system, b = self.system, self.b
        r = system.residual(alpha, b) if bool(alpha.any()) else b.clone()
        z = self.preconditioner.solve(r)
        left = system.relative(system.dots(r, r), b)
        return Iterate(alpha, r, z, system.dots(r, z), left, left, slow, step)

    def step(self, now: Iterate) -> Iterate:
        """The next iterate. Its residual is trusted where it ends the run, and looked at now and
        then: where rounding has moved it, conjugate gradients begin again from the weights.
        """
        after = self._step(now)
        if after.slow or (after.residual > self.tolerance and after.step % CHECK_EVERY):
            return after
        drift = self.system.drift(after.alpha, self.b, after.r)
        if drift <= max(self.tolerance, STALLED * after.residual):
            return replace(after, residual=max(after.residual, drift))
        again = self.start(after.alpha, after.step)
        return replace(again, slow=again.residual > STALLED * now.trusted)

    def _step(self, now: Iterate) -> Iterate:
        """With β of Polak and Ribière, as products are rounded."""
        system, v, tiny = self.system, now.direction, torch.finfo(torch.float64).tiny
        q = system.times(v, exact=now.slow)
        curvature = system.dots(v, q)
        if not now.slow and system.is_noise(v, curvature):
            return self._step(self.start(now.alpha, now.step, slow=True))
        system.check_curvature(v, curvature)
        step = torch.where(curvature > 0, now.size / curvature.clamp(min=tiny), 0.0)
        alpha, r = now.alpha + step * system.weights(v), now.r - step * q
        z = self.preconditioner.solve(r)
        size = system.dots(r, z)
        share = ((size - system.dots(now.r, z)) / now.size.clamp(min=tiny)).clamp(min=0)
        left = system.relative(system.dots(r, r), self.b)
        return Iterate(alpha, r, z + share * v, size, left, now.trusted, now.slow, now.step + 1)

    def loss(self, now: Iterate) -> float:
        """Σ w (y − f)², of all outputs."""
        misfit = now.r + self.system.shrinkage(now.alpha)
        return self.system.dots(misfit, misfit).sum().item()


def solve(  # noqa: PLR0913
    kernel: Kernel,
    X: Tensor,
    Y: Tensor,
    w: Tensor,
    ridge: float,
    *,
    tolerance: float,
    iterations: int,
    tile_bytes: int,
    budget: int,
    sizes: tuple[int, int] | None = None,
    held: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Iterate:
    """Kernel ridge of these rows, on their device, to the tolerance or until the error of held-out
    rows X, Y, w is level. `sizes`: rank and block of the preconditioner; None: the default ones.
    """
    device = X.device
    system = KernelSystem(
        kernel,
        X,
        w,
        ridge,
        Alone(),
        device=str(device),
        precision="float32",
        tile_bytes=tile_bytes,
        room=budget // 2,
    )
    sizes = sizes or default_sizes(len(X), len(X), budget // 2, device.type != "cpu")
    b = system.right(Y)
    solving = Solving(system, system.preconditioner(*sizes, 0), b, tolerance)
    now = solving.start(torch.zeros_like(b))
    errors: list[float] = []
    while now.residual > tolerance and now.step < iterations:
        now = solving.step(now)
        if held is None:
            continue
        V, Y_V, w_V = held
        misfit, w_V = system.predict(V, now.alpha) - Y_V, w_V[:, None]
        errors.append(((w_V * misfit * misfit).sum() / (w_V * Y_V * Y_V).sum()).item())
        if is_level(errors, now.residual):
            break
    return now


def is_level(errors: Sequence[float], residual: float) -> bool:
    """Whether the last iterations gained next to nothing: `errors` of held-out rows as shares of
    their variance.
    """
    if len(errors) <= LEVEL or not residual <= SMALL * errors[-1] ** 0.5:
        return False
    return errors[-1 - LEVEL] - min(errors[-LEVEL:]) < GAIN * errors[-1]


def near_rows(x: Tensor, size: int) -> Tensor:
    """(k, size) the numbers of rows (n, D) in blocks of rows that are near each other, n where a
    block has less than `size`: halved again and again along their principal direction.
    """
    n = len(x)
    count = max(1, -(-n // size))
    size = -(-n // count)
    todo, found = [(torch.arange(n, device=x.device), count)], []
    while todo:
        rows, blocks = todo.pop()
        if blocks == 1:
            found.append(torch.nn.functional.pad(rows, (0, size - len(rows)), value=n))
            continue
        near = x[rows].float()
        near -= near.mean(0)
        direction = near.square().mean(0)
        for _ in range(POWERS):
            direction = near.T @ (near @ direction)
            direction /= direction.norm().clamp(min=torch.finfo(torch.float32).tiny)
        rows = rows[(near @ direction).argsort(stable=True)]
        half = blocks // 2
        cut = len(rows) * half // blocks
        todo += [(rows[cut:], blocks - half), (rows[:cut], half)]
    return torch.stack(found)


def default_sizes(n: int, own: int, room: int, on_gpu: bool) -> tuple[int, int]:
    """Rank and rows of a block of the preconditioner for n rows, `own` of them on this rank, in
    half of `room` bytes.
    """
    most, widest = (MOST_ON_GPU, WIDEST_ON_GPU) if on_gpu else (MOST, WIDEST)
    rank = min(n, max(LEAST, n // 8), most, room // (16 * own + 1))
    return rank, max(1, min(n, widest, room // (32 * own + 1)))


def not_positive_definite(n: int) -> NotPositiveDefinite:
    return NotPositiveDefinite(
        f"K of {n} rows is not positive definite, so that no ridge regression belongs to it; use a"
        " positive definite kernel, or a much larger ridge."
    )
