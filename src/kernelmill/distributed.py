"""Communicators. The mathematics asks for a sum over ranks and never for how many there are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Communicator(Protocol):
    rank: int
    size: int

    def all_sum(self, value: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each. The only collective: everything else is made of it."""
        ...


def shard(comm: Communicator) -> slice:
    """This rank's rows of Z or of a batch. Rows are dealt out like cards, so that every batch and every prefix is spread evenly."""
    return slice(comm.rank, None, comm.size)


def count(comm: Communicator, rows: int) -> int:
    """How many of the first `rows` rows are this rank's."""
    return max(0, (rows - comm.rank + comm.size - 1) // comm.size)


def gather(comm: Communicator, mine: Tensor, start: int, stop: int) -> Tensor:
    """Rows start … stop of a sharded tensor, on every rank; `mine` are this rank's among them."""
    if comm.size == 1:
        return mine
    whole = mine.new_zeros(stop - start, *mine.shape[1:])
    whole[(comm.rank - start) % comm.size :: comm.size] = mine
    return comm.all_sum(whole)


class Alone:
    """One process: a sum over ranks is the identity."""

    rank, size = 0, 1

    def all_sum(self, value: Tensor) -> Tensor:
        return value


class ThreadRank:
    """One of several ranks that are threads of this process: for tests, and as the specification of the others."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list[Any]):
        self.rank, self.size, self._barrier, self._board = rank, size, barrier, board

    def all_sum(self, value: Tensor) -> Tensor:
        self._board[self.rank] = value
        self._barrier.wait(timeout=120)
        total = torch.zeros_like(value)
        for part in self._board:  # in the order of ranks, so that every rank gets the same bits
            total += part
        self._barrier.wait(timeout=120)
        return total


def run_threads(size: int, work: Callable[[Communicator], Any]) -> list[Any]:
    """`work(comm)` on `size` thread ranks; their results in order of rank. An error on one rank ends all."""
    barrier, board = threading.Barrier(size), [None] * size
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRank(rank, size, barrier, board))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
