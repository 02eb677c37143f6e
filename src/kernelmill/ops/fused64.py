"""The same in float64: K(A, B) @ w in one Triton kernel, and products of a float32 matrix with
weights and sums in float64.

An exact solution of a regression needs its sums in float64, not its kernel values: K rounded to
float32 once, and held, gives the same model as K in float64 (docs/solvers.md). Where it cannot be
held, it is evaluated in float64 at each use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..kernels import (
    Gaussian,
    GeneralisedExponential,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Points,
    Polynomial,
)
from .fused import PROFILES, multiprocessors, on_device, splits
from .triton_kernels import block_product64, held_product

# What exp2, log2 and sqrt alone are made of: the series of the others have float32's digits.
KERNELS = {Laplacian, Gaussian, Matern, GeneralisedExponential, Linear, Polynomial}
COLUMNS = 16  # of w in one launch: the least that a matrix product takes
BK = 16  # features of a tile; rows are padded to whole ones


@dataclass(frozen=True)
class WideForm:
    """How one kernel is spelled in `block_product64`. Its points are those of plain torch, padded
    with zeros.
    """

    kernel: Kernel

    def points(self, x: Tensor) -> Points:
        width = -(-x.shape[1] // BK) * BK
        return self.kernel.points(torch.nn.functional.pad(x, (0, width - x.shape[1])).contiguous())

    def product(self, A: Points, B: Points, w: Tensor) -> Tensor:
        """K(A, B) @ w, of up to COLUMNS columns."""
        (M, D), N, c = A.x.shape, len(B), w.shape[1]
        if not (M and N):
            return w.new_zeros(M, c)
        BM, BN = 64, 64
        row_tiles, each, cut = _cut(M, N, BM, BN, A.x.device)
        out = w.new_empty(cut, M, c)
        profile, number, order = PROFILES[type(self.kernel)](self.kernel)
        with on_device(w):
            block_product64[(row_tiles * cut,)](
                A.x.contiguous(),
                B.x.contiguous(),
                A.sq.contiguous(),
                B.sq.contiguous(),
                w.contiguous(),
                w.new_tensor([1.0, number]),
                out,
                M,
                N,
                D,
                c,
                row_tiles,
                each,
                PROFILE=profile,
                ORDER=order,
                BM=BM,
                BN=BN,
                BK=BK,
                C=COLUMNS,
                num_warps=4,
            )
        return out.sum(0) if cut > 1 else out[0]


def form_of(kernel: Kernel) -> WideForm | None:
    """The fused form of a kernel in float64, or None where plain torch has to do."""
    return WideForm(kernel) if type(kernel) in KERNELS else None


def held_times(K: Tensor, w: Tensor, transposed: bool = False) -> Tensor:
    """K @ w, or Kᵀ @ w, of a float32 K whose rows are contiguous and w in float64."""
    if w.shape[1] > COLUMNS:
        return torch.cat([held_times(K, part, transposed) for part in w.split(COLUMNS, 1)], 1)
    (M, N), c = reversed(K.shape) if transposed else K.shape, w.shape[1]
    if not (M and N):
        return w.new_zeros(M, c)
    BM, BN = 64, 64
    row_tiles, each, cut = _cut(M, N, BM, BN, K.device)
    out = w.new_empty(cut, M, c)
    with on_device(w):
        held_product[(row_tiles * cut,)](
            K,
            K.stride(0),
            w.contiguous(),
            out,
            M,
            N,
            c,
            row_tiles,
            each,
            TRANSPOSED=transposed,
            BM=BM,
            BN=BN,
            C=1 if c == 1 else COLUMNS,
            num_warps=4,
        )
    return out.sum(0) if cut > 1 else out[0]


def _cut(M: int, N: int, BM: int, BN: int, device: torch.device) -> tuple[int, int, int]:
    """Tiles of rows, tiles of columns for each program, and into how many runs those make."""
    row_tiles, col_tiles = triton.cdiv(M, BM), triton.cdiv(N, BN)
    each = -(-col_tiles // splits(row_tiles, col_tiles, 4 * multiprocessors(device)))
    return row_tiles, each, -(-col_tiles // each)
