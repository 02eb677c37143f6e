"""The Triton kernels: a kernel block and its product, norms, and the splitting of weights; in
float64 the product of a block, and of a matrix that is held.

How they are called is in fused.py and fused64.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

# K ≤ 1 is held 2^15 times larger when it is split: both float16 parts keep their digits to 2^-17.
SHIFT = tl.constexpr(15)
LOG2E = tl.constexpr(1.4426950408889634)
PI = tl.constexpr(3.141592653589793)


@triton.jit
def _acos(x):
    a = tl.abs(x)
    large = a > 0.5
    z = tl.where(large, 0.5 * (1 - a), a * a)
    s = tl.where(large, tl.sqrt(z), a)
    series = (
        ((4.2163199048e-2 * z + 2.4181311049e-2) * z + 4.5470025998e-2) * z + 7.4953002686e-2
    ) * z + 1.6666752422e-1
    arcsine = series * z * s + s
    angle = tl.where(large, 2 * arcsine, PI / 2 - arcsine)
    return tl.where(x < 0, PI - angle, angle)


@triton.jit
def _relu_step(cos):
    kappa0 = 1 - _acos(cos) / PI
    return kappa0, tl.sqrt(tl.maximum(1 - cos * cos, 0.0)) / PI + cos * kappa0


@triton.jit
def _log2_1p(x):
    """log2(1 + x), x ≥ 0, to float32's digits relatively: below 1/2 by the series of 2 artanh(x
    / (2 + x)), since 1 + x rounds x.
    """
    s = x / (2 + x)
    q = s * s
    series = 2 * LOG2E * s * (1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9)))))
    return tl.where(x < 0.5, series, tl.log2(1 + x))


@triton.jit
def _values(dot, sq_a, sq_b, unit, number, shift, PROFILE: tl.constexpr, ORDER: tl.constexpr):
    """2^shift · K from dot products and squared norms of features; `unit` takes squares of
    features to squares of bandwidths.
    """
    grown = tl.exp2(shift)
    if PROFILE == "linear":
        return dot * (unit * grown)
    elif PROFILE == "polynomial":
        base = dot * unit + number
        power = base * grown
        for _ in tl.static_range(ORDER - 1):
            power *= base
        return power
    elif PROFILE == "arc_cosine" or PROFILE == "relu_ntk":
        norms = tl.sqrt(sq_a)[:, None] * tl.sqrt(sq_b)[None, :]
        cos = tl.minimum(tl.maximum(tl.where(norms > 0, dot / norms, 0.0), -1.0), 1.0)
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
        return (
            (3 * sine * cos + (PI - _acos(cos)) * (1 + 2 * cos * cos))
            * norms
            * norms
            * (grown / (3 * PI))
        )
    else:
        return _radial(
            tl.maximum((sq_a[:, None] + sq_b[None, :]) - 2 * dot, 0.0),
            unit,
            number,
            shift,
            PROFILE,
            ORDER,
        )


@triton.jit
def _radial(sq_dist, unit, number, shift, PROFILE: tl.constexpr, ORDER: tl.constexpr):
    if PROFILE == "gaussian":
        return tl.exp2(sq_dist * (-0.5 * LOG2E * unit) + shift)
    elif PROFILE == "rational_quadratic":
        return tl.exp2(-number * _log2_1p(sq_dist * (unit / (2 * number))) + shift)
    elif PROFILE == "generalised_exponential":  # r^γ, with 0^γ = 0: log2(0) = −∞
        return tl.exp2(tl.exp2(tl.log2(sq_dist * unit) * (0.5 * number)) * -LOG2E + shift)
    elif PROFILE == "laplacian":
        return tl.exp2(tl.sqrt(sq_dist) * (-LOG2E * tl.sqrt(unit)) + shift)
    elif PROFILE == "matern" and (ORDER == 3 or ORDER == 5):  # ORDER = 2ν
        r = tl.sqrt(sq_dist) * tl.sqrt(unit * ORDER)
        if ORDER == 3:
            return (1 + r) * tl.exp2(r * -LOG2E + shift)
        return (1 + r + r * r / 3) * tl.exp2(r * -LOG2E + shift)
    else:
        tl.static_assert(False, "fused.PROFILES names a profile that has no branch here")


@triton.jit
def _consume(
    dot,
    start,
    out,
    sq_a,
    norm_a,
    sq_b_ptr,
    norm_b_ptr,
    w_ptr,
    k_high,
    k_low,
    stride,
    row,
    M,
    N,
    unit,
    number,
    PROFILE: tl.constexpr,
    ORDER: tl.constexpr,
    NORMALISE: tl.constexpr,
    PRODUCT: tl.constexpr,
    STORE: tl.constexpr,
    BM: tl.constexpr,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
):
    """One tile of dot products becomes K, which is stored, multiplied by its rows of w, or both."""
    cols = start + tl.arange(0, WIDTH)
    sq_b = tl.load(sq_b_ptr + cols, mask=cols < N, other=0.0)
    if STORE == "float32":
        rows = row + tl.arange(0, BM)
        at = rows[:, None].to(tl.int64) * stride + cols[None, :]
        tl.store(
            k_high + at,
            _values(dot, sq_a, sq_b, unit, number, 0.0, PROFILE, ORDER),
            mask=(rows[:, None] < M) & (cols[None, :] < N),
        )
    else:
        if NORMALISE:  # 2^SHIFT is in norm_a: K alone may be near the end of float32
            norm_b = tl.load(norm_b_ptr + cols, mask=cols < N, other=0.0)
            K = (
                _values(dot, sq_a, sq_b, unit, number, 0.0, PROFILE, ORDER)
                * norm_b[None, :]
                * norm_a[:, None]
            )
        else:
            K = _values(dot, sq_a, sq_b, unit, number, SHIFT * 1.0, PROFILE, ORDER)
        K_high = K.to(tl.float16)
        K_low = (K - K_high.to(tl.float32)).to(tl.float16)
        if STORE == "high" or STORE == "split":
            k_high.store([row, start], K_high)
        if STORE == "split":
            k_low.store([row, start], K_low)
        if PRODUCT:
            at = cols[:, None] * (2 * C) + tl.arange(0, C)[None, :]
            w_high = tl.load(w_ptr + at, mask=cols[:, None] < N, other=0.0)
            w_low = tl.load(w_ptr + C + at, mask=cols[:, None] < N, other=0.0)
            # A sum of its own for each tile: tensor cores cut off what they add up, ordinary
            # additions round.
            part = tl.dot(K_low, w_high)
            part = tl.dot(K_high, w_low, part)
            out += tl.dot(K_high, w_high, part)
    return out


# One build serves any number of rows and wherever a slice of them begins.
@triton.jit(
    do_not_specialize=["M", "N", "c", "row_tiles", "per_program"],
    do_not_specialize_on_alignment=["sq_a_ptr", "sq_b_ptr", "norm_a_ptr", "norm_b_ptr"],
)
def block_product(
    a,
    b,
    sq_a_ptr,
    sq_b_ptr,
    norm_a_ptr,
    norm_b_ptr,
    w_ptr,
    back_ptr,
    k_high,
    k_low,
    stride,
    out_ptr,
    M,
    N,
    D,
    c,
    row_tiles,
    per_program,
    unit,
    number,
    PROFILE: tl.constexpr,
    ORDER: tl.constexpr,
    NORMALISE: tl.constexpr,
    PRODUCT: tl.constexpr,
    STORE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    TWO: tl.constexpr,
    ADDED: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """K(A, B), stored or multiplied by w, tile by tile.

    STORE: "" nothing, "float32" K through a pointer, "split" its two parts through descriptors,
    "high" the first of them. PRODUCT: K @ w, one sum per program.

    TWO: features are float16 pairs, the low parts D columns behind the high ones; what low times
    low would add is below float32. ADDED: of 8-bit features, how many products tensor cores add up
    by themselves, in 14 bits; 0 of others.
    """
    program = tl.program_id(0)
    # Neighbours share the column tile: it is read once from memory.
    i, split = program % row_tiles, program // row_tiles
    row = i * BM
    rows = row + tl.arange(0, BM)
    sq_a = tl.load(sq_a_ptr + rows, mask=rows < M, other=0.0)
    norm_a = tl.load(norm_a_ptr + rows, mask=rows < M, other=0.0) if NORMALISE else sq_a
    out = tl.zeros((BM, C), tl.float32)
    first = split * per_program
    last = tl.minimum(first + per_program, tl.cdiv(N, BN))
    # All features fit one tile: A's rows stay on the chip, and the loop over B is pipelined.
    if RESIDENT:
        x = a.load([row, 0])
        if TWO:
            x_low = a.load([row, D])
    for j in range(first, last):
        start = j * BN
        if RESIDENT:
            z = b.load([start, 0])
            dot = tl.dot(x, z.T, input_precision="tf32", max_num_imprecise_acc=ADDED)
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
                    dot = tl.dot(
                        a.load([row, k]),
                        b.load([start, k]).T,
                        dot,
                        input_precision="tf32",
                        max_num_imprecise_acc=ADDED,
                    )
        if PARTS == 1:
            out = _consume(
                dot,
                start,
                out,
                sq_a,
                norm_a,
                sq_b_ptr,
                norm_b_ptr,
                w_ptr,
                k_high,
                k_low,
                stride,
                row,
                M,
                N,
                unit,
                number,
                PROFILE,
                ORDER,
                NORMALISE,
                PRODUCT,
                STORE,
                BM,
                BN,
                C,
            )
        else:  # half a tile at a time: half the registers
            left, right = tl.split(tl.permute(tl.reshape(dot, (BM, 2, BN // 2)), (0, 2, 1)))
            out = _consume(
                left,
                start,
                out,
                sq_a,
                norm_a,
                sq_b_ptr,
                norm_b_ptr,
                w_ptr,
                k_high,
                k_low,
                stride,
                row,
                M,
                N,
                unit,
                number,
                PROFILE,
                ORDER,
                NORMALISE,
                PRODUCT,
                STORE,
                BM,
                BN // 2,
                C,
            )
            out = _consume(
                right,
                start + BN // 2,
                out,
                sq_a,
                norm_a,
                sq_b_ptr,
                norm_b_ptr,
                w_ptr,
                k_high,
                k_low,
                stride,
                row,
                M,
                N,
                unit,
                number,
                PROFILE,
                ORDER,
                NORMALISE,
                PRODUCT,
                STORE,
                BM,
                BN // 2,
                C,
            )
    if PRODUCT:
        outputs = tl.arange(0, C)
        back = tl.load(back_ptr + outputs, mask=outputs < c, other=0.0)
        at = (split.to(tl.int64) * M + rows[:, None]) * c + outputs[None, :]
        tl.store(
            out_ptr + at, out * back[None, :], mask=(rows[:, None] < M) & (outputs[None, :] < c)
        )


@triton.jit(do_not_specialize=["M"])
def norms(
    a,
    out_ptr,
    M,
    D,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TWO: tl.constexpr,
    ADDED: tl.constexpr,
):
    """‖x‖² summed in the very order in which `block_product` sums x·z: rows that coincide are at
    distance 0 exactly.
    """
    row = tl.program_id(0) * BM
    dot = tl.zeros((BM, BM), tl.float32)
    for k in range(0, D, BK):
        x = a.load([row, k])
        dot = tl.dot(x, x.T, dot, input_precision="tf32", max_num_imprecise_acc=ADDED)
        if TWO:
            low = a.load([row, D + k])
            dot = tl.dot(x, low.T, dot)
            dot = tl.dot(low, x.T, dot)
    own = tl.arange(0, BM)
    norms = tl.sum(tl.where(own[:, None] == own[None, :], dot, 0.0), 1)
    tl.store(out_ptr + row + own, norms, mask=row + own < M)


@triton.jit
def _exponent(largest):
    """e with largest · 2^-e from 2^13 to below 2^14: weights scaled so fit float16, with room
    for two digits below.
    """
    return tl.maximum(
        (((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127 - 13).to(tl.float32), -100.0
    )


@triton.jit(do_not_specialize=["N", "c"])
def split_columns(
    w_ptr,
    largest_ptr,
    out_ptr,
    back_ptr,
    N,
    c,
    C,
    STACKED: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows, outputs = (
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK),
        tl.program_id(1) * WIDTH + tl.arange(0, WIDTH),
    )
    inside = (rows[:, None] < N) & (outputs[None, :] < C)
    w = tl.load(
        w_ptr + rows[:, None].to(tl.int64) * c + outputs[None, :],
        mask=inside & (outputs[None, :] < c),
        other=0.0,
    )
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


@triton.jit(do_not_specialize=["M", "N", "c", "row_tiles", "per_program"])
def block_product64(
    a_ptr,
    b_ptr,
    sq_a_ptr,
    sq_b_ptr,
    w_ptr,
    numbers_ptr,
    out_ptr,
    M,
    N,
    D,
    c,
    row_tiles,
    per_program,
    PROFILE: tl.constexpr,
    ORDER: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
):
    """K(A, B) @ w, tile by tile.

    `numbers`: the unit and the number of the profile, which Triton would pass in float32.
    """
    program = tl.program_id(0)
    i, split = program % row_tiles, program // row_tiles
    rows = i * BM + tl.arange(0, BM)
    features, outputs = tl.arange(0, BK), tl.arange(0, C)
    sq_a = tl.load(sq_a_ptr + rows, mask=rows < M, other=0.0)
    unit, number = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    at_a = a_ptr + rows[:, None].to(tl.int64) * D + features[None, :]
    out = tl.zeros((BM, C), tl.float64)
    first = split * per_program
    for j in range(first, tl.minimum(first + per_program, tl.cdiv(N, BN))):
        cols = j * BN + tl.arange(0, BN)
        at_b = b_ptr + cols[None, :].to(tl.int64) * D + features[:, None]
        dot = tl.zeros((BM, BN), tl.float64)
        for k in range(0, D, BK):
            x = tl.load(at_a + k, mask=rows[:, None] < M, other=0.0)
            z = tl.load(at_b + k, mask=cols[None, :] < N, other=0.0)
            dot = tl.dot(x, z, dot, out_dtype=tl.float64)
        sq_b = tl.load(sq_b_ptr + cols, mask=cols < N, other=0.0)
        K = _values(dot, sq_a, sq_b, unit, number, 0.0, PROFILE, ORDER)
        w = tl.load(
            w_ptr + cols[:, None].to(tl.int64) * c + outputs[None, :],
            mask=(cols[:, None] < N) & (outputs[None, :] < c),
            other=0.0,
        )
        out = tl.dot(K, w, out, out_dtype=tl.float64)
    at = (split.to(tl.int64) * M + rows[:, None]) * c + outputs[None, :]
    tl.store(out_ptr + at, out, mask=(rows[:, None] < M) & (outputs[None, :] < c))


@triton.jit(do_not_specialize=["M", "N", "c", "row_tiles", "per_program"])
def held_product(
    k_ptr,
    stride,
    w_ptr,
    out_ptr,
    M,
    N,
    c,
    row_tiles,
    per_program,
    TRANSPOSED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    C: tl.constexpr,
):
    """K @ w of a float32 matrix (M, N), or of its transpose as it lies in memory."""
    program = tl.program_id(0)
    i, split = program % row_tiles, program // row_tiles
    rows, outputs = i * BM + tl.arange(0, BM), tl.arange(0, C)
    out = tl.zeros((BM, C), tl.float64)
    first = split * per_program
    for j in range(first, tl.minimum(first + per_program, tl.cdiv(N, BN))):
        cols = j * BN + tl.arange(0, BN)
        if TRANSPOSED:
            at = cols[:, None].to(tl.int64) * stride + rows[None, :]
            K = tl.load(k_ptr + at, mask=(cols[:, None] < N) & (rows[None, :] < M), other=0.0).T
        else:
            at = rows[:, None].to(tl.int64) * stride + cols[None, :]
            K = tl.load(k_ptr + at, mask=(cols[None, :] < N) & (rows[:, None] < M), other=0.0)
        K = K.to(tl.float64)
        if C == 1:
            w = tl.load(w_ptr + cols, mask=cols < N, other=0.0)
            out += tl.sum(K * w[None, :], 1)[:, None]
        else:
            w = tl.load(
                w_ptr + cols[:, None].to(tl.int64) * c + outputs[None, :],
                mask=(cols[:, None] < N) & (outputs[None, :] < c),
                other=0.0,
            )
            out = tl.dot(K, w, out, out_dtype=tl.float64)
    at = (split.to(tl.int64) * M + rows[:, None]) * c + outputs[None, :]
    tl.store(out_ptr + at, out, mask=(rows[:, None] < M) & (outputs[None, :] < c))
