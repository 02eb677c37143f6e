"""Sums of kernels: several views of the same rows in one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from ..errors import InputError
from .base import Kernel, Points, positive
from .radial import Radial


@dataclass(eq=False)
class Sum(Kernel):
    """Σ weight · kernel, over radial kernels that may each see other features of a row.

    What it learns is a sum of functions, one of each kernel's space: an average of models, but
    trained as one. A row's features are those of all parts, side by side.

    Parameters
    ----------
    parts : list of radial kernels
        The kernels, each with bandwidths and features of its own.
    weights : list of float, optional
        One for each part; None: the same for all, 1 in sum.
    """

    parts: list[Radial] = field(default_factory=list)
    weights: list[float] | None = None  # None: the same for all, 1 in sum
    name = "sum"
    translation_invariant = True

    @property
    def shares(self) -> list[float]:
        """The weight of each part."""
        if self.weights is None:
            return [1 / len(self.parts)] * len(self.parts)
        return [float(weight) for weight in self.weights]

    def owned(self) -> Self:
        own = super().owned()
        own.parts = [part.owned() for part in self.parts]
        return own

    def validate(self, d: int) -> None:
        if not self.parts or not all(isinstance(part, Radial) for part in self.parts):
            raise InputError(f"Sum: parts={self.parts!r} was given, expected radial kernels.")
        if len(self.shares) != len(self.parts):
            raise InputError(
                f"Sum: {len(self.shares)} weights were given for {len(self.parts)} kernels; give"
                " one each."
            )
        for weight in self.shares:
            positive("Sum", "weight", weight)
        for part in self.parts:
            part.validate(d)

    def width(self, d: int) -> int:
        return sum(part.width(d) for part in self.parts)

    def embedding(self, origin: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        own = [part.embedding(origin, dtype) for part in self.parts]
        return lambda X: torch.cat([embed(X) for embed in own], 1)

    def widths(self, total: int) -> list[int]:
        """How many of a row's `total` features are of each part: a part without features of its
        own has the row itself.
        """
        known = [None if part.features is None else len(part.features) for part in self.parts]
        rest = total - sum(width for width in known if width is not None)
        each = rest // max(1, known.count(None))
        return [each if width is None else width for width in known]

    def split(self, x: Tensor) -> list[Tensor]:
        """The features of each part."""
        return list(x.split(self.widths(x.shape[1]), 1))

    def features_of(self, X: Tensor) -> Tensor:
        return torch.cat([part.features_of(X) for part in self.parts], 1)

    def per_feature(self, G: Tensor) -> Tensor:
        each = zip(self.parts, G.split(self.widths(G.shape[-1]), -1), strict=True)
        return torch.cat([part.per_feature(own) for part, own in each], -1)

    def per_column(self, G: Tensor, X: Tensor) -> Tensor:
        each = zip(self.parts, G.split(self.widths(G.shape[-1]), -1), strict=True)
        return torch.stack([part.per_column(own, X) for part, own in each]).sum(0)

    def evaluate(self, A: Points, B: Points, out: Tensor | None = None) -> Tensor:
        total = None
        for part, share, a, b in zip(
            self.parts, self.shares, self.split(A.x), self.split(B.x), strict=True
        ):
            K = part.evaluate(part.points(a), part.points(b)).mul_(share)
            total = K if total is None else total.add_(K)
        assert total is not None
        return total if out is None else out.copy_(total)

    def diagonal(self, A: Points) -> Tensor:
        return torch.full_like(A.sq, sum(self.shares))
