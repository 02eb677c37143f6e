"""Rows to learn from: targets in their own unit, weights of mean 1, on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data import Encoder, Source, Stream, source_of
from ..distributed.team import Communicator, is_alone, largest
from ..planning.memory import parse_bytes, tile_bytes
from ..scoring import score, score_calibrated
from .request import Request

# The share of rows that are no earlier than the one before them, from which they came in the order
# of time, and the days there must be.
IN_ORDER, DAYS = 0.99, 30
MERGE_ROWS = 10_000  # up to here rows that coincide are merged into one of their joint weight


class Units(NamedTuple):
    """What is taken off the targets, and what they are then divided by, (c,) each.

    A solver sees numbers of mean 0 and deviation 1. `scatter` is what merging rows of the same X
    took off Σ w y², in these units; None where nothing was merged.
    """

    mean: Tensor
    scale: Tensor
    scatter: Tensor | None = None

    @classmethod
    def of(cls, mean: Tensor) -> Units:
        """Targets that are used in their own unit: those of classes."""
        return cls(mean, torch.ones_like(mean))


class Held(NamedTuple):
    """Rows kept out of training: features, targets or class codes, weights."""

    X: Tensor
    y: Tensor
    w: Tensor


class Each(NamedTuple):
    """Rows before those of the same X were merged: which one each became part of, its targets and
    its weight.
    """

    group: Tensor
    y: Tensor
    w: Tensor

    def of(self, rows: Tensor) -> tuple[Tensor, Each]:
        """Those that became part of these rows, and for each the place of its row among them."""
        place = torch.full((int(self.group.max()) + 1,), -1)
        place[rows] = torch.arange(len(rows))
        there = place[self.group]
        keep = there >= 0
        return there[keep], Each(self.group[keep], self.y[keep], self.w[keep])


@dataclass(frozen=True)
class Rows:
    """What a fit is given: features, targets (n, c) or class codes (n,), weights, and their units.

    `codes` are the classes of the rows, None for numbers; `keep` the numbers of the rows to train
    on, all where it is None; `encoder` is what made features of a table's columns; `each` are the
    rows before they were merged, where some were.
    """

    X: Tensor | Stream
    y: Tensor
    w: Tensor
    units: Units
    codes: Tensor | None = None
    held: Held | None = None
    keep: Tensor | None = None
    encoder: Encoder | None = None
    each: Each | None = None

    @property
    def columns(self) -> Tensor:
        """(d,) the column of the user's table that each feature was made of."""
        d = self.X.shape[1]
        return torch.arange(d) if self.encoder is None else torch.tensor(self.encoder.columns)

    @property
    def seen_as(self) -> dict[int, str]:
        """Features whose encoding the user said, by number."""
        return {} if self.encoder is None else self.encoder.seen_as

    @property
    def bounds(self) -> np.ndarray | None:
        """(2, d) of rows that are used as they are but for fill values."""
        return None if self.encoder is None or not self.encoder.plain else self.encoder.bounds

    @property
    def regression(self) -> bool:
        return self.codes is None

    @property
    def nbytes(self) -> int:
        return self.X.nbytes + self.y.nbytes

    def score_held(self, name: str, values: Tensor) -> float:
        """The score of the held-out rows by a model's values of them, which are calibrated where
        they are of classes.
        """
        assert self.held is not None
        y, w = self.held.y.cpu(), self.held.w.cpu()
        if self.regression:
            return score(name, values, y, w)
        return score_calibrated(name, values, y, w, self.units.mean.cpu())


@dataclass(frozen=True)
class Data:
    """Rows where they are trained on, and the memory that is left beside them.

    `weight` is the mean weight, which the others are divided by, `target` the weight, as given, of
    a row that stands for one target. `keep` may be in another order than that of the rows given.
    """

    rows: Rows
    seed: int
    device: str
    weight: float
    budget: int
    tile_bytes: int
    source: Source
    target: float = 1.0

    @property
    def targets(self) -> float:
        """The targets that a row stands for, on average."""
        return self.weight / self.target

    @property
    def codes(self) -> Tensor | None:
        """The classes of the rows that are trained on."""
        codes, keep = self.rows.codes, self.rows.keep
        return codes if codes is None or keep is None else codes[keep]

    @cached_property
    def by_time(self) -> Tensor | None:
        """The numbers of the rows from the first to the last in time, where they came in the order
        of a column of dates; None where they did not, or are so few that they were merged.
        """
        encoder, n = self.rows.encoder, self.source.n
        if encoder is None or n <= MERGE_ROWS or isinstance(self.rows.X, Stream):
            return None
        given = torch.arange(n) if self.rows.keep is None else self.rows.keep.argsort()
        for j in encoder.days:
            parts = (self.source.take(part).X[:, j] for part in given.split(65_536))
            days = torch.cat([part.double().cpu() for part in parts])
            steady = (days.diff() >= 0).double().mean().item()
            if steady >= IN_ORDER and len(days.unique()) >= DAYS:
                return given[days.argsort(stable=True)]
        return None

    def some(self, n: int) -> Data:
        """n random rows, each class with its share of them, and one at least."""
        order = torch.randperm(self.source.n, generator=torch.Generator().manual_seed(self.seed))
        codes = torch.zeros_like(order) if self.codes is None else self.codes.cpu()[order]
        counts, by_class = torch.bincount(codes), codes.sort(stable=True).indices
        rank = torch.empty_like(order)
        rank[by_class] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[codes[by_class]]
        drawn = (rank / counts[codes]).argsort(stable=True)[:n]
        return self.permuted(order[drawn].sort().values)

    def permuted(self, order: Tensor) -> Data:
        """The same rows in another order."""
        keep = self.rows.keep
        rows = replace(self.rows, keep=order if keep is None else keep[order])
        return replace(self, rows=rows, source=source(rows, self.seed, self.device))

    def shared(self, comm: Communicator) -> Source:
        """The source that these ranks read together."""
        return (
            self.source if is_alone(comm) else source(self.rows, self.seed, self.device, comm=comm)
        )

    def in_own_units(self) -> Source:
        """The source with weights and targets in the user's units, but for the mean."""
        rows = replace(self.rows, w=self.rows.w * self.weight, units=Units.of(self.rows.units.mean))
        return source(rows, self.seed, self.device)


def source(rows: Rows, seed: int, device: str, comm: Communicator | None = None) -> Source:
    w = None if bool((rows.w == 1).all()) else rows.w
    units = rows.units
    make = partial(source_of, rows.X, rows.y, mean=units.mean, scale=units.scale, w=w)
    return make(keep=rows.keep, seed=seed, device=device, comm=comm)


def read(rows: Rows, request: Request, comm: Communicator) -> Data:
    """Put the rows where they are trained on: copied to a GPU once if they are read more than once
    and fit.
    """
    device = request.device
    if (
        isinstance(rows.X, Tensor)
        and rows.X.is_cuda
        and rows.X.device != torch.empty(0, device=device).device
    ):
        rows = replace(rows, X=rows.X.to(device))
    whole = _budget(request, device, comm)
    budget = whole - _beside(rows, device, whole)
    weight = (rows.w if rows.keep is None else rows.w[rows.keep]).mean().item()
    rows = replace(rows, w=rows.w / weight)
    if isinstance(rows.X, Tensor) and _copy_pays(rows, request, budget, comm):
        budget -= rows.nbytes
        rows = replace(rows, X=rows.X.to(device), y=rows.y.to(device))
    made = source(rows, request.seed, device)
    tiles, target = tile_bytes(whole, device), _weight_of_a_target(rows, weight, request)
    return Data(rows, request.seed, device, weight, budget, tiles, made, target)


def _weight_of_a_target(rows: Rows, weight: float, request: Request) -> float:
    """1; or the largest weight, where all are smaller and no noise was given that they divide."""
    if request.posterior is not None and request.posterior.noise is not None:
        return 1.0
    largest = weight * rows.w.max().item() if rows.each is None else rows.each.w.max().item()
    return min(1.0, largest)


def _budget(request: Request, device: str, comm: Communicator) -> int:
    """Bytes that a rank may take: those of the poorest one."""
    if request.plan is not None:
        return request.plan.budget
    return int(-largest(comm, -parse_bytes(request.memory_budget, device)))


def _beside(rows: Rows, device: str, budget: int) -> int:
    """Host memory that features of a table take, which are no memory of the user's own."""
    if device != "cpu":
        return 0
    if isinstance(rows.X, Stream):
        return min(3 * rows.X.window_bytes, budget - (1 << 20))
    return 0 if rows.encoder is None else min(budget // 2, rows.nbytes)


def _copy_pays(rows: Rows, request: Request, budget: int, comm: Communicator) -> bool:
    """For a single epoch copying rows batch by batch hides behind the steps.

    An exact solution, which may be chosen where no solver was given, reads them many times.
    """
    once = request.epochs == 1 and (request.solver is not None or request.plan is not None)
    there = rows.X.is_cuda or not request.device.startswith("cuda")
    return not there and not once and rows.nbytes <= budget // 3 and is_alone(comm)


def units_of(Y: Tensor, w: Tensor, keep: Tensor) -> Units:
    """Weighted mean and deviation of each output over these rows, in float64.

    Every output counts alike in its own unit, and none is so large or small that float32 loses it.
    Twice through the rows: a deviation from sums of squares would lose its digits.
    """
    parts = keep.split(1 << 20)
    total = w[keep].sum()
    mean = sum((w[part, None] * Y[part].double()).sum(0) for part in parts) / total
    largest = torch.stack([(Y[part].double() - mean).abs().amax(0) for part in parts]).amax(0)
    varies = largest > 1e-14 * mean.abs()  # what is left is not only the rounding of the mean
    largest = torch.where(varies & (largest > 0), largest, 1.0)
    squared = (
        (w[part, None] * ((Y[part].double() - mean) / largest) ** 2).sum(0) for part in parts
    )
    return Units(mean, largest * torch.where(varies, (sum(squared) / total).sqrt(), 1.0))


def squares(Y: Tensor, w: Tensor, units: Units) -> Tensor:
    """(c,) Σ w y² of targets in their units: what merging takes off it is how much equal rows
    differ.
    """
    return (w[:, None].double() * ((Y.double() - units.mean) / units.scale) ** 2).sum(0)


def merge(X: Tensor, Y: Tensor, w: Tensor, average: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the same X become one: weights add up, targets are averaged.

    The least-squares problem is the same, K(X,X) is not singular, leaving one out leaves out its
    copies too, and a weight of k is k copies. Rows come back sorted, zero weights gone. `average`:
    whether the loss allows it (`Loss.averages`); else only rows of the same X and Y become one.
    """
    keep = w > 0
    X, Y, w = X[keep], Y[keep], w[keep]
    X = X.cpu().float() if X.dtype == torch.bfloat16 else X.cpu()
    if not average:
        both, Y, w = merge(torch.cat([X.double(), Y.double()], 1), Y, w)
        return both[:, : X.shape[1]].to(X.dtype), Y, w
    unique, group = groups_of(X)
    weight = torch.zeros(len(unique), dtype=torch.float64).index_add_(0, group, w)
    zeros = torch.zeros(len(unique), Y.shape[1], dtype=torch.float64)
    total = zeros.index_add_(0, group, w[:, None] * Y.double())
    return torch.from_numpy(unique), total / weight[:, None], weight


def groups_of(X: Tensor) -> tuple[np.ndarray, Tensor]:
    """The rows that differ, sorted, and which of them each row is."""
    unique, inverse = np.unique(X.numpy(), axis=0, return_inverse=True)
    return unique, torch.from_numpy(np.asarray(inverse).reshape(-1))


def each_of(X: Tensor, Y: Tensor, w: Tensor, merged: int) -> Each | None:
    """Rows of weight above 0 as `merge` takes them, where it made fewer of them."""
    if merged == len(X):
        return None
    X = X.cpu().float() if X.dtype == torch.bfloat16 else X.cpu()
    unique, group = groups_of(X)
    return Each(group, Y, w) if len(unique) == merged else None


def constant_features(source: Source, centers: Tensor | None) -> dict[int, float]:
    """The features that are the same in every row, and in the user's own centers, with their
    values.

    Nearly always a few rows tell: only for features that are alike there all are read.
    """
    first = source.some(1000).X
    first = first if centers is None else torch.cat([first, centers.to(first)])
    low, high = first.amin(0), first.amax(0)
    for batch in source.sweep(65_536) if not bool((low < high).all()) else ():
        low = torch.minimum(low, batch.X.amin(0).to(low))
        high = torch.maximum(high, batch.X.amax(0).to(high))
        if bool((low < high).all()):
            break
    return {i: low[i].item() for i in torch.nonzero(low == high).flatten().tolist()}


def still_constant(known: dict[int, float], rows: Tensor) -> dict[int, float]:
    """Those of these features that do not vary in new rows either."""
    return {i: value for i, value in known.items() if bool((rows[:, i] == value).all())}
