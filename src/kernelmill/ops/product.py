"""Kernel products without holding K: K(A, B) @ v and K(A, B)ᵀ @ g. The one place that does so.

On a GPU the fused kernels of fused.py do the work. Everywhere else, and as their reference,
plain torch does it in tiles sized from a byte budget.

Precision is what features are rounded to; norms, distances, K and every sum stay in float32
(float64 for "float64"). Rounded inputs leave an exact kernel matrix of slightly moved points; a
rounded matrix would be no kernel matrix any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError, is_out_of_memory
from ..kernels import Kernel, Points, Sum
from .rounding import HALF, ROUNDINGS, within

try:  # Triton comes with torch on Linux with CUDA; elsewhere plain torch does it all
    from . import fused, fused64
except ImportError:
    fused = fused64 = None  # type: ignore[assignment]

log = logging.getLogger("kernelmill")

# Numbers embedded at a time: their float32 copies must be small beside the features that are kept.
CHUNK = 16 << 20
# Rows of a tile on the CPU: enough for a full-speed matrix product; columns then follow from the
# bytes of the tile.
TILE_ROWS = 2048
SMALLEST_TILE = 1 << 16
LARGEST = 1e-3 * torch.finfo(torch.float32).max ** 0.5  # of K, whose squares are summed up
MANY_ROWS, FEW_COLUMNS = 256, 32  # of a product whose weights are worth laying out by columns
SAMPLE = 512  # rows from which it is told what a precision does to K
# Centers up to which a model predicts by plain torch on a GPU too: a million rows take a fraction
# of a second either way, and the fused kernels compile for seconds.
FEW = 20_000


def frame(
    kernel: Kernel, Z: Tensor, total: Callable[[Tensor], Tensor] = lambda part: part
) -> tuple[Tensor, float]:
    """Where features are measured from and how large they are: the mean of the centers, and the
    root mean square of a feature.

    `total` sums over the ranks that share the centers.
    """
    count = total(torch.tensor(float(len(Z)), dtype=torch.float64, device=Z.device))
    width = max(1, kernel.width(Z.shape[1]))
    step = max(1, CHUNK // width)
    # In pieces: a sum in float64 would make a copy of all in float64.
    sums = [part.sum(0, dtype=torch.float64) for part in Z.split(step)]
    origin = total(torch.stack(sums).sum(0)) / count
    embed = kernel.embedding(origin, torch.float32)
    square = torch.zeros((), dtype=torch.float64, device=Z.device)
    for i in range(0, len(Z), step):
        square += embed(Z[i : i + step]).square().sum(dtype=torch.float64)
    return origin, math.sqrt(max((total(square) / (count * width)).item(), 0.0))


def distortion(
    kernel: Kernel, Z: Tensor, X: Tensor, precision: str, device: torch.device, tile_bytes: int
) -> tuple[float, float]:
    """By how much rounding to `precision` changes K: the largest ‖K̃(x,Z') − K(x,Z')‖ /
    ‖K(x,Z')‖ of rows x, and their largest norm.

    Z' are the SAMPLE centers farthest from the mean, where r² = ‖a‖² + ‖b‖² − 2a·b loses most,
    and as many others; x is any of them, or of X. A row that is far from all others is told
    apart from them whatever its norm: it does not count. Infinite where squares of K leave the
    range of the sums.
    """
    origin, spread = frame(kernel, Z)
    width = max(1, kernel.width(Z.shape[1]))
    embed, step = kernel.embedding(origin, torch.float64), max(1, CHUNK // width)
    reach = torch.cat([embed(Z[i : i + step]).norm(dim=1) for i in range(0, len(Z), step)])
    some = torch.linspace(0, len(Z) - 1, min(len(Z), SAMPLE), device=Z.device).round().long()
    Z = Z[torch.unique(torch.cat([reach.topk(min(len(Z), SAMPLE)).indices, some]))]
    X = torch.cat([Z, X.to(Z)])
    near, true = (
        (K := bind(kernel, origin, each, device, tile_bytes, spread, use_fused=False))
        .dense(K.points(X), K.points(Z))
        .double()
        for each in (precision, "float64")
    )
    moved = torch.linalg.vector_norm(near - true, dim=1) / torch.linalg.vector_norm(
        true, dim=1
    ).clamp(min=torch.finfo(true.dtype).tiny)
    fits = near.abs().max().item() < LARGEST  # False for NaN too
    return moved.max().item() if fits else math.inf, reach.max().item()


def power_of_two(spread: float, largest: float = 2.0**100) -> float:
    """The scale that brings a root mean square of `spread` near 1: float16 then has room for
    features 60,000 times larger, and keeps all digits of those 10,000 times smaller.
    """
    return (
        min(largest, 2.0 ** max(-100, min(100, round(-math.log2(spread)))))
        if 0 < spread < math.inf
        else 1.0
    )


def fuses(kernel: Kernel) -> bool:
    """Whether there is a fused kernel for this one: Triton is installed, and the fused room has its
    profile.
    """
    parts = kernel.parts if isinstance(kernel, Sum) else [kernel]
    return fused is not None and all(fused.form_of(each, "float32", 1.0) for each in parts)


def has_eight_bits(device: torch.device) -> bool:
    """Whether tensor cores multiply 8-bit features; without a GPU the interpreter does."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def on_chip(precision: str, d: int) -> int:
    """The most outputs that the fused kernels multiply before anything leaves the chip."""
    return 16 if fused is None else fused.on_chip(precision, d)


def padded(cols: int) -> int:
    """Numbers in a row of a held matrix of `cols` columns: whole 16 bytes also in float16, and a
    multiple for which one build of the kernels serves.
    """
    return -(-cols // 16) * 16


class Matrix(Protocol):
    """What is multiplied from the right."""

    def __matmul__(self, v: Tensor, /) -> Tensor: ...


class Block(Matrix, Protocol):
    """K(A, B): a tensor, or what reads like one."""

    @property
    def T(self) -> Matrix: ...

    def __getitem__(self, key: tuple[slice, slice], /) -> Tensor: ...


class KernelProduct:
    """A kernel bound to a precision, a device and a tile size.

    `origin` is a row near the data (the mean of the centers): translation-invariant kernels
    measure from it, which keeps distances accurate when columns have large offsets. `spread` is
    the size of a feature, for float16's narrow range. `use_fused` says whether the Triton
    kernels are used; None: on a GPU that has them.
    """

    def __init__(
        self,
        kernel: Kernel,
        origin: Tensor,
        precision: str,
        device: torch.device,
        tile_bytes: int,
        spread: float = 1.0,
        use_fused: bool | None = None,
    ):
        self.kernel, self.precision, self.device, self.tile_bytes = (
            kernel,
            precision,
            device,
            tile_bytes,
        )
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        self._embed = kernel.embedding(origin, self.dtype)
        self._rounding = ROUNDINGS[precision]
        self._scale, largest = 1.0, self._rounding.scale
        if largest is not None:
            largest = largest if kernel.translation_invariant else 2.0**100
            self._scale = power_of_two(spread, largest)
        wanted = device.type == "cuda" if use_fused is None else use_fused
        wanted = wanted and (precision != "float8" or has_eight_bits(device))
        # Of at most one of the two there is a form.
        self._form = (
            fused.form_of(kernel, precision, self._scale) if wanted and fused is not None else None
        )
        if use_fused is None and self._form is not None and not fused.works(device):
            self._form = None
        self._wide_form = (
            fused64.form_of(kernel)
            if wanted and fused64 is not None and precision == "float64"
            else None
        )

    @property
    def is_fused(self) -> bool:
        return self._form is not None

    # ---- points

    def points(self, X: Tensor) -> Points:
        """Rows of X as the kernel sees them, on the device, in the precision asked for."""
        step = max(1, CHUNK // max(1, self.kernel.width(X.shape[1])))
        if len(X) <= step:
            return self._points(X)
        first = self._points(X[:step])
        x, sq = first.x.new_empty(len(X), first.x.shape[1]), first.sq.new_empty(len(X))
        for i in range(0, len(X), step):
            part = first if i == 0 else self._points(X[i : i + step])
            x[i : i + step], sq[i : i + step] = part.x, part.sq
        return Points(x, sq)

    def embed(self, X: Tensor) -> Tensor:
        """Features of rows, on the device, before they are rounded."""
        return self._embed(X.to(self.device, non_blocking=self.device.type == "cuda"))

    def _points(self, X: Tensor) -> Points:
        x = self.embed(X)
        if self.precision == "tf32":
            x = round_to_tf32(x)
        if self._form is not None:
            return self._form.points(x)
        if self._wide_form is not None:
            return self.seen(x)
        if self.precision in HALF:
            x = within(x * self._scale, self._rounding.edge, self.kernel.translation_invariant)
            x = x.to(self._rounding.dtype).float() / self._scale
        return self.kernel.points(x)

    def hold(self, x: Tensor) -> Points:
        """Points of features that are held as `points` gives them."""
        assert self._form is not None
        held = x.contiguous()
        return Points(held, self._form.norms(held))

    def seen(self, x: Tensor) -> Points:
        """Points of float64 features, for a product in float64."""
        return self.kernel.points(x) if self._wide_form is None else self._wide_form.points(x)

    def wide(self, A: Points) -> Points:
        """The same points in float64: their features as they were rounded, their norms anew."""
        return self.kernel.points(A.x.double() if self._form is None else self._form.wide(A))

    def diagonal(self, A: Points) -> Tensor:
        return self.kernel.diagonal(A if self._form is None else Points(A.x, A.sq / self._scale**2))

    # ---- K held

    def dense(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        """K(A, B), held: r·t numbers, for blocks that the plan has room for."""
        if out is None:
            out = torch.empty(len(A), len(B), dtype=self.dtype, device=A.x.device)
        if self._form is not None:
            return fused.evaluate(self._form, A, B, out)
        # In cache, then copied: faster than passing over `out` once per operation.
        for rows, cols, tile in self._tiles_evaluated(A, B):
            out[rows, cols] = tile
        return out

    def dense64(self, A: Points, B: Points) -> Tensor:
        """K(A, B) in float64 of the same, already rounded, features: what an eigensystem or a
        factor is taken of.
        """
        return self.kernel.evaluate(self.wide(A), self.wide(B))

    def room(
        self, rows: int, cols: int, rounded: bool = False, passing: bool = False
    ) -> Tensor | None:
        """Memory for one `block`, or a `rounded` one, of up to this size, to be used again and
        again; None where there is not enough. `passing`: each block is forgotten after a step, and
        may have as few digits as its rounding says.
        """
        dtype = torch.float32 if rounded else self.dtype
        if passing and self._form is not None and self._rounding.parts == 1:
            dtype = torch.float16
        try:
            return torch.empty(rows * padded(cols), dtype=dtype, device=self.device)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning(
                "no room to keep a block of %d × %d kernel values: it is evaluated at each use.",
                rows,
                cols,
            )
            return None

    def block(self, A: Points, B: Points, room: Tensor | None) -> Block:
        """K(A, B) to be used twice, `K @ v` first, then `K.T @ g`: held in `room`, or evaluated
        at every use where that is None.
        """
        if room is None:
            return Recomputed(self, A, B)
        if not (len(A) and len(B)):
            return self.dense(A, B)
        if self._form is not None:
            return fused.Halves(self._form, A, B, room)
        return self.dense(A, B, room[: len(A) * len(B)].view(len(A), len(B)))

    def rounded(self, A: Points, B: Points, room: Tensor | None) -> Block:
        """The same, held in float32 and multiplied with sums in float64."""
        if room is None:
            return Recomputed(self, A, B)
        wide = padded(len(B))
        return Rounded(self.dense(A, B, room[: len(A) * wide].view(len(A), wide)[:, : len(B)]))

    def gram(self, A: Points, out: Tensor) -> Tensor:
        """K(A, A), written into `out`."""
        if self.is_fused:
            return self.dense(A, A, out)
        for rows, cols, tile in self._upper_tiles(A):
            out[rows, cols] = tile
            if rows != cols:
                out[cols, rows] = tile.T
        return out

    # ---- products

    def gram_times(self, A: Points, v: Tensor) -> Tensor:
        """K(A, A) @ v."""
        if self.is_fused or self.is_wide(v):
            return self.matmul(A, A, v)
        return self._smaller_on_shortage(lambda A, _, v: self._gram_times(A, v), A, A, v)

    def _gram_times(self, A: Points, v: Tensor) -> Tensor:
        out = torch.zeros(len(A), v.shape[1], dtype=v.dtype, device=v.device)
        v = by_columns(v)
        for rows, cols, tile in self._upper_tiles(A):
            out[rows].addmm_(tile, v[cols])
            if rows != cols:
                out[cols].addmm_(tile.T, v[rows])
        return out

    def _upper_tiles(self, A: Points) -> Iterator[tuple[slice, slice, Tensor]]:
        """K(A, A) on and above the diagonal, in square tiles: the rest is the same."""
        item, n = A.x.dtype.itemsize, len(A)
        side = max(1, min(n, math.isqrt(self.tile_bytes // item)))
        buffer = torch.empty(side * side, dtype=A.x.dtype, device=A.x.device)
        cut = [slice(i, min(i + side, n)) for i in range(0, n, side)]
        for i, rows in enumerate(cut):
            for cols in cut[i:]:
                high, wide = rows.stop - rows.start, cols.stop - cols.start
                tile = buffer[: high * wide].view(high, wide)
                yield rows, cols, self.kernel.evaluate(A[rows], A[cols], out=tile)

    def matmul(self, A: Points, B: Points, v: Tensor) -> Tensor:
        """K(A, B) @ v."""
        if self._form is not None and v.shape[1] <= on_chip(self.precision, B.x.shape[1]):
            return fused.product(self._form, A, B, v)
        if self._wide_form is not None and self.is_wide(v):
            return self._wide_form.product(A, B, v)
        return self._smaller_on_shortage(self._matmul, A, B, v)

    def is_wide(self, v: Tensor) -> bool:
        """Whether a product with v is fused in float64: asked when there is one, since many
        a float64 product only holds K, and needs no compiler.
        """
        return (
            self._wide_form is not None
            and v.shape[1] <= fused64.COLUMNS
            and (not v.is_cuda or fused.works(v.device))
        )

    def expression(self, X: Tensor, B: Points, v: Tensor) -> Tensor:
        """K(X, B) @ v of raw rows in one expression, K held: what torch.export and ONNX can
        read.
        """
        if self._form is not None:
            raise InputError("a model is exported from the CPU; move it there first: model.cpu().")
        return self.kernel.evaluate(self._points(X), B) @ v

    def _matmul(self, A: Points, B: Points, v: Tensor) -> Tensor:
        out = torch.zeros(len(A), v.shape[1], dtype=v.dtype, device=v.device)
        # More outputs than fit the chip: K in two halves, tile by tile.
        if self._form is not None:
            high = max(128, min(len(A), 8192))
            wide = max(fused.RUN, self.tile_bytes // (4 * high) // fused.RUN * fused.RUN)
            room = torch.empty(
                min(len(A), high) * (min(len(B), wide) + 7), dtype=torch.float32, device=v.device
            )
            for i in range(0, len(A), high):
                for j in range(0, len(B), wide):
                    out[i : i + high] += (
                        fused.Halves(self._form, A[i : i + high], B[j : j + wide], room)
                        @ v[j : j + wide]
                    )
            return out
        if len(A) >= MANY_ROWS and v.shape[1] <= FEW_COLUMNS:  # else the copy costs more
            v = by_columns(v)
        for rows, cols, tile in self._tiles_evaluated(A, B):
            out[rows].addmm_(tile, v[cols])
        return out

    def rmatmul(self, A: Points, B: Points, g: Tensor) -> Tensor:
        """K(A, B)ᵀ @ g."""
        if self._form is not None or self.is_wide(g):
            return self.matmul(B, A, g)
        return self._smaller_on_shortage(self._rmatmul, A, B, g)

    def _rmatmul(self, A: Points, B: Points, g: Tensor) -> Tensor:
        out = torch.zeros(len(B), g.shape[1], dtype=g.dtype, device=g.device)
        for rows, cols, tile in self._tiles_evaluated(A, B):
            out[cols].addmm_(tile.T, g[rows])
        return out

    def _smaller_on_shortage(
        self, product: Callable[[Points, Points, Tensor], Tensor], A: Points, B: Points, v: Tensor
    ) -> Tensor:
        """The product; where memory runs out the tile is halved and the product begun again, so
        that nothing is lost.
        """
        while True:
            try:
                return product(A, B, v)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or self.tile_bytes <= SMALLEST_TILE:
                    raise
                self.tile_bytes //= 2
                log.warning(
                    "out of memory: continuing with kernel tiles of %.1f MiB.",
                    self.tile_bytes / 2**20,
                )

    def tiles(self, rows: int, cols: int) -> Iterator[tuple[slice, slice]]:
        """Row and column slices of K whose blocks fit the tile budget, and so a cache."""
        item = torch.finfo(self.dtype).bits // 8
        high = max(1, min(rows, TILE_ROWS, self.tile_bytes // item))
        wide = max(1, self.tile_bytes // (item * high))
        if cols <= 1.5 * wide:  # one tile a little too wide is better than a sliver
            wide = max(1, cols)
        for i in range(0, rows, high):
            for j in range(0, cols, wide):
                yield slice(i, min(i + high, rows)), slice(j, min(j + wide, cols))

    def _tiles_evaluated(self, A: Points, B: Points) -> Iterator[tuple[slice, slice, Tensor]]:
        """K(A, B) tile after tile in one buffer: fresh memory for every tile would cost as much
        as its exponentials.
        """
        cut = list(self.tiles(len(A), len(B)))
        largest = max(
            ((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in cut), default=0
        )
        buffer = torch.empty(largest, dtype=A.x.dtype, device=A.x.device)
        for rows, cols in cut:
            high, wide = rows.stop - rows.start, cols.stop - cols.start
            yield (
                rows,
                cols,
                self.kernel.evaluate(A[rows], B[cols], out=buffer[: high * wide].view(high, wide)),
            )


def bind(
    kernel: Kernel,
    origin: Tensor,
    precision: str,
    device: torch.device,
    tile_bytes: int,
    spread: float = 1.0,
    use_fused: bool | None = None,
) -> KernelProduct:
    """The product of this kernel; see KernelProduct."""
    given = (origin, precision, device, tile_bytes, spread)
    if isinstance(kernel, Sum):
        parts = [KernelProduct(part, *given, use_fused=use_fused) for part in kernel.parts]
        if all(part.is_fused for part in parts):
            return SumProduct(kernel, parts, *given)
    return KernelProduct(kernel, *given, use_fused=use_fused)


class SumProduct(KernelProduct):
    """A sum of kernels, each with a fused product of its own.

    Points hold what every part sees, side by side; norms are made anew for each product, which
    costs little beside it.
    """

    def __init__(
        self,
        kernel: Sum,
        parts: list[KernelProduct],
        origin: Tensor,
        precision: str,
        device: torch.device,
        tile_bytes: int,
        spread: float,
    ):
        super().__init__(kernel, origin, precision, device, tile_bytes, spread, use_fused=False)
        self._parts, self._shares = parts, kernel.shares
        # Of a row without a value: how wide each part's points are.
        self._d = len(origin)
        empty = origin[None][:0].to(device)
        self._widths = [part.points(empty).x.shape[1] for part in parts]

    @property
    def is_fused(self) -> bool:
        return True

    def _points(self, X: Tensor) -> Points:
        x = torch.cat([part._points(X).x for part in self._parts], 1)
        return Points(x, torch.zeros(len(x), dtype=self.dtype, device=x.device))

    def _each(self, *sides: Points) -> Iterator[tuple[KernelProduct, float, list[Points]]]:
        """Every part, its weight, and its own points."""
        split = [side.x.split(self._widths, 1) for side in sides]
        for part, share, *own in zip(self._parts, self._shares, *split, strict=True):
            yield part, share, [part.hold(x) for x in own]

    def diagonal(self, A: Points) -> Tensor:
        return self.kernel.diagonal(A)

    def dense(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(len(A), len(B), dtype=self.dtype, device=A.x.device)
        out.zero_()
        high = max(1, self.tile_bytes // (4 * max(1, len(B))))
        for part, share, (a, b) in self._each(A, B):
            for i in range(0, len(A), high):
                out[i : i + high].add_(part.dense(a[i : i + high], b), alpha=share)
        return out

    def wide(self, A: Points) -> Points:
        # A part's own points are padded.
        each = (
            part.wide(*own).x[:, : part.kernel.width(self._d)] for part, _, own in self._each(A)
        )
        return self.kernel.points(torch.cat(list(each), 1))

    def dense64(self, A: Points, B: Points) -> Tensor:
        values = [share * part.dense64(a, b) for part, share, (a, b) in self._each(A, B)]
        return torch.stack(values).sum(0)

    def block(self, A: Points, B: Points, room: Tensor | None) -> Block:
        if room is None:
            return Recomputed(self, A, B)
        return self.dense(A, B, room[: len(A) * len(B)].view(len(A), len(B)))

    def matmul(self, A: Points, B: Points, v: Tensor) -> Tensor:
        values = [share * part.matmul(a, b, v) for part, share, (a, b) in self._each(A, B)]
        return torch.stack(values).sum(0)

    def rmatmul(self, A: Points, B: Points, g: Tensor) -> Tensor:
        return self.matmul(B, A, g)

    def expression(self, X: Tensor, B: Points, v: Tensor) -> Tensor:
        raise InputError("a model is exported from the CPU; move it there first: model.cpu().")


def round_to_tf32(x: Tensor) -> Tensor:
    """float32 rounded to the 10 fraction bits of TF32, so that norms are those of the very
    features the tensor cores will see.
    """
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def by_columns(v: Tensor) -> Tensor:
    """The same numbers, a column after the other: a product with few of them is up to three times
    as quick on a CPU.
    """
    return v.T.contiguous().T


def transposed_product(K: Block, g: Tensor) -> Tensor:
    """Kᵀ @ g.

    With few columns and the rows of a held K in a line, the BLAS is quicker at (gᵀK)ᵀ.
    """
    return (g.T @ K).T if isinstance(K, Tensor) else K.T @ g


class Rounded:
    """K(A, B) held in float32, multiplied with weights and sums in float64: reads like a matrix.

    An exact solution loses nothing by it (docs/solvers.md), in half of the memory.
    """

    def __init__(self, K: Tensor, transposed: bool = False):
        """`K`: float32, its rows contiguous."""
        self._K, self._transposed = K, transposed

    @property
    def T(self) -> Rounded:
        return Rounded(self._K, not self._transposed)

    def __matmul__(self, v: Tensor) -> Tensor:
        K = self._K
        if K.is_cuda and fused64 is not None and fused.works(K.device):
            return fused64.held_times(K, v, self._transposed)
        high = max(1, CHUNK // max(1, K.shape[1]))
        starts = range(0, max(1, len(K)), high)
        if self._transposed:
            parts = [K[i : i + high].double().T @ v[i : i + high] for i in starts]
            return torch.stack(parts).sum(0)
        return torch.cat([K[i : i + high].double() @ v for i in starts])

    def __getitem__(self, key: tuple[slice, slice]) -> Tensor:
        return (self._K.T if self._transposed else self._K)[key].double()


class Recomputed:
    """K(A, B) that is never held: reads like a matrix (`K @ v`, `K.T @ g`, `K[:, cols]`), costs
    an evaluation at each use.
    """

    def __init__(self, K: KernelProduct, A: Points, B: Points, transposed: bool = False):
        self._K, self._A, self._B, self._transposed = K, A, B, transposed

    @property
    def T(self) -> Recomputed:
        return Recomputed(self._K, self._A, self._B, not self._transposed)

    def __matmul__(self, v: Tensor) -> Tensor:
        product = self._K.rmatmul if self._transposed else self._K.matmul
        return product(self._A, self._B, v)

    def __getitem__(self, key: tuple[slice, slice]) -> Tensor:
        rows, cols = key
        return self._K.dense(self._A[rows], self._B[cols])
