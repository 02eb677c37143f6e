"""Leave-one-out errors of kernel ridge in closed form, with their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Radial
from ..projection import inverted

# Of a row: from here on float32 tells leave-one-out errors to 1e-4, and their slopes to 1e-3 (from
# .1 on to a tenth of that). Over a plain a descent may end elsewhere: of 46 fits of 1,000 rows 43
# came out the same to .1 % of their score.
SINGLE = 0.01
NOTHING = 1e-3  # of the targets' squares


class Profile(torch.autograd.Function):
    """A radial profile with its slope."""

    @staticmethod
    def forward(ctx, sq_dist: Tensor, kernel: Radial) -> Tensor:
        ctx.save_for_backward(kernel.slope(sq_dist))
        return kernel.profile(sq_dist.clone())

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None


def loo_residuals(K: Tensor, Y: Tensor, ridge: Tensor, rough: bool = False) -> Tensor:
    """Leave-one-out residuals y_i − f_{−i}(x_i) of kernel ridge; `ridge` (r,) is λ/w of each row.

    Leading axes are batches. `rough`: by float32 on a CPU, where that has digits enough: see
    SINGLE.
    """
    if rough and K.device.type == "cpu" and ridge.min().item() >= SINGLE:
        K, ridge = K.float(), ridge.float()
    inverse = _inverse(K, ridge)
    a = (inverse @ Y.to(inverse)).to(Y)
    return a / inverse.diagonal(dim1=-2, dim2=-1)[..., None]


class LeaveOneOut(torch.autograd.Function):
    """Σ w r² of the leave-one-out residuals r of kernel ridge, with its gradient in closed form.

    With C = K_λ⁻¹, a = CY, d = diag C and r = a/d, the slope by K_λ is C diag(v) C − C u aᵀ, where
    e = 2wr, u = e/d and v_i = Σ_l e_il a_il / d_i²: one product, where going back through the
    factor takes three times as long. Leading axes are batches.
    """

    @staticmethod
    def forward(ctx, K: Tensor, Y: Tensor, ridge: Tensor, w: Tensor) -> Tensor:
        C = _inverse(K, ridge)
        a = C @ Y
        r = a / C.diagonal(dim1=-2, dim2=-1)[..., None]
        ctx.save_for_backward(C, a, r, w)
        return (w[..., None] * r * r).sum()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, Tensor, None]:
        slope = grad * _slope(*ctx.saved_tensors)
        return slope, None, slope.diagonal(dim1=-2, dim2=-1), None


class LeaveOneOutOfRows(torch.autograd.Function):
    """The same of rows x in bandwidths under a radial kernel.

    With S the slope by squared distances, and by their transposes, the slope by x_i is
    2 Σ_j S_ij (x_i − x_j): one product, where following each operation back takes twice as long.
    Leading axes are batches. From distances on it is in the precision of Y: those of copies are 0
    in x's own, but not in float32.

    Where `w` is of fewer rows, it is of the last ones, and the errors of the others do not count:
    less than half of the work for a third of the rows.
    """

    @staticmethod
    def forward(ctx, x: Tensor, Y: Tensor, ridge: Tensor, w: Tensor, kernel: Radial) -> Tensor:
        sq = (x * x).sum(-1)
        sq_dist = (x @ x.mT).mul_(-2).add_(sq[..., None, :]).add_(sq[..., None]).clamp_(min=0)
        sq_dist.diagonal(dim1=-2, dim2=-1).zero_()
        sq_dist = sq_dist.to(Y)
        by_distance = kernel.slope(sq_dist)
        C, a = _last_of_inverse(kernel.profile(sq_dist), ridge, Y, w.shape[-1])
        r = a[..., -w.shape[-1] :, :] / _own(C)[..., None]
        ctx.save_for_backward(x, by_distance, C, a, r, w)
        return (w[..., None] * r * r).sum()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, Tensor, None, None]:
        x, by_distance, *known = ctx.saved_tensors
        slope = _slope(*known)
        S = slope * by_distance
        S = S + S.mT
        here = x.to(S)
        moved = (2 * (S.sum(-1)[..., None] * here - S @ here)).to(x)
        return grad * moved, None, grad * slope.diagonal(dim1=-2, dim2=-1), None, None


def loo_error(x: Tensor, Y: Tensor, ridge: Tensor, w: Tensor, kernel: Radial) -> Tensor:
    """Σ w r² of all rows, or of the last ones where w is of fewer, as a float64: by float32 on a
    CPU, in half of the time, where that has digits enough.

    It has too few for a small ridge, and for errors that are next to nothing.
    """
    if x.device.type == "cpu" and ridge.min().item() >= SINGLE:
        parts = (part.to(torch.float32) for part in (Y, ridge, w))
        total = LeaveOneOutOfRows.apply(x, *parts, kernel).double()
        counted = Y[..., -w.shape[-1] :, :]
        if total.item() >= NOTHING * (w[..., None] * counted * counted).sum().item():
            return total
    return LeaveOneOutOfRows.apply(x, Y, ridge, w, kernel)


def _slope(C: Tensor, a: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Of Σ w r² by K_λ: see LeaveOneOut. Of C there are the columns of the rows that count."""
    d = _own(C)
    e = 2 * w[..., None] * r
    v = (e * a[..., -w.shape[-1] :, :]).sum(-1) / d**2
    return (C * v[..., None, :]) @ C.mT - (C @ (e / d[..., None])) @ a.mT


def _own(C: Tensor) -> Tensor:
    """The diagonal, of a matrix or of its last columns."""
    return C[..., -C.shape[-1] :, :].diagonal(dim1=-2, dim2=-1)


def _last_of_inverse(K: Tensor, ridge: Tensor, Y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The last `count` columns of (K + ridge)⁻¹, and (K + ridge)⁻¹ Y.

    With K_λ = LLᵀ in two parts, the last one's columns are L⁻ᵀ of its own block's inverse, under
    zeros.
    """
    if count == K.shape[-1]:
        C = _inverse(K, ridge)
        return C, C @ Y
    L, first = _factor(K, ridge), K.shape[-1] - count
    C_last = _inverse_of(L[..., first:, first:])
    C_first = torch.linalg.solve_triangular(
        L[..., :first, :first].mT, -L[..., first:, :first].mT @ C_last, upper=True
    )
    return torch.cat([C_first, C_last], -2), torch.cholesky_solve(Y, L)


def _inverse(K: Tensor, ridge: Tensor) -> Tensor:
    """(K + ridge)⁻¹, with a ridge of its own against rounding."""
    return _inverse_of(_factor(K, ridge))


def _inverse_of(L: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹."""
    if not L.is_cuda:
        return torch.cholesky_inverse(L)
    # On a GPU in half of the time, in batches above all.
    W = inverted(L)
    return W.mT @ W


def _factor(K: Tensor, ridge: Tensor) -> Tensor:
    size = K.detach().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    return torch.linalg.cholesky(K + torch.diag_embed(ridge + 1e-10 * K.shape[-1] * size))
