"""What a kernel is: features of a point, and K(A, B) from the features of both sides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..params import Settings


@dataclass(frozen=True)
class Points:
    """Rows as a kernel sees them: features `x` (r, d) and, where the kernel needs them, squared
    norms `sq` (r,).
    """

    x: Tensor
    sq: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows) -> Points:
        return Points(self.x[rows].contiguous(), self.sq[rows].contiguous())


def shrunk_norms(x: Tensor) -> Tensor:
    """Squared norms, smaller by what rounding may do to ‖a‖² + ‖b‖² − 2a·b: coincident rows get r²
    ≤ 0, which is then clamped.

    So K(x, x) = 1 exactly. The shrinkage is of the size of the formula's own rounding error, which
    grows like √d.
    """
    last = x.ndim - 1  # −1 is not read right by onnxruntime where there is no row
    return (x * x).sum(last) * (1 - (4 + x.shape[last] ** 0.5 / 4) * torch.finfo(x.dtype).eps)


class Kernel(Settings):
    """A positive semi-definite function of two rows.

    `embedding` gives the map from raw rows to features, `squares` their norms; `evaluate` gives
    K(A, B) for two sets of points. Everything that trains or predicts goes through these, so a
    kernel says nothing of tiles, devices or solvers.
    """

    name: str = ""
    translation_invariant = False
    homogeneity: int | None = None  # k where K(sx, sz) = s^(2k) K(x, z) for every s > 0

    def owned(self) -> Self:
        """A copy that shares no array with this one: what a model keeps, whatever its user does to
        the kernel afterwards.
        """
        own = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(own, name, value.detach().clone())
            elif isinstance(value, (np.ndarray, list, dict, Settings)):
                setattr(own, name, copy.deepcopy(value))
        return own

    def validate(self, d: int) -> None:
        """Raise InputError where the settings do not fit rows of d features."""

    def width(self, d: int) -> int:
        """How many features a row of d columns becomes."""
        return d

    def embedding(self, origin: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """The map from rows to features.

        `origin` is subtracted where that leaves K unchanged: it keeps digits, not meaning.
        """
        return lambda X: X.to(dtype)

    def features_of(self, X: Tensor) -> Tensor:
        """Features of rows before bandwidths and metrics: each is of one column."""
        return X

    def per_feature(self, G: Tensor) -> Tensor:
        """Gradients (…, D) by `features_of` a row, from those by its embedding."""
        return G

    def per_column(self, G: Tensor, X: Tensor) -> Tensor:
        """Gradients (r, …, d) by columns of the rows X, from those by their embedding."""
        return self.per_feature(G)

    def squares(self, x: Tensor) -> Tensor:
        """Squared norms of features, as `evaluate` wants them."""
        return (x * x).sum(1)

    def points(self, x: Tensor) -> Points:
        return Points(x, self.squares(x))

    def evaluate(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        """K(A, B), written into `out` where one is given."""
        raise NotImplementedError

    def diagonal(self, A: Points) -> Tensor:
        """K(a, a) for each row a."""
        raise NotImplementedError

    def __call__(self, A, B=None) -> Tensor:
        """The dense K(A, B) for small arrays: computed in float64, and given in their own precision
        where its range holds K.
        """
        A = torch.as_tensor(A)
        B = A if B is None else torch.as_tensor(B)
        dtype = torch.promote_types(A.dtype, B.dtype)
        dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        self.validate(A.shape[1])
        embed = self.embedding(B.double().mean(0), torch.float64)
        K = self.evaluate(self.points(embed(A)), self.points(embed(B)))
        largest = K.detach().abs().max().item() if K.numel() else 0.0
        return (
            K.to(dtype)
            if largest == 0 or torch.finfo(dtype).tiny <= largest <= torch.finfo(dtype).max
            else K
        )


def positive(owner: str, name: str, value: SupportsFloat | str, allow_zero: bool = False) -> float:
    """`value` as a positive finite float, or the error that says what it was."""
    bound = "0 or more" if allow_zero else "greater than 0"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{owner}: {name}={value!r} was given, expected a number {bound}."
        ) from None
    if not np.isfinite(number) or number < 0 or (number == 0 and not allow_zero):
        raise InputError(f"{owner}: {name}={value!r} was given, expected a finite number {bound}.")
    return number


class Scale:
    """How a bandwidth turns raw rows into features: a number, one per feature, or a matrix Σ with
    r² = (x−z)ᵀΣ⁻¹(x−z).
    """

    def __init__(self, owner: str, bandwidth: object, d: int | None = None):
        if isinstance(bandwidth, str):
            raise InputError(
                f"{owner}: bandwidth={bandwidth!r} was given, expected a number, one per feature, a"
                " matrix, or 'auto' inside an estimator, which chooses it from the data before the"
                " kernel is used."
            )
        values = torch.as_tensor(
            np.asarray(
                bandwidth.detach().cpu() if isinstance(bandwidth, Tensor) else bandwidth,
                dtype=np.float64,
            )
        )
        if values.ndim > 2 or (values.ndim == 2 and values.shape[0] != values.shape[1]):
            raise InputError(
                f"{owner}: bandwidth of shape {tuple(values.shape)} was given, expected a number,"
                " (d,) or (d, d)."
            )
        if d is not None and values.ndim > 0 and values.shape[0] != d:
            raise InputError(
                f"{owner}: bandwidth of shape {tuple(values.shape)} was given for {d} features;"
                " give one value per feature."
            )
        if not torch.isfinite(values).all() or (values.ndim < 2 and not (values > 0).all()):
            raise InputError(
                f"{owner}: bandwidth={bandwidth!r} was given, expected finite values greater"
                " than 0."
            )
        self.values = values
        if values.ndim == 2:
            L, info = torch.linalg.cholesky_ex((values + values.T) / 2)
            if info.item() or not torch.allclose(values, values.T):
                raise InputError(
                    f"{owner}: the bandwidth matrix was not symmetric positive definite; give Σ"
                    " with r² = (x−z)ᵀ Σ⁻¹ (x−z)."
                )
            self.whiten = torch.linalg.inv(L).T

        self._there: dict[
            tuple, Tensor
        ] = {}  # the same numbers on other devices: copied once, not at every batch

    def apply(self, X: Tensor) -> Tensor:
        factor = self._on(X)
        return X @ factor if self.values.ndim == 2 else X / factor

    def chain(self, G: Tensor) -> Tensor:
        """Gradients (…, d) by raw rows, from those by features."""
        factor = self._on(G)
        return G @ factor.T if self.values.ndim == 2 else G / factor

    def _on(self, X: Tensor) -> Tensor:
        key = X.device, X.dtype
        if key not in self._there:
            self._there[key] = (self.whiten if self.values.ndim == 2 else self.values).to(
                X.device, X.dtype
            )
        return self._there[key]


KernelFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class Custom(Kernel):
    """A kernel of your own.

    Parameters
    ----------
    function : callable
        K(A, B) of two float tensors (r, d) and (t, d), which returns an (r, t) tensor of a positive
        semi-definite kernel.
    """

    function: KernelFunction = field(default=None)  # type: ignore[assignment]
    name = "custom"

    def evaluate(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        K = torch.as_tensor(self.function(A.x, B.x))
        if K.shape != (A.x.shape[0], B.x.shape[0]):
            raise InputError(
                f"the kernel function returned shape {tuple(K.shape)}, expected ({len(A)},"
                f" {len(B)}): a row of A each, a column of B."
            )
        return K.to(A.x.dtype) if out is None else out.copy_(K)

    def diagonal(self, A: Points) -> Tensor:
        # Blocks of 64 rows: at most 64 times the work of the diagonal, and
        # no assumption on the function.
        return torch.cat(
            [
                torch.diagonal(self.evaluate(A[i : i + 64], A[i : i + 64]))
                for i in range(0, len(A), 64)
            ]
            or [A.sq]
        )
