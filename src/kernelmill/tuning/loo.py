"""Leave-one-out residuals in closed form, and radial profiles with a slope."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Radial


class Profile(torch.autograd.Function):
    """A radial profile with its slope by a central difference: exact to about ten digits for any
    profile, smooth or not.
    """

    @staticmethod
    def forward(ctx, sq_dist: Tensor, kernel: Radial) -> Tensor:
        step = 1e-5
        up, down = kernel.profile(sq_dist * (1 + step)), kernel.profile(sq_dist * (1 - step))
        ctx.save_for_backward(
            torch.where(sq_dist > 0, (up - down) / (2 * step * sq_dist.clamp(min=1e-300)), 0.0)
        )
        return kernel.profile(sq_dist.clone())

    @staticmethod
    def backward(ctx, grad: Tensor):
        (slope,) = ctx.saved_tensors
        return grad * slope, None


def loo_residuals(K: Tensor, Y: Tensor, ridge: Tensor) -> Tensor:
    """Leave-one-out residuals y_i − f_{−i}(x_i) of kernel ridge; `ridge` (r,) is λ/w of each row.

    Leading axes are batches.
    """
    size = K.detach().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    L = torch.linalg.cholesky(K + torch.diag_embed(ridge + 1e-10 * K.shape[-1] * size))
    inverse = torch.cholesky_inverse(L)
    return (inverse @ Y) / inverse.diagonal(dim1=-2, dim2=-1)[..., None]
