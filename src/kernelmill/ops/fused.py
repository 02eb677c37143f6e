"""K(A, B) @ w in one Triton kernel: feature product, norms, profile and the product with the
weights before anything leaves the chip.

A program owns BM rows of A and a run of column tiles of B. For each tile the tensor cores sum
x·z in float32 over d, the profile turns it into K in registers, and K, split into two float16
parts, is multiplied by the weights, split likewise: 22 bits each, where one TF32 product would
round K to 11. Kᵀ @ g is K(B, A) @ g. Programs' sums are added in a fixed order: a product gives
the same bits each time.

The kernels themselves are in triton_kernels.py. The plain version of all this is `KernelProduct`
without this file (product.py); tests/test_fused.py ties the two, on a GPU and, without one, in
Triton's interpreter. docs/gpu.md has the measurements behind the constants.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, overload

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..kernels import (
    ArcCosine,
    Gaussian,
    GeneralisedExponential,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Points,
    Polynomial,
    Radial,
    RationalQuadratic,
    ReluNTK,
)
from .rounding import EIGHT, ROUNDINGS, Rounding, within
from .triton_kernels import SHIFT, block_product, norms, split_columns

log = logging.getLogger("kernelmill")

Weights = TypeVar("Weights", Tensor, None)

GROWN = 2.0**SHIFT.value
# Rows that one cuBLAS product adds up: tensor cores cut off what they
# add, ordinary additions round.
RUN = 2048
LEAST = 32  # 8-bit features of one instruction
LOST_BY_EIGHT = 6.6e-4  # of ‖x‖², where tensor cores add up tiles of 128 products in 14 bits
MOST_COLUMNS = 1 << 23  # of one launch: places in w are counted in 32 bits

# Kernel → (profile, its number, its order) as `_values` in triton_kernels.py spells it. A kernel
# that is not here, or a subclass of one that is, is evaluated by plain torch.
PROFILES: dict[type[Kernel], Callable[[Any], tuple[str, float, int]]] = {
    Laplacian: lambda kernel: ("laplacian", 0.0, 0),
    Gaussian: lambda kernel: ("gaussian", 0.0, 0),
    Matern: lambda kernel: (
        ("laplacian", 0.0, 0) if kernel.nu == 0.5 else ("matern", 0.0, int(2 * kernel.nu))
    ),
    GeneralisedExponential: lambda kernel: ("generalised_exponential", float(kernel.gamma), 0),
    RationalQuadratic: lambda kernel: ("rational_quadratic", float(kernel.shape), 0),
    Linear: lambda kernel: ("linear", 0.0, 0),
    Polynomial: lambda kernel: ("polynomial", float(kernel.constant), int(kernel.degree)),
    ReluNTK: lambda kernel: ("relu_ntk", 0.0, int(kernel.depth)),
    ArcCosine: lambda kernel: ("arc_cosine", 0.0, int(kernel.order)),
}


@dataclass(frozen=True)
class Shape:
    """How one launch is cut: rows, columns and features of a tile, and what the compiler is
    told.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    parts: int = 1


@lru_cache(maxsize=4096)
def splits(row_tiles: int, col_tiles: int, programs: int) -> int:
    """Into how many runs the column tiles are cut, so that the last round of programs leaves few
    multiprocessors idle.
    """

    def cost(cut: int) -> float:
        each = -(-col_tiles // cut)
        # 0.3: what starting a program costs, in tiles.
        return -(-row_tiles * -(-col_tiles // each) // programs) * (each + 0.3)

    # Candidates: the cuts that fill 1, 2, 3 … rounds of programs, or stay just below.
    full = [max(1, rounds * programs // row_tiles) for rounds in range(1, 9)]
    return min({min(col_tiles, cut) for cut in [1, *full]}, key=cost)


@dataclass(frozen=True)
class Form:
    """How one kernel in one precision is spelled in `block_product`: features times `scale`,
    held as `dtype`, as pairs where `two`.
    """

    kernel: Kernel
    precision: str
    scale: float

    @property
    def profile(self) -> tuple[str, float, int]:
        return PROFILES[type(self.kernel)](self.kernel)

    @property
    def rounding(self) -> Rounding:
        return ROUNDINGS[self.precision]

    @property
    def dtype(self) -> torch.dtype:
        return self.rounding.dtype

    @property
    def two(self) -> bool:
        return self.precision == "float32"

    @property
    def tile(self) -> int:
        """Features of a tile of a long row: 128 bytes; of two-part features, of each part half as
        many.
        """
        return 32 if self.two else 128 // self.dtype.itemsize

    def width(self, d: int) -> int:
        """d padded: to whole tiles, or for a short row to a power of two that is one tile."""
        short = max(LEAST if self.dtype == EIGHT else 16, triton.next_power_of_2(d))
        return (
            short
            if short <= self.tile
            else -(-d // self.tile) * self.tile
            if self.two
            else -(-d // 16) * 16
        )

    def added(self, BK: int, device: torch.device) -> int:
        """How many products of 8-bit features tensor cores add up by themselves, which they do in
        14 bits; 0 for others. For norms the same as for products, whose tiles are smaller on some
        GPUs: coincident rows must be at distance 0.
        """
        if self.dtype != EIGHT:
            return 0
        return BK if _roomy(device) else LEAST

    def shape(self, D: int, C: int) -> Shape:
        resident = 32 if self.tile == 32 else 128
        BK = triton.next_power_of_2(D) if resident >= D else self.tile
        if C > 16:
            return Shape(64, 64, min(BK, 64), 4, 2)
        if D <= 32:
            return Shape(128, 64, BK, 4, 3)
        return Shape(128, 128, BK, 4, 2 if D <= BK else 3, 2)

    def points(self, x: Tensor) -> Points:
        """Features x (r, d) in float32, rounded to this form and padded once."""
        d, D = x.shape[1], self.width(x.shape[1])
        if self.scale != 1:
            x = x * self.scale
        if math.isfinite(self.rounding.edge):
            x = within(x, self.rounding.edge, isinstance(self.kernel, Radial))
        if d == D and not self.two:
            held = x.to(self.dtype).contiguous()
        else:
            held = torch.zeros(len(x), D * (1 + self.two), dtype=self.dtype, device=x.device)
            held[:, :d] = x
            if self.two:
                held[:, D : D + d] = x - held[:, :d].float()
        return Points(held, self.norms(held))

    def norms(self, held: Tensor) -> Tensor:
        """(r,) squared norms of features as they are held."""
        D = held.shape[1] // (1 + self.two)
        sq = torch.empty(len(held), dtype=torch.float32, device=held.device)
        if len(held):
            BK = min(self.tile, triton.next_power_of_2(D))
            rows = TensorDescriptor.from_tensor(held, [64, BK])
            with on_device(held):
                norms[(triton.cdiv(len(held), 64),)](
                    rows,
                    sq,
                    len(held),
                    D,
                    BM=64,
                    BK=BK,
                    TWO=self.two,
                    ADDED=self.added(BK, held.device),
                )
        return sq

    def wide(self, A: Points) -> Tensor:
        """The features that A holds, in float64 and in units of the bandwidth."""
        x = A.x.double()
        return (x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :] if self.two else x) / self.scale

    def unit(self, A: Points) -> float:
        """What takes squares of these features to squares of bandwidths."""
        # Tensor cores cut off what they add: ‖x‖² comes out 0.6·2^-23 smaller for each 16
        # features (measured on an H200, docs/gpu.md). Distances of far rows are made of it, so
        # it is given back here. Of 8-bit features they add a tile in 14 bits.
        loss = 0.0
        if isinstance(self.kernel, Radial) and A.x.is_cuda:
            loss = 0.6 * A.x.shape[1] / (1 + self.two) / 16 * 2.0**-23
            added = self.added(min(self.tile, A.x.shape[1]), A.x.device)
            loss += LOST_BY_EIGHT * added / 128
        return (1 + loss) / self.scale**2

    def roots(self, A: Points) -> Tensor | None:
        """√K(a,a), by which kernels that are not bounded by 1 are divided while they are split;
        None for those that are.
        """
        if isinstance(self.kernel, Radial):
            return None
        return self.kernel.diagonal(Points(A.x, A.sq / self.scale**2)).clamp(min=0).sqrt()


def form_of(kernel: Kernel, precision: str, scale: float) -> Form | None:
    """The fused form of a kernel, or None where plain torch has to do: a kernel without a
    profile here, or float64.
    """
    return (
        Form(kernel, precision, scale)
        if type(kernel) in PROFILES and precision != "float64"
        else None
    )


@lru_cache
def works(device: torch.device) -> bool:
    """Whether Triton can compile and launch here.

    It needs a C compiler, which a container may not have.
    """
    try:
        split_weights(torch.ones(1, 1, device=device), 16)
        return True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        log.warning(
            "Triton does not work here (%s: %s): plain torch is used, which is several times"
            " slower.",
            type(error).__name__,
            error,
        )
        return False


def split_weights(w: Tensor, C: int, stacked: bool = False) -> tuple[Tensor, Tensor]:
    """(p, 2C) float16: the high parts of w's columns, then the low parts, both scaled by a power
    of two for each column; and the (c,) factors that take products with 2^SHIFT·K back.
    `stacked` adds p rows more, high parts and zeros: what the low part of K meets.
    """
    w = w.contiguous()
    largest = torch.linalg.vector_norm(w, torch.inf, dim=0)
    parts = torch.empty((1 + stacked) * len(w), 2 * C, dtype=torch.float16, device=w.device)
    back = torch.empty_like(largest)
    WIDTH = min(64, triton.next_power_of_2(C))
    grid = triton.cdiv(len(w), 4096 // WIDTH), triton.cdiv(C, WIDTH)
    with on_device(w):
        split_columns[grid](
            w,
            largest,
            parts,
            back,
            len(w),
            w.shape[1],
            C,
            STACKED=stacked,
            BLOCK=4096 // WIDTH,
            WIDTH=WIDTH,
        )
    return parts, back


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: make it the one where x is."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def on_chip(precision: str, d: int) -> int:
    """The most columns of w that are multiplied inside the kernel: their sums must fit the
    registers beside the tile.
    """
    return 64 if d <= 128 and precision in ("float16", "bfloat16") else 16


def _padded(c: int) -> int:
    """Columns of a matrix product: multiples of 16, what tensor cores take."""
    return -(-c // 16) * 16


@overload
def _launch(
    form: Form,
    A: Points,
    B: Points,
    w: Tensor,
    K: Tensor | None = None,
    halves: Sequence[Tensor] = (),
) -> Tensor: ...


@overload
def _launch(
    form: Form,
    A: Points,
    B: Points,
    w: None,
    K: Tensor | None = None,
    halves: Sequence[Tensor] = (),
) -> None: ...


def _launch(
    form: Form,
    A: Points,
    B: Points,
    w: Tensor | None,
    K: Tensor | None = None,
    halves: Sequence[Tensor] = (),
) -> Tensor | None:
    """K(A, B) @ w where w is given; K, written into `K`, or in float16 into `halves`: the high
    part, and the low one where there are two.
    """
    M, N, D, c = len(A), len(B), A.x.shape[1] // (1 + form.two), 1 if w is None else w.shape[1]
    C = max(16, triton.next_power_of_2(c))
    shape = (
        form.shape(D, C)
        if _roomy(A.x.device)
        else Shape(64, 64, min(32, triton.next_power_of_2(D)), 4, 2)
    )
    row_tiles, col_tiles = triton.cdiv(M, shape.BM), triton.cdiv(N, shape.BN)
    each = -(-col_tiles // splits(row_tiles, col_tiles, 2 * multiprocessors(A.x.device)))
    cut = -(-col_tiles // each)
    parts = back = out = None
    root_a, root_b = (form.roots(A), form.roots(B)) if K is None else (None, None)
    norm_a, norm_b = (
        None if root_a is None else GROWN * _inverse(root_a),
        (None if root_b is None else _inverse(root_b)),
    )
    if w is not None:
        parts, back = split_weights(w if root_b is None else root_b[:, None] * w, C)
        out = torch.empty(cut, M, c, dtype=torch.float32, device=A.x.device)
    a, b = (
        TensorDescriptor.from_tensor(side.x, [block, shape.BK])
        for side, block in ((A, shape.BM), (B, shape.BN))
    )
    k_high, k_low = K, None
    if halves:
        k_high, k_low = (
            TensorDescriptor.from_tensor(part, [shape.BM, shape.BN // shape.parts])
            for part in (halves[0], halves[-1])
        )
    profile, number, order = form.profile
    with on_device(A.x):
        block_product[(row_tiles * cut,)](
            a,
            b,
            A.sq.contiguous(),
            B.sq.contiguous(),
            norm_a,
            norm_b,
            parts,
            back,
            k_high,
            k_low,
            0 if K is None else K.stride(0),
            out,
            M,
            N,
            D,
            c,
            row_tiles,
            each,
            form.unit(A),
            number,
            PROFILE=profile,
            ORDER=order,
            NORMALISE=root_a is not None,
            PRODUCT=w is not None,
            STORE="float32" if K is not None else STORES[len(halves)],
            BM=shape.BM,
            BN=shape.BN,
            BK=shape.BK,
            PARTS=shape.parts,
            C=C,
            TWO=form.two,
            ADDED=form.added(shape.BK, A.x.device),
            RESIDENT=D <= shape.BK,
            num_warps=shape.warps,
            num_stages=shape.stages,
        )
    if out is None:
        return None
    total = out.sum(0) if cut > 1 else out[0]
    return total if root_a is None else root_a[:, None] * total


def _inverse(root: Tensor) -> Tensor:
    return torch.where(root > 0, 1 / root, 0.0)


@lru_cache
def _roomy(device: torch.device) -> bool:
    """Whether a multiprocessor has the shared memory of a data-center GPU, for which tiles are
    sized.
    """
    return (
        device.type != "cuda"
        or getattr(
            torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 1 << 30
        )
        > 120_000
    )


@lru_cache
def multiprocessors(device: torch.device) -> int:
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 2
    )


STORES = ("", "high", "split")  # by the number of parts


def product(form: Form, A: Points, B: Points, w: Tensor) -> Tensor:
    """K(A, B) @ w for as many columns as fit on the chip."""
    if not (len(A) and len(B)):
        return w.new_zeros(len(A), w.shape[1])
    if len(B) > MOST_COLUMNS:
        return product(form, A, B[:MOST_COLUMNS], w[:MOST_COLUMNS]) + product(
            form, A, B[MOST_COLUMNS:], w[MOST_COLUMNS:]
        )
    return _launch(form, A, B, w)


def evaluate(form: Form, A: Points, B: Points, out: Tensor) -> Tensor:
    """K(A, B) in float32, written into `out` (r, t), whose rows are contiguous."""
    if len(A) and len(B):
        _launch(form, A, B, None, K=out)
    return out


class Halves:
    """K(A, B) held as two float16 parts, 22 bits in all, in 4 bytes a value, or as one: reads like
    a matrix, at the tensor cores' speed.

    It is filled by its first product, in the launch that makes that product, where K has all of
    its digits.
    """

    def __init__(self, form: Form, A: Points, B: Points, room: Tensor):
        """`room`: at least len(A) · (len(B) + 7) numbers, of float32 for two parts, of float16 for
        one.
        """
        self._form, self._A, self._B, self._filled = form, A, B, False
        wide = -(-len(B) // 8) * 8  # whole 16 bytes a row: what the copy engine asks for
        count = room.dtype.itemsize // 2
        held = room.view(torch.float16)[: count * len(A) * wide]
        self._parts = held.view(count, len(A), wide)

    def _fill(self, w: Weights) -> Weights:
        """K, and its product with w where there is one."""
        self._filled = True
        halves = [part[:, : len(self._B)] for part in self._parts]
        return _launch(self._form, self._A, self._B, w, halves=halves)

    def __matmul__(self, w: Tensor) -> Tensor:
        if not self._filled:
            if w.shape[1] <= on_chip(self._form.precision, self._A.x.shape[1]):
                return self._fill(w)
            self._fill(None)
        return self._product(w)

    def rmatmul(self, g: Tensor) -> Tensor:
        """Kᵀ @ g in one product: both parts of K, one below the other, against [g_high, g_low]
        below which stand [g_high, 0].
        """
        if not self._filled:
            self._fill(None)
        c, C, two = g.shape[1], _padded(g.shape[1]), len(self._parts) == 2
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        parts, back = split_weights(g if root_a is None else root_a[:, None] * g, C, stacked=two)
        K = self._parts.view(len(parts), -1)
        both = _in_runs(K.T, parts)[: len(self._B)]
        out = torch.add(both[:, :c], both[:, C : C + c]).mul_(back)
        return out if root_b is None else root_b[:, None] * out

    @property
    def T(self) -> Transposed:
        return Transposed(self)

    def _product(self, w: Tensor) -> Tensor:
        c, C = w.shape[1], _padded(w.shape[1])
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        parts, back = split_weights(w if root_b is None else root_b[:, None] * w, C)
        high, *low = self._parts[:, :, : len(w)]
        both = _in_runs(high, parts)
        out = torch.add(both[:, :c], both[:, C : C + c])
        for part in low:
            out += _in_runs(part, parts[:, :C])[:, :c]
        out *= back
        return out if root_a is None else root_a[:, None] * out

    def __getitem__(self, key: tuple[slice, slice]) -> Tensor:
        if not self._filled:
            self._fill(None)
        rows, cols = key
        high, *low = self._parts[:, rows, : len(self._B)][:, :, cols]
        K = high.float()
        for part in low:
            K += part
        K *= 1 / GROWN
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        return (
            K if root_a is None or root_b is None else K * root_a[rows, None] * root_b[None, cols]
        )


class Transposed:
    def __init__(self, K: Halves):
        self._K = K

    def __matmul__(self, g: Tensor) -> Tensor:
        return self._K.rmatmul(g)


def _in_runs(a: Tensor, b: Tensor) -> Tensor:
    """float16 @ float16 with the sum in float32, RUN terms at a time; the runs are added by
    ordinary additions, in the same launches.
    """
    if not a.is_cuda:
        return a.float() @ b.float()
    total = torch.mm(a[:, :RUN], b[:RUN], out_dtype=torch.float32)
    for start in range(RUN, len(b), RUN):
        run = slice(start, start + RUN)
        torch.addmm(total, a[:, run], b[run], out_dtype=torch.float32, out=total)
    return total
