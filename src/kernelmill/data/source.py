"""A Source gives a solver its rows: any of them, in batches of a random order, or all in their own
order.

With several ranks each reads its own part of a batch, and the whole is gathered while the batch
before is computed with: no rank needs all of X. Targets and weights are in memory on every rank.
The order of rows does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Required, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from ..distributed.team import Alone, Communicator, is_alone, shard, start_together
from .order import Pieces, windows
from .prefetch import ahead, one_ahead
from .stream import Stream

Features = TypeVar("Features", Tensor, Stream)

TOGETHER, MOST_BATCHES = 8 << 20, 64  # bytes and batches that are copied to a GPU at a time


def within(X: Tensor, bounds: np.ndarray | None) -> Tensor:
    """Rows within (2, d) bounds, in the precision they have; as they are where there are none."""
    if bounds is None:
        return X
    low, high = torch.from_numpy(bounds).to(X.device, X.dtype)
    return X.clamp(low, high)


@dataclass(frozen=True)
class Batch:
    """Rows of the data: their numbers, features as given, targets less their mean and over their
    scale, and weights of mean 1.
    """

    rows: Tensor
    X: Tensor
    Y: Tensor
    w: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.X, self.Y, self.w


class Source(Protocol):
    n: int
    d: int
    c: int
    mean: Tensor  # (c,) what was taken off the targets
    scale: Tensor  # (c,) what they were then divided by
    device: torch.device  # where batches are wanted

    def take(self, rows: Tensor) -> Batch:
        """These rows, in this order."""
        ...

    def targets(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Y and w of these rows; costs no reading of X."""
        ...

    def some(self, count: int) -> Batch:
        """About so many rows from here and there, the same ones every time, for little reading."""
        ...

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        """Batches of m rows in the random order of this epoch, from row `position` of that order
        on.

        The order depends on the seed and the epoch alone, so a run that stops and resumes sees the
        same batches.
        """
        ...

    def sweep(self, m: int) -> Iterator[Batch]:
        """All rows in the source's own order, m at a time."""
        ...


class _Rows(Generic[Features]):
    """What both sources share: features where they lie, and targets and weights beside them, in
    memory. Targets are an (n, c) tensor, or (n,) class codes that become one-hot rows batch by
    batch.

    `keep` are the numbers of the rows that count, all where it is None: rows kept out cost no copy
    of the others. `device` is where batches are wanted, `comm` the ranks that read them together.
    """

    def __init__(  # noqa: PLR0913
        self,
        X: Features,
        y: Tensor,
        *,
        mean: Tensor,
        scale: Tensor | None = None,
        w: Tensor | None = None,
        keep: Tensor | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        comm: Communicator | None = None,
    ):
        self._comm = comm or Alone()
        self._X: Features = X
        self.d, where = X.shape[1], X.device
        self._seed, self.device = seed, torch.device(device)
        self._y, self.mean, self.c = y.to(where), mean.to(where), len(mean)
        self.scale = torch.ones_like(self.mean) if scale is None else scale.to(self.mean)
        # Targets of a class code, less their mean: one row each, while that table is small.
        few = y.ndim == 1 and len(mean) <= 2048
        self._table = (
            torch.eye(len(mean), dtype=mean.dtype, device=where) - self.mean if few else None
        )
        self._w = None if w is None else w.to(where)
        self._keep = None if keep is None else keep.to(where)
        self.n = len(y) if keep is None else len(keep)

    def _at(self, rows: Tensor) -> Tensor:
        """Their numbers in the whole data."""
        rows = rows.to(self._y.device)
        return rows if self._keep is None else self._keep[rows]

    def some(self, count: int) -> Batch:
        """From eight places."""
        places, run = torch.arange(8) * self.n // 8, torch.arange(max(1, min(count, self.n) // 8))
        return self.take(torch.unique((places[:, None] + run).clamp(max=self.n - 1)))

    def _copied_together(self, m: int) -> int:
        """Rows of as many batches as are gathered and copied to a GPU at a time: of short rows a
        batch is a moment, in which a thread that copies it would keep the loop waiting. Ranks
        share single batches.
        """
        if not is_alone(self._comm):
            return m
        row = self.d * self._X.dtype.itemsize + 8 * (2 + self.c)
        return m * max(1, min(MOST_BATCHES, TOGETHER // (m * row)))

    def take(self, rows: Tensor) -> Batch:
        raise NotImplementedError

    def targets(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        at = self._at(rows)
        y = self._y[at]
        if self._table is not None:
            Y = self._table[y]
        else:
            # The mean is taken off in its own precision, which is float64 for numbers: of 1.7e9 ±
            # 10, float32 would keep nothing.
            Y = (
                (torch.nn.functional.one_hot(y, self.c) if y.ndim == 1 else y).to(self.mean.dtype)
                - self.mean
            ) / self.scale
            Y = Y if y.ndim == 1 else Y.to(y.dtype)
        return Y, (
            torch.ones(len(at), dtype=Y.dtype, device=Y.device) if self._w is None else self._w[at]
        )


@dataclass(frozen=True)
class Part:
    """A batch of which this rank has read only the rows at `place`."""

    batch: Batch
    place: slice | Tensor  # where the rows of X stand in the batch: a slice, or numbers


class ArraySource(_Rows[Tensor]):
    """Rows of a tensor in memory.

    Those that are where batches are wanted are gathered there; rows in host memory are copied to a
    GPU while the batch before computes.
    """

    def take(self, rows: Tensor) -> Batch:
        return self._take(rows, slice(None), pin=False)

    def _take(self, rows: Tensor, place: slice, pin: bool) -> Batch:
        at = self._at(rows[place])
        X = torch.index_select(
            self._X,
            0,
            at,
            out=torch.empty(len(at), self.d, dtype=self._X.dtype, pin_memory=True) if pin else None,
        )
        return Batch(rows.to(self._X.device), X, *self.targets(rows))

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        return self._in_order(
            torch.randperm(self.n, generator=epoch_generator(self._seed, epoch))[position:], m
        )

    def sweep(self, m: int) -> Iterator[Batch]:
        return self._in_order(torch.arange(self.n), m)

    def _in_order(self, order: Tensor, m: int) -> Iterator[Batch]:
        place, copied = shard(self._comm), self.device.type == "cuda" and not self._X.is_cuda
        if not copied:
            order = order.to(self._X.device)
        step = self._copied_together(m) if copied else m
        parts: Iterator[Part] = (
            Part(self._take(order[i : i + step], place, copied), place)
            for i in range(0, len(order), step)
        )
        parts = copy_ahead(parts, self.device) if copied else parts
        return cut_batches(gather_batches(parts, self._comm), m, step)


class StreamSource(_Rows[Stream]):
    """Rows that stay in their files.

    A window of them is in memory at a time, and the next one is read while it is used: rows come in
    the order of `order.windows`, the same for the same seed however many threads or ranks read.
    `keep` must rise.
    """

    def take(self, rows: Tensor) -> Batch:
        rows = rows.cpu()
        return Batch(rows, self._X[self._at(rows)], *self.targets(rows))

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        return self._batches(m, position, epoch_generator(self._seed, epoch))

    def sweep(self, m: int) -> Iterator[Batch]:
        return self._batches(m, 0, None)

    def _batches(self, m: int, position: int, generator: torch.Generator | None) -> Iterator[Batch]:
        def load(window: tuple[Pieces, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            pieces, rows, at = window
            own = self._own(pieces, at)
            return rows, own, self._X.gathered(pieces[shard(self._comm)], at[own])

        copied = self.device.type == "cuda"
        step = self._copied_together(m) if copied else m
        parts = self._cut(one_ahead(load, self._windows(position, generator)), step)
        parts = copy_ahead(parts, self.device) if copied else parts
        return cut_batches(gather_batches(parts, self._comm), m, step)

    def _own(self, pieces: Pieces, at: Tensor) -> Tensor:
        """Which of these rows are in the pieces that this rank reads: every size-th of the
        window's.
        """
        if is_alone(self._comm):
            return torch.ones(len(at), dtype=torch.bool)
        own = torch.zeros(len(at), dtype=torch.bool)
        for first, last in pieces[shard(self._comm)]:
            own |= (at >= first) & (at < last)
        return own

    def _windows(
        self, position: int, generator: torch.Generator | None
    ) -> Iterator[tuple[Pieces, Tensor, Tensor]]:
        """Pieces, and the numbers of the rows to visit among the kept and among all; without the
        first `position` of them.
        """
        for pieces, rows in windows(self._X.cuts, self._keep, self._X.window_rows, generator):
            if position >= len(rows):
                position -= len(rows)
                continue
            yield pieces, rows[position:], self._at(rows[position:])
            position = 0

    def _cut(self, parts: Iterator[tuple[Tensor, Tensor, Tensor]], m: int) -> Iterator[Part]:
        """Windows cut into batches of m rows: row numbers, which of them are this rank's, and the
        features of these.
        """
        rows, own, X = (
            torch.empty(0, dtype=torch.long),
            torch.empty(0, dtype=torch.bool),
            torch.empty(0, self.d, dtype=self._X.dtype),
        )

        def batch(i: int, read: int) -> tuple[Part, int]:
            mine = torch.nonzero(own[i : i + m])[:, 0]
            part = Batch(
                rows[i : i + m], X[read : read + len(mine)], *self.targets(rows[i : i + m])
            )
            return Part(part, slice(None) if is_alone(self._comm) else mine), read + len(mine)

        for more in parts:
            rows, own, X = (
                (torch.cat(both) for both in zip((rows, own, X), more, strict=True))
                if len(rows)
                else more
            )
            whole, read = len(rows) // m * m, 0
            for i in range(0, whole, m):
                part, read = batch(i, read)
                yield part
            rows, own, X = rows[whole:].clone(), own[whole:].clone(), X[read:].clone()
        if len(rows):
            yield batch(0, 0)[0]


def cut_batches(batches: Iterator[Batch], m: int, step: int) -> Iterator[Batch]:
    """Batches of m rows, of those that hold `step`."""
    if step == m:
        return batches
    return (
        Batch(*(tensor[i : i + m] for tensor in batch.tensors()))
        for batch in batches
        for i in range(0, len(batch), m)
    )


def gather_batches(parts: Iterator[Part], comm: Communicator) -> Iterator[Batch]:
    """Whole batches, on every rank: the next one is gathered while this one is used."""
    if is_alone(comm):
        yield from (part.batch for part in parts)
        return
    waiting: Callable[[], Batch] | None = None
    for part in parts:
        started = _start_gather(part, comm)
        if waiting is not None:
            yield waiting()
        waiting = started
    if waiting is not None:
        yield waiting()


def _start_gather(part: Part, comm: Communicator) -> Callable[[], Batch]:
    wait = start_together(comm, part.place, len(part.batch), part.batch.X)
    return lambda: replace(part.batch, X=wait()[0])


class SourceSettings(TypedDict, total=False):
    """What a source is told beside its rows and targets; `mean` is needed."""

    mean: Required[Tensor]
    scale: Tensor | None
    w: Tensor | None
    keep: Tensor | None
    seed: int
    device: torch.device | str
    comm: Communicator | None


def source_of(
    X: Tensor | Stream, y: Tensor, **settings: Unpack[SourceSettings]
) -> ArraySource | StreamSource:
    return (
        StreamSource(X, y, **settings) if isinstance(X, Stream) else ArraySource(X, y, **settings)
    )


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


def copy_ahead(parts: Iterator[Part], device: torch.device, depth: int = 3) -> Iterator[Part]:
    """The same on a GPU.

    A thread gathers and copies the next ones on a stream of its own while this one computes.
    """
    stream = torch.cuda.Stream(device)

    def copies() -> Iterator[tuple[Part, torch.cuda.Event]]:
        for part in parts:
            with torch.cuda.stream(stream):
                held = [t if t.is_pinned() else t.pin_memory() for t in part.batch.tensors()]
                moved = Batch(*(t.to(device, non_blocking=True) for t in held))
                place = part.place if isinstance(part.place, slice) else part.place.to(device)
                ready = stream.record_event()
            yield Part(moved, place), ready

    for part, ready in ahead(copies(), depth):
        current = torch.cuda.current_stream(device)
        current.wait_event(ready)
        for tensor in (
            *part.batch.tensors(),
            *([] if isinstance(part.place, slice) else [part.place]),
        ):
            tensor.record_stream(current)
        yield part
