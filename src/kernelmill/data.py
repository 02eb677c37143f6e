"""Where (X, y) comes from: a Source has rows, batches and a position. Here, arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of the data: their numbers, features as given, targets less their mean, and weights of mean 1."""

    rows: Tensor
    X: Tensor
    Y: Tensor
    w: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class Source(Protocol):
    n: int
    d: int
    c: int

    def take(self, rows: Tensor) -> Batch:
        """These rows, in this order."""
        ...

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        """Batches of m rows in the random order of this epoch, from row `position` of that order on.

        The order depends on the seed and the epoch alone, so a run that stops and resumes sees the same batches.
        """
        ...


class ArraySource:
    """Rows of tensors in memory. Targets are an (n, c) tensor, or (n,) class codes that become one-hot rows batch by batch."""

    def __init__(self, X: Tensor, y: Tensor, *, mean: Tensor, w: Tensor | None = None, seed: int = 0):
        self._X, self._y, self._mean, self._seed = X, y, mean, seed
        self._w = torch.ones(1).expand(len(X)) if w is None else w
        self.n, self.d, self.c = X.shape[0], X.shape[1], len(mean)

    def take(self, rows: Tensor) -> Batch:
        y = self._y[rows]
        if y.ndim == 1:
            y = torch.nn.functional.one_hot(y, self.c)
        return Batch(rows, self._X[rows], y.to(self._mean.dtype) - self._mean, self._w[rows])

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.n, generator=generator)
        for start in range(position, self.n, m):
            yield self.take(order[start : start + m])
