"""Judging at the density of the run: what the rows nearest to some rows say of these.

Which kernel is best depends on how close rows are, and a sample of a tenth of the rows cannot tell:
of 14,400 rows of covertype, the kernel that won among 1,200 has 15.9 % errors, and one that lost
there 11.0 % (docs/choosing.md). All rows are too many for a factor, but what a kernel machine says
at x depends mostly on rows near x; of a few hundred of these there is one for every row that is
judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import Source
from ..kernels import Kernel, Radial, Sum
from .judge import Fold, Grams, Judge, Verdict
from .sample import Sample

# Rows that are judged, and rows around each: 2 s for a kernel, on two cores and on an H200.
ON_CPU, ON_GPU = (500, 256), (3000, 384)
COPIES = 3  # of a matrix of the rows around a row
# Of the best score, what a larger ridge may have: on hotel and covertype, with 10,000 rows, the
# best ridge of the rows around is a third and a ninth of the best one of all, which is within 2 %.
NEARLY = 1.02
CHANCES = 2.0  # standard errors by which another ridge must be better
NOTHING = 1e-12  # the weight of a row that does not count
ENOUGH = 200  # rows that are judged rather than by more around each
LATE = 10  # one of so many rows is late
AT_ONCE = 32  # rows whose neighbours are looked for, and factored, together


class Around(NamedTuple):
    """K of the rows around some rows, (a, s, s), K of those and these, (a, s), targets and
    weights, (a, s, c) and (a, s).
    """

    K: Tensor
    k: Tensor
    Y: Tensor
    w: Tensor


def _evaluate(kernel: Kernel, A: Tensor, B: Tensor) -> Tensor:
    """(a, r, t) K of features A (a, r, D) and B (a, t, D), for each of a."""
    if isinstance(kernel, Sum):
        parts = (side.split(kernel.widths(side.shape[-1]), -1) for side in (A, B))
        each = zip(kernel.parts, kernel.shares, *parts, strict=True)
        return torch.stack([share * _evaluate(part, a, b) for part, share, a, b in each]).sum(0)
    if not isinstance(kernel, Radial):
        points = kernel.points
        pairs = zip(A, B, strict=True)
        return torch.stack([kernel.evaluate(points(a), points(b)) for a, b in pairs])
    sq_a, sq_b = kernel.squares(A)[..., None], kernel.squares(B)[..., None, :]
    sq_dist = torch.baddbmm(sq_b, A, B.mT, alpha=-2).add_(sq_a).clamp_(min=0)
    return kernel.profile(sq_dist)


def most_among(kernels: Sequence[Kernel], source: Source, budget: int) -> int:
    """Rows among which the nearest can be looked for: the features of all are held, twice."""
    widest = max(kernel.width(source.d) for kernel in kernels)
    return min(source.n, budget // (2 * 4 * max(1, widest)))


class Nearby(Judge):
    """Random rows of a source, each judged by the rows nearest to it among p others; where rows
    have an order in time, some of the last ones, by earlier ones.
    """

    flat = 0.0  # of many nearly equal ridges the largest is wanted

    def __init__(  # noqa: PLR0913
        self,
        sample: Sample,
        source: Source,
        p: int,
        budget: int,
        generator: torch.Generator,
        most: int | None = None,
        size: int | None = None,
        copies: bool = False,
        by_time: Tensor | None = None,
        judged: Tensor | None = None,
    ):
        """`sample` says what the score is; as many rows are judged as fit into the budget, `most`
        of them, by `size` rows around each; `copies`: also by rows of the same X, which tell the
        noise, where their targets differ: others are the same row twice. `by_time`: the numbers of
        the rows from the first to the last. `judged`: the rows themselves, by all others.
        """
        rows = torch.randperm(source.n, generator=generator)
        usual, around = ON_GPU if source.device.type == "cuda" else ON_CPU
        self._size, self._copies = size or around, copies
        count = min(most or usual, source.n // 4, budget // (COPIES * 8 * self._size**2))
        self._source, self._among = source, rows[count : count + p]
        self.rows = rows[:count]
        if judged is not None:
            self.rows, self._among = judged, rows[:p]
        if by_time is not None:
            last = source.n // LATE
            early, late = by_time[:-last], by_time[-last:]
            self.rows = late[rows[rows < last][:count]]
            self._among = early[rows[rows < len(early)][:p]]
        batch = source.take(self.rows)
        self.X, self.Y, self.w = (
            part.to(source.device, torch.float64) for part in (batch.X, batch.Y, batch.w)
        )
        self._sample = sample
        every = torch.arange(len(self.rows), device=self.X.device)
        self.folds = [Fold(every, every)]

    @classmethod
    def within(
        cls,
        kernel: Kernel,
        source: Source,
        budget: int,
        most: int,
        seed: int,
        judged: Tensor | None = None,
    ) -> Nearby:
        """By all rows, or as many as fit into the budget, where no score is asked for: of a small
        one, fewer rows around each rather than few rows.
        """
        nothing, enough = torch.empty(0), min(most, ENOUGH)
        usual = (ON_GPU if source.device.type == "cuda" else ON_CPU)[1]
        size = min(usual, int((budget / (COPIES * 8 * enough)) ** 0.5))
        p = most_among([kernel], source, budget)
        sample, generator = Sample(nothing, nothing, nothing, 1.0), torch.Generator()
        seeded = generator.manual_seed(seed)
        size = max(2, size)
        return cls(sample, source, p, budget, seeded, most, size, copies=True, judged=judged)

    def grams(self, kernel: Kernel) -> list[Around]:
        """Of the rows nearest to each, in pieces of a few rows."""
        origin, device = self.X.mean(0), self.X.device
        embed, fine = (kernel.embedding(origin, dtype) for dtype in (torch.float32, torch.float64))
        parts = self._among.split(65_536)
        there = torch.cat([embed(self._source.take(part).X.to(device)) for part in parts])
        others, size = kernel.points(there), min(self._size, len(there))
        found = []
        for X, Y_own in zip(self.X.split(AT_ONCE), self.Y.split(AT_ONCE), strict=True):
            # Those that a sum of kernels is largest at are not those nearest in all its features.
            near = kernel.evaluate(kernel.points(embed(X)), others).topk(size).indices
            batch = self._source.take(self._among[near.reshape(-1).cpu()])
            Y, w = (part.to(self.X).view(*near.shape, -1) for part in (batch.Y, batch.w))
            around = batch.X.to(device)
            # Leaving a row out would leave its copy in, which says nothing of other rows.
            copies = (around.view(*near.shape, -1) == X.to(around)[:, None]).all(2)
            if self._copies:
                copies &= (Y_own[:, None] == Y).all(2)
            x = fine(around).view(*near.shape, -1)
            K, k = _evaluate(kernel, x, x), _evaluate(kernel, fine(X)[:, None], x)[:, 0]
            w = torch.where(copies, NOTHING, w[..., 0])
            found.append(Around(K, k, Y, w))
        return found

    def values(self, grams: Grams, ridge: float) -> Tensor | None:
        """(rows, c) of each row by those around it; None where a factor fails."""
        out = []
        for K, k, Y, w in grams:
            L, info = torch.linalg.cholesky_ex(K + torch.diag_embed(ridge / w + 1e-10 * k.shape[1]))
            if bool(info.any()):
                return None
            out.append((k[:, None] @ torch.cholesky_solve(Y, L))[:, 0])
        return torch.cat(out)

    def moments(self, kernel: Kernel, grams: Grams, ridge: float) -> tuple[Tensor, Tensor] | None:
        """(rows, c) of each row by those around it, and (rows,) by how much its target may differ,
        over the signal's variance; None where a factor fails.
        """
        values, explained = [], []
        for K, k, Y, w in grams:
            L, info = torch.linalg.cholesky_ex(K + torch.diag_embed(ridge / w + 1e-10 * k.shape[1]))
            if bool(info.any()):
                return None
            half = torch.linalg.solve_triangular(L, torch.cat([Y, k[..., None]], 2), upper=False)
            own = half[..., -1:]
            values.append((own * half[..., :-1]).sum(1))
            explained.append((own * own).sum((1, 2)))
        embed = kernel.embedding(self.X.mean(0), torch.float64)
        left = kernel.diagonal(kernel.points(embed(self.X))) - torch.cat(explained)
        return torch.cat(values), left.clamp(min=0) + ridge / self.w

    def verdict(
        self, grams: Grams, ridge: float | None, start: float, hopeless: float = math.inf
    ) -> Verdict:
        """With the ridge that is given; or with `start`, unless another near it is better by more
        than chance: the largest that is nearly as good as the best, since a few hundred rows want
        a smaller one than all of them do.
        """
        if ridge is not None:
            return self._try(grams, ridge)
        found = self._near(grams, start, hopeless)
        first = next(each for each in found if each.ridge == start)
        least = min(each.score for each in found)
        other = next(each for each in reversed(found) if each.score <= NEARLY * least)
        return other if self.prefers(other, first, CHANCES) else first
