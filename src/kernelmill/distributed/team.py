"""Communicators: the mathematics asks for sums over ranks and never for how many there are.

`Alone` is one process: sums are the identity. Centers, and everything that has a row for each, are
sharded by stride: rank r has rows r, r + size, r + 2·size, …
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from operator import attrgetter
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import InputError

log = logging.getLogger("kernelmill")

P = ParamSpec("P")

T = TypeVar("T")

LATE = 60.0  # seconds after which a rank says that it waits for the others to make the same call

TILES = 4  # parts in which a sum over ranks is begun while the next is computed

# The least rows of such a part: a block of fewer reads all centers for too little.
LEAST_TILE_ROWS = 512


class Communicator(Protocol):
    rank: int
    size: int

    def all_sum(self, value: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each.

        `value` is given away: the sum may take its place.
        """
        ...

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        """The same, begun now; the call of what is returned waits for it."""
        ...

    def same(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank: the others wait for it.

        An error of rank 0 is raised on all.
        """
        ...

    def tell(self, error: Exception) -> None:
        """Let the ranks that wait for this one know why it does not come."""
        ...


def is_alone(comm: Communicator) -> bool:
    """Whether there is one rank, which has all rows and centers."""
    return comm.size == 1


def leads(comm: Communicator) -> bool:
    """Whether this is the rank that speaks and writes for all."""
    return comm.rank == 0


def every_rank(comm: Communicator, done: bool) -> bool:
    """Whether all ranks have done it."""
    return comm.all_sum(torch.tensor(float(done))).item() == comm.size


def owns(comm: Communicator, i: int) -> bool:
    """Whether the i-th of many is this rank's."""
    return i % comm.size == comm.rank


def own_rows(comm: Communicator, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Which of these rows are this rank's, and where each stands among the rows of its rank."""
    return numbers % comm.size == comm.rank, numbers // comm.size


def has_ranks(comm: Communicator, count: int) -> bool:
    """Whether there are so many ranks."""
    return comm.size == count


def is_last(comm: Communicator, i: int, count: int) -> bool:
    """Whether no one of `count` after the i-th is this rank's."""
    return i + comm.size >= count


def as_many(comm: Communicator, other: Communicator) -> bool:
    """Whether two jobs have the same number of ranks."""
    return comm.size == other.size


def any_rank(comm: Communicator, *wishes: bool) -> list[bool]:
    """For each wish, whether any rank has it: all ranks then do the same."""
    if comm.size == 1:
        return list(wishes)
    return [bool(wish) for wish in comm.all_sum(torch.tensor(wishes, dtype=torch.float64)).tolist()]


def shard(comm: Communicator) -> slice:
    """This rank's rows of Z or of a batch.

    Rows are dealt out like cards, so that every batch and every prefix is spread evenly.
    """
    return slice(comm.rank, None, comm.size)


def count(comm: Communicator, rows: int) -> int:
    """How many of the first `rows` rows are this rank's."""
    return max(0, (rows - comm.rank + comm.size - 1) // comm.size)


def start_together(
    comm: Communicator, place: Tensor | slice, rows: int, *parts: Tensor
) -> Callable[[], list[Tensor]]:
    """Tensors of `rows` rows, on every rank; `parts` are this rank's rows of them, which stand at
    `place`. Begun now, waited for by a call. They go as bytes, in one sum: where one rank has a
    row, the others add zeros.
    """
    if comm.size == 1:
        return lambda: list(parts)
    flat = [
        part.reshape(len(part), math.prod(part.shape[1:])).contiguous().view(torch.uint8)
        for part in parts
    ]
    widths = [piece.shape[1] for piece in flat]
    whole = torch.zeros(rows, sum(widths), dtype=torch.uint8, device=parts[0].device)
    whole[place] = torch.cat(flat, 1)
    wait = comm.start_sum(whole)

    def gathered() -> list[Tensor]:
        pieces = wait().split(widths, 1)
        return [
            piece.contiguous().view(part.dtype).view(rows, *part.shape[1:])
            for piece, part in zip(pieces, parts, strict=True)
        ]

    return gathered


def start_gather(
    comm: Communicator, start: int, stop: int, *mine: Tensor
) -> Callable[[], list[Tensor]]:
    """Rows start … stop of sharded tensors, on every rank; `mine` are this rank's among them."""
    return start_together(
        comm, slice((comm.rank - start) % comm.size, None, comm.size), stop - start, *mine
    )


def gather(comm: Communicator, mine: Tensor, start: int, stop: int) -> Tensor:
    return start_gather(comm, start, stop, mine)()[0]


def largest(comm: Communicator, value: float) -> float:
    """The largest of the ranks' values, on each."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return comm.all_sum(values).max().item()


def agree(comm: Communicator, facts: dict[str, str] | Callable[[], dict[str, str]]) -> None:
    """Raise on every rank unless all have the same facts.

    What begins with # is a checksum, which nobody wants to read.
    """
    if comm.size == 1:
        return
    facts = facts if isinstance(facts, dict) else facts()
    with _said_when_late(comm, facts["call"]):
        everyone = [json.loads(text) for text in _texts(comm, json.dumps(facts))]
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for name in {**first, **other}:
            theirs, ours = other.get(name, "none"), first.get(name, "none")
            if theirs == ours:
                continue
            if name == "call":
                raise InputError(f"rank {rank} is in {theirs} and rank 0 in {ours}; {TOGETHER}")
            if theirs.startswith("#"):
                raise InputError(f"rank {rank} has other {name} than rank 0; {TOGETHER}")
            raise InputError(f"rank {rank} has {name} {theirs}, and rank 0 {ours}; {TOGETHER}")


def _texts(comm: Communicator, own: str) -> list[str]:
    """Every rank's text, on each."""
    data = torch.tensor(list(own.encode()), dtype=torch.uint8)
    lengths = torch.zeros(comm.size, dtype=torch.int64)
    lengths[comm.rank] = len(data)
    lengths = comm.all_sum(lengths)
    table = torch.zeros(comm.size, int(lengths.max()), dtype=torch.uint8)
    table[comm.rank, : len(data)] = data
    return [
        bytes(row[:length].tolist()).decode()
        for row, length in zip(comm.all_sum(table), lengths.tolist(), strict=True)
    ]


@contextmanager
def _unless_done_in(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Acts, once, where what stands inside takes longer."""
    late = threading.Timer(seconds, act)
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def _said_when_late(comm: Communicator, call: str) -> Iterator[None]:
    """A rank that waits at the door of a call says so: perhaps the others were never told to call
    it.
    """
    text = (
        "rank %d has waited %g s in %s for another rank, and keeps waiting; all ranks call fit,"
        " predict, score and save together"
    )
    with _unless_done_in(LATE, lambda: log.warning(text, comm.rank, LATE, call)):
        yield


@contextmanager
def telling(comm: Communicator) -> Iterator[None]:
    """An error of this rank is told to those that would wait for it."""
    try:
        yield
    except Exception as error:
        comm.tell(error)
        raise


def together(where: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For methods that all ranks call: an error of this rank is told to those that would wait for
    it. `where` an object has its ranks.
    """

    def told(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                with suppress(AttributeError):  # not fitted yet
                    attrgetter(where)(args[0]).tell(error)
                raise

        return call

    return told


def by_tiles(comm: Communicator, rows: int, part: Callable[[slice], Tensor]) -> Tensor:
    """part(slice of rows) summed over ranks: the sum of one tile runs while the next is computed.

    One process has one tile.
    """
    tiles = 1 if comm.size == 1 else max(1, min(TILES, rows // LEAST_TILE_ROWS))
    step = -(-rows // tiles)
    sums = [comm.start_sum(part(slice(i, min(i + step, rows)))) for i in range(0, rows, step)]
    return torch.cat([wait() for wait in sums]) if len(sums) > 1 else sums[0]()


class Alone:
    """One process: a sum over ranks is the identity."""

    rank, size = 0, 1

    def all_sum(self, value: Tensor) -> Tensor:
        return value

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        return lambda: value

    def same(self, make: Callable[[], T]) -> T:
        return make()

    def tell(self, error: Exception) -> None:
        """Nobody waits."""


TOGETHER = (
    "all ranks need the same data and settings, and call fit, predict, score and save together."
)
