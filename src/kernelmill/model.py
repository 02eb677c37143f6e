"""KernelModel: f(x) = K(x, Z) α + intercept. What predict uses and save writes."""

from __future__ import annotations

from torch import Tensor, nn

from .kernels import Kernel, Points
from .ops import KernelProduct
from .planning import TILE_BYTES


class KernelModel(nn.Module):
    """A trained kernel model as a torch module: `forward` takes raw rows and returns (r, c) values.

    Z are rows of the training data as they were given; alpha (p, c) and intercept (c,) are in the precision of the computation.
    """

    Z: Tensor
    alpha: Tensor
    intercept: Tensor
    _origin: Tensor
    _x: Tensor
    _sq: Tensor

    def __init__(self, kernel: Kernel, Z: Tensor, alpha: Tensor, intercept: Tensor, tile_bytes: int = TILE_BYTES):
        super().__init__()
        self.kernel, self.tile_bytes = kernel, tile_bytes
        self.register_buffer("Z", Z)
        self.register_buffer("alpha", alpha)
        self.register_buffer("intercept", intercept)
        # Z as the kernel sees it, made once: remaking it would cost as much as predicting a row. Derived, so never written.
        self.register_buffer("_origin", Z.double().mean(0), persistent=False)
        points = self.product().points(Z)
        self.register_buffer("_x", points.x, persistent=False)
        self.register_buffer("_sq", points.sq, persistent=False)

    @property
    def n_centers(self) -> int:
        return len(self.Z)

    def product(self) -> KernelProduct:
        return KernelProduct(self.kernel, self._origin, self.alpha.dtype, self.alpha.device, self.tile_bytes)

    def forward(self, X: Tensor) -> Tensor:
        K = self.product()
        return K.matmul(K.points(X), Points(self._x, self._sq), self.alpha) + self.intercept

    def extra_repr(self) -> str:
        return f"{self.kernel}, centers={self.n_centers}, features={self.Z.shape[1]}, outputs={self.alpha.shape[1]}"
