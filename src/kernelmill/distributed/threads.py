"""Ranks that are threads of one process: for tests, and as the specification of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .team import Communicator, T


class ThreadRank:
    """One of several ranks that are threads of this process."""

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

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        total = self.all_sum(value)
        return lambda: total

    def same(self, make: Callable[[], T]) -> T:
        if self.rank == 0:
            self._board[0] = make()
        self._barrier.wait(timeout=120)
        value = self._board[0]
        self._barrier.wait(timeout=120)
        return value

    def tell(self, error: Exception) -> None:
        """`run_threads` ends the others."""


def run_threads(size: int, work: Callable[[Communicator], T]) -> list[T]:
    """`work(comm)` on `size` thread ranks; their results in order of rank.

    An error on one rank ends all.
    """
    barrier, board = threading.Barrier(size), [None] * size
    results: dict[int, T] = {}
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
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )
    return [results[rank] for rank in range(size)]
