"""K(A, B) @ w in one Triton kernel: feature product, norms, profile and the product with the weights before anything leaves the chip.

A program owns BM rows of A and a run of column tiles of B. For each tile the tensor cores sum x·z in float32 over d, the profile turns it
into K in registers, and K, split into two float16 parts, is multiplied by the weights, split likewise: 22 bits each, where one TF32
product would round K to 11. Kᵀ @ g is K(B, A) @ g. Programs' sums are added in a fixed order: a product gives the same bits each time.

The plain version of all this is `KernelProduct` without this file (product.py); tests/test_fused.py ties the two, on a GPU and, without
one, in Triton's interpreter. docs/gpu.md has the measurements behind the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..kernels import NAMED, Kernel, Points, Radial

SHIFT = tl.constexpr(15)  # K ≤ 1 is held 2^15 times larger when it is split: both float16 parts then keep their digits down to K = 2^-17
LOG2E = tl.constexpr(1.4426950408889634)
PI = tl.constexpr(3.141592653589793)


@triton.jit
def _acos(x):
    a = tl.abs(x)
    large = a > 0.5
    z = tl.where(large, 0.5 * (1 - a), a * a)
    s = tl.where(large, tl.sqrt(z), a)
    series = (((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2) * z + 1.6666752422e-1
    arcsine = series * z * s + s
    angle = tl.where(large, 2 * arcsine, PI / 2 - arcsine)
    return tl.where(x < 0, PI - angle, angle)


@triton.jit
def _relu_step(cos):
    kappa0 = 1 - _acos(cos) / PI
    return kappa0, tl.sqrt(tl.maximum(1 - cos * cos, 0.0)) / PI + cos * kappa0


@triton.jit
def _values(dot, sq_a, sq_b, unit, number, shift, PROFILE: tl.constexpr, ORDER: tl.constexpr):
    """2^shift · K from dot products and squared norms of features; `unit` takes squares of features to squares of bandwidths."""
    grown = tl.exp2(shift)
    if PROFILE == "linear":
        return dot * (unit * grown)
    if PROFILE == "polynomial":
        base = dot * unit + number
        power = base * grown
        for _ in tl.static_range(ORDER - 1):
            power *= base
        return power
    if PROFILE == "arc_cosine" or PROFILE == "relu_ntk":
        norms = tl.sqrt(sq_a)[:, None] * tl.sqrt(sq_b)[None, :]
        cos = tl.minimum(tl.maximum(dot / tl.maximum(norms, 1e-37), -1.0), 1.0)
        norms *= unit
        if PROFILE == "relu_ntk":
            theta = cos
            for _ in tl.static_range(ORDER):
                kappa0, cos = _relu_step(cos)
                cos = tl.minimum(cos, 1.0)
                theta = theta * kappa0 + cos
            return theta * norms * (grown / (ORDER + 1))
        if ORDER == 0:
            return grown - _acos(cos) * (grown / PI)
        if ORDER == 1:
            kappa0, kappa1 = _relu_step(cos)
            return kappa1 * norms * grown
        sine = tl.sqrt(tl.maximum(1 - cos * cos, 0.0))
        return (3 * sine * cos + (PI - _acos(cos)) * (1 + 2 * cos * cos)) * norms * norms * (grown / (3 * PI))
    sq_dist = tl.maximum((sq_a[:, None] + sq_b[None, :]) - 2 * dot, 0.0)
    if PROFILE == "gaussian":
        return tl.exp2(sq_dist * (-0.5 * LOG2E * unit) + shift)
    if PROFILE == "rational_quadratic":
        return tl.exp2(-number * tl.log2(1 + sq_dist * (unit / (2 * number))) + shift)
    if PROFILE == "generalised_exponential":  # r^γ, with 0^γ = 0: log2(0) = −∞
        return tl.exp2(tl.exp2(tl.log2(sq_dist * unit) * (0.5 * number)) * -LOG2E + shift)
    if PROFILE == "laplacian":
        return tl.exp2(tl.sqrt(sq_dist) * (-LOG2E * tl.sqrt(unit)) + shift)
    r = tl.sqrt(sq_dist) * tl.sqrt(unit * ORDER)  # matern, ORDER = 2ν
    if ORDER == 3:
        return (1 + r) * tl.exp2(r * -LOG2E + shift)
    return (1 + r + r * r / 3) * tl.exp2(r * -LOG2E + shift)


@triton.jit
def _consume(
    dot, start, out, sq_a, norm_a, sq_b_ptr, norm_b_ptr, w_ptr, k_high, k_low, stride, row, M, N, unit, number,
    PROFILE: tl.constexpr, ORDER: tl.constexpr, NORMALISE: tl.constexpr, PRODUCT: tl.constexpr, STORE: tl.constexpr,
    BM: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One tile of dot products becomes K, which is stored, multiplied by its rows of w, or both."""
    cols = start + tl.arange(0, WIDTH)
    sq_b = tl.load(sq_b_ptr + cols, mask=cols < N, other=0.0)
    if STORE == "float32":
        rows = row + tl.arange(0, BM)
        at = rows[:, None].to(tl.int64) * stride + cols[None, :]
        tl.store(k_high + at, _values(dot, sq_a, sq_b, unit, number, 0.0, PROFILE, ORDER), mask=(rows[:, None] < M) & (cols[None, :] < N))
    else:
        K = _values(dot, sq_a, sq_b, unit, number, SHIFT * 1.0, PROFILE, ORDER)
        if NORMALISE:
            norm_b = tl.load(norm_b_ptr + cols, mask=cols < N, other=0.0)
            K = K * norm_a[:, None] * norm_b[None, :]
        K_high = K.to(tl.float16)
        K_low = (K - K_high.to(tl.float32)).to(tl.float16)
        if STORE == "split":
            k_high.store([row, start], K_high)
            k_low.store([row, start], K_low)
        if PRODUCT:
            at = cols[:, None] * (2 * C) + tl.arange(0, C)[None, :]
            w_high = tl.load(w_ptr + at, mask=cols[:, None] < N, other=0.0)
            w_low = tl.load(w_ptr + C + at, mask=cols[:, None] < N, other=0.0)
            # A sum of its own for each tile: tensor cores cut off what they add up, ordinary additions round.
            part = tl.dot(K_low, w_high)
            part = tl.dot(K_high, w_low, part)
            out += tl.dot(K_high, w_high, part)
    return out


@triton.jit
def _fused(
    a, b, sq_a_ptr, sq_b_ptr, norm_a_ptr, norm_b_ptr, w_ptr, back_ptr, k_high, k_low, stride, out_ptr, M, N, D, c,
    row_tiles, per_program, unit, number,
    PROFILE: tl.constexpr, ORDER: tl.constexpr, NORMALISE: tl.constexpr, PRODUCT: tl.constexpr, STORE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, TWO: tl.constexpr, RESIDENT: tl.constexpr,
):  # fmt: skip
    """STORE: "" nothing, "float32" K through a pointer, "split" its two parts through descriptors. PRODUCT: K @ w, one sum per program.

    TWO: features are float16 pairs, the low parts D columns behind the high ones; what low times low would add is below float32.
    """
    program = tl.program_id(0)
    i, split = program % row_tiles, program // row_tiles  # neighbours share the column tile: it is read once from memory
    row = i * BM
    rows = row + tl.arange(0, BM)
    sq_a = tl.load(sq_a_ptr + rows, mask=rows < M, other=0.0)
    norm_a = tl.load(norm_a_ptr + rows, mask=rows < M, other=0.0) if NORMALISE else sq_a
    out = tl.zeros((BM, C), tl.float32)
    first = split * per_program
    last = tl.minimum(first + per_program, tl.cdiv(N, BN))
    if RESIDENT:  # all features fit one tile: A's rows stay on the chip, and the loop over B is the one that is pipelined
        x = a.load([row, 0])
        if TWO:
            x_low = a.load([row, D])
    for j in range(first, last):
        start = j * BN
        if RESIDENT:
            z = b.load([start, 0])
            dot = tl.dot(x, z.T, input_precision="tf32")
            if TWO:
                dot = tl.dot(x, b.load([start, D]).T, dot)
                dot = tl.dot(x_low, z.T, dot)
        else:
            dot = tl.zeros((BM, BN), tl.float32)
            for k in range(0, D, BK):
                if TWO:
                    x = a.load([row, k])
                    z = b.load([start, k])
                    dot = tl.dot(x, z.T, dot)
                    dot = tl.dot(x, b.load([start, D + k]).T, dot)
                    dot = tl.dot(a.load([row, D + k]), z.T, dot)
                else:
                    dot = tl.dot(a.load([row, k]), b.load([start, k]).T, dot, input_precision="tf32")
        if PARTS == 1:
            out = _consume(dot, start, out, sq_a, norm_a, sq_b_ptr, norm_b_ptr, w_ptr, k_high, k_low, stride, row, M, N, unit, number,
                           PROFILE, ORDER, NORMALISE, PRODUCT, STORE, BM, BN, C)  # fmt: skip
        else:  # half a tile at a time: half the registers
            left, right = tl.split(tl.permute(tl.reshape(dot, (BM, 2, BN // 2)), (0, 2, 1)))
            out = _consume(left, start, out, sq_a, norm_a, sq_b_ptr, norm_b_ptr, w_ptr, k_high, k_low, stride, row, M, N, unit, number,
                           PROFILE, ORDER, NORMALISE, PRODUCT, STORE, BM, BN // 2, C)  # fmt: skip
            out = _consume(right, start + BN // 2, out, sq_a, norm_a, sq_b_ptr, norm_b_ptr, w_ptr, k_high, k_low, stride, row, M, N, unit,
                           number, PROFILE, ORDER, NORMALISE, PRODUCT, STORE, BM, BN // 2, C)  # fmt: skip
    if PRODUCT:
        outputs = tl.arange(0, C)
        back = tl.load(back_ptr + outputs, mask=outputs < c, other=0.0)
        at = (split.to(tl.int64) * M + rows[:, None]) * c + outputs[None, :]
        tl.store(out_ptr + at, out * back[None, :], mask=(rows[:, None] < M) & (outputs[None, :] < c))


@triton.jit
def _norms(a, out_ptr, M, D, BM: tl.constexpr, BK: tl.constexpr, TWO: tl.constexpr):
    """‖x‖² summed in the very order in which `_fused` sums x·z: rows that coincide are at distance 0 exactly."""
    row = tl.program_id(0) * BM
    dot = tl.zeros((BM, BM), tl.float32)
    for k in range(0, D, BK):
        x = a.load([row, k])
        dot = tl.dot(x, x.T, dot, input_precision="tf32")
        if TWO:
            low = a.load([row, D + k])
            dot = tl.dot(x, low.T, dot)
            dot = tl.dot(low, x.T, dot)
    own = tl.arange(0, BM)
    norms = tl.sum(tl.where(own[:, None] == own[None, :], dot, 0.0), 1)
    tl.store(out_ptr + row + own, norms, mask=row + own < M)


@triton.jit
def _exponent(largest):
    """e with largest · 2^-e from 2^13 to below 2^14: weights scaled so fit float16, with room for two digits below."""
    return tl.maximum((((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127 - 13).to(tl.float32), -100.0)


@triton.jit
def _split_weights(w_ptr, largest_ptr, out_ptr, back_ptr, N, c, C, STACKED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    rows, outputs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = (rows[:, None] < N) & (outputs[None, :] < C)
    w = tl.load(w_ptr + rows[:, None].to(tl.int64) * c + outputs[None, :], mask=inside & (outputs[None, :] < c), other=0.0)
    exponent = _exponent(tl.load(largest_ptr + outputs, mask=outputs < c, other=0.0))
    w = w * tl.exp2(-exponent)[None, :]
    high = w.to(tl.float16)
    at = out_ptr + rows[:, None].to(tl.int64) * (2 * C) + outputs[None, :]
    tl.store(at, high, mask=inside)
    tl.store(at + C, (w - high.to(tl.float32)).to(tl.float16), mask=inside)
    if STACKED:
        at = out_ptr + (rows.to(tl.int64) + N)[:, None] * (2 * C) + outputs[None, :]
        tl.store(at, high, mask=inside)
        tl.store(at + C, tl.zeros_like(high), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(back_ptr + outputs, tl.exp2(exponent - SHIFT), mask=outputs < c)


@dataclass(frozen=True)
class Shape:
    """How one launch is cut: rows, columns and features of a tile, and what the compiler is told."""

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    parts: int = 1


@lru_cache(maxsize=4096)
def splits(row_tiles: int, col_tiles: int, programs: int) -> int:
    """Into how many runs the column tiles are cut, so that the last round of programs leaves few multiprocessors idle."""

    def cost(cut: int) -> float:
        each = -(-col_tiles // cut)
        return -(-row_tiles * -(-col_tiles // each) // programs) * (each + 0.3)  # 0.3: what starting a program costs, in tiles

    # Candidates: the cuts that fill 1, 2, 3 … rounds of programs, or stay just below.
    full = [max(1, rounds * programs // row_tiles) for rounds in range(1, 9)]
    return min({min(col_tiles, cut) for cut in [1, *full]}, key=cost)


@dataclass(frozen=True)
class Form:
    """How one kernel in one precision is spelled in `_fused`: features times `scale`, held as `dtype`, as pairs where `two`."""

    kernel: Kernel
    dtype: torch.dtype
    two: bool
    scale: float

    @property
    def tile(self) -> int:
        """Features of a tile of a long row; tiles of two-part or float32 features take twice the bytes."""
        return 32 if self.two or self.dtype == torch.float32 else 64

    def width(self, d: int) -> int:
        """d padded: to whole tiles, or for a short row to a power of two that is one tile."""
        short = max(16, triton.next_power_of_2(d))
        return short if short <= self.tile else -(-d // self.tile) * self.tile if self.two else -(-d // 16) * 16

    def shape(self, D: int, C: int) -> Shape:
        resident = 32 if self.tile == 32 else 128
        BK = triton.next_power_of_2(D) if resident >= D else self.tile
        if C > 16:
            return Shape(64, 64, min(BK, 64), 4, 2)
        if D <= 32:
            return Shape(128, 64, BK, 4, 3)
        return Shape(128, 128, BK, 4, 2 if D <= BK else 3, 2)

    def outputs(self, d: int) -> int:
        """The most columns of w that are multiplied inside the kernel: their sums must fit the registers beside the tile."""
        return 64 if d <= 128 and not self.two and self.dtype != torch.float32 else 16

    def points(self, x: Tensor) -> Points:
        """Features x (r, d) in float32, rounded to this form and padded once."""
        d, D = x.shape[1], self.width(x.shape[1])
        if self.scale != 1:
            x = x * self.scale
        if self.dtype == torch.float16:
            x = x.clamp_(-65504, 65504)
        if d == D and not self.two:
            held = x.to(self.dtype).contiguous()
        else:
            held = torch.zeros(len(x), D * (1 + self.two), dtype=self.dtype, device=x.device)
            held[:, :d] = x
            if self.two:
                held[:, D : D + d] = x - held[:, :d].float()
        sq = torch.empty(len(x), dtype=torch.float32, device=x.device)
        if len(x):
            BK = min(self.tile, triton.next_power_of_2(D))
            rows = TensorDescriptor.from_tensor(held, [64, BK])
            _norms[(triton.cdiv(len(x), 64),)](rows, sq, len(x), D, BM=64, BK=BK, TWO=self.two)
        return Points(held, sq)

    def wide(self, A: Points) -> Tensor:
        """The features that A holds, in float64 and in units of the bandwidth."""
        x = A.x.double()
        return (x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :] if self.two else x) / self.scale

    def unit(self, D: int) -> float:
        # What tensor cores cut off makes ‖x‖² about 0.6·2^-24 smaller for each 16 features (measured on an H200, docs/gpu.md); distances
        # of far rows are made of it, so it is given back here.
        loss = 0.6 * D / 16 * 2.0**-23 if isinstance(self.kernel, Radial) and torch.cuda.is_available() else 0.0
        return (1 + loss) / self.scale**2

    def roots(self, A: Points) -> Tensor | None:
        """√K(a,a), by which kernels that are not bounded by 1 are divided while they are split; None for those that are."""
        if isinstance(self.kernel, Radial):
            return None
        return self.kernel.diagonal(Points(A.x, A.sq / self.scale**2)).clamp(min=0).sqrt()


def form_of(kernel: Kernel, precision: str, scale: float) -> Form | None:
    """The fused form of a kernel, or None where plain torch has to do: a kernel of the user's own, or float64."""
    if type(kernel) not in NAMED.values() or precision == "float64":
        return None
    dtypes = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float16}
    return Form(kernel, dtypes[precision], precision == "float32", scale)


def split_weights(w: Tensor, C: int, stacked: bool = False) -> tuple[Tensor, Tensor]:
    """(p, 2C) float16: the high parts of w's columns, then the low parts, both scaled by a power of two for each column; and the (c,)
    factors that take products with 2^SHIFT·K back. `stacked` adds p rows more, high parts and zeros: what the low part of K meets."""
    w = w.contiguous()
    largest = torch.linalg.vector_norm(w, torch.inf, dim=0)
    parts = torch.empty((1 + stacked) * len(w), 2 * C, dtype=torch.float16, device=w.device)
    back = torch.empty_like(largest)
    WIDTH = min(64, triton.next_power_of_2(C))
    grid = triton.cdiv(len(w), 4096 // WIDTH), triton.cdiv(C, WIDTH)
    _split_weights[grid](w, largest, parts, back, len(w), w.shape[1], C, STACKED=stacked, BLOCK=4096 // WIDTH, WIDTH=WIDTH)
    return parts, back


def _padded(c: int) -> int:
    """Columns of a matrix product: multiples of 16, what tensor cores take."""
    return -(-c // 16) * 16


def _launch(
    form: Form, A: Points, B: Points, w: Tensor | None, K: Tensor | None = None, high: Tensor | None = None, low: Tensor | None = None
):
    M, N, D, c = len(A), len(B), A.x.shape[1] // (1 + form.two), 1 if w is None else w.shape[1]
    C = max(16, triton.next_power_of_2(c))
    shape = form.shape(D, C)
    row_tiles, col_tiles = triton.cdiv(M, shape.BM), triton.cdiv(N, shape.BN)
    each = -(-col_tiles // splits(row_tiles, col_tiles, 2 * _multiprocessors(A.x.device)))
    cut = -(-col_tiles // each)
    parts = back = out = None
    root_a, root_b = (form.roots(A), form.roots(B)) if K is None else (None, None)
    if w is not None:
        parts, back = split_weights(w if root_b is None else root_b[:, None] * w, C)
        out = torch.empty(cut, M, c, dtype=torch.float32, device=A.x.device)
    a, b = (TensorDescriptor.from_tensor(side.x, [block, shape.BK]) for side, block in ((A, shape.BM), (B, shape.BN)))
    k_high, k_low = K, None
    if high is not None and low is not None:
        k_high, k_low = (TensorDescriptor.from_tensor(part, [shape.BM, shape.BN // shape.parts]) for part in (high, low))
    profile, number, order = form.kernel.profile_code()
    _fused[(row_tiles * cut,)](
        a, b, A.sq, B.sq, None if root_a is None else _inverse(root_a), None if root_b is None else _inverse(root_b), parts, back,
        k_high, k_low, 0 if K is None else K.stride(0), out, M, N, D, c, row_tiles, each, form.unit(D), number,
        PROFILE=profile, ORDER=order, NORMALISE=root_a is not None, PRODUCT=w is not None,
        STORE="float32" if K is not None else "split" if high is not None else "",
        BM=shape.BM, BN=shape.BN, BK=shape.BK, PARTS=shape.parts, C=C, TWO=form.two, RESIDENT=D <= shape.BK,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    if out is None:
        return None
    total = out.sum(0) if cut > 1 else out[0]
    return total if root_a is None else root_a[:, None] * total


def _inverse(root: Tensor) -> Tensor:
    return torch.where(root > 0, 1 / root, 0.0)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def product(form: Form, A: Points, B: Points, w: Tensor) -> Tensor:
    """K(A, B) @ w for as many columns as `form.outputs` says."""
    if not (len(A) and len(B)):
        return w.new_zeros(len(A), w.shape[1])
    return _launch(form, A, B, w)


def evaluate(form: Form, A: Points, B: Points, out: Tensor) -> Tensor:
    """K(A, B) in float32, written into `out` (r, t), whose rows are contiguous."""
    if len(A) and len(B):
        _launch(form, A, B, None, K=out)
    return out


class Halves:
    """K(A, B) held as two float16 parts, 22 bits in all, in 4 bytes a value: reads like a matrix, at the tensor cores' speed.

    It is filled by its first product, in the launch that makes that product.
    """

    def __init__(self, form: Form, A: Points, B: Points, room: Tensor):
        """`room`: at least len(A) · (len(B) + 7) float32 numbers."""
        self._form, self._A, self._B, self._filled = form, A, B, False
        wide = -(-len(B) // 8) * 8  # rows of 16 bytes: what the copy engine asks for
        self._parts = room.view(torch.float16)[: 2 * len(A) * wide].view(2, len(A), wide)

    def _fill(self, w: Tensor | None) -> Any:
        self._filled = True
        return _launch(self._form, self._A, self._B, w, high=self._parts[0, :, : len(self._B)], low=self._parts[1, :, : len(self._B)])

    def __matmul__(self, w: Tensor) -> Tensor:
        if not self._filled:
            if w.shape[1] <= self._form.outputs(self._A.x.shape[1]):
                return self._fill(w)
            self._fill(None)
        return self._product(w)

    def rmatmul(self, g: Tensor) -> Tensor:
        """Kᵀ @ g in one product: both parts of K, one below the other, against [g_high, g_low] below which stand [g_high, 0]."""
        if not self._filled:
            self._fill(None)
        c, C = g.shape[1], _padded(g.shape[1])
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        parts, back = split_weights(g if root_a is None else root_a[:, None] * g, C, stacked=True)
        both = _mm(self._parts.view(len(parts), -1).T, parts)[: len(self._B)]
        out = torch.add(both[:, :c], both[:, C : C + c]).mul_(back)
        return out if root_b is None else root_b[:, None] * out

    @property
    def T(self) -> Transposed:
        return Transposed(self)

    def _product(self, w: Tensor) -> Tensor:
        c, C = w.shape[1], _padded(w.shape[1])
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        parts, back = split_weights(w if root_b is None else root_b[:, None] * w, C)
        out = torch.zeros(len(self._A), c, dtype=torch.float32, device=w.device)
        for start in range(0, len(w), RUN):
            run = slice(start, min(start + RUN, len(w)))
            both = _mm(self._parts[0, :, run], parts[run])
            out += both[:, :c] + both[:, C : C + c] + _mm(self._parts[1, :, run], parts[run, :C])[:, :c]
        out *= back
        return out if root_a is None else root_a[:, None] * out

    def __getitem__(self, key: tuple[slice, slice]) -> Tensor:
        if not self._filled:
            self._fill(None)
        rows, cols = key
        high, low = self._parts[:, rows, : len(self._B)][:, :, cols]
        K = torch.add(high.float(), low).mul_(2.0**-SHIFT.value)
        root_a, root_b = self._form.roots(self._A), self._form.roots(self._B)
        return K if root_a is None or root_b is None else K * root_a[rows, None] * root_b[None, cols]


class Transposed:
    def __init__(self, K: Halves):
        self._K = K

    def __matmul__(self, g: Tensor) -> Tensor:
        return self._K.rmatmul(g)


RUN = 4096  # columns that one matrix product adds up where there are many outputs: tensor cores cut off what they add, additions round


def _mm(a: Tensor, b: Tensor) -> Tensor:
    """float16 @ float16 with the sum in float32."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
