"""Independent work side by side: factors of a few hundred rows are too small for all cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from ..ops import own_modes

T = TypeVar("T")

WORKERS = 4  # at most, which share torch's threads


def side_by_side(work: Iterable[Callable[[], T]], device: torch.device) -> Iterator[T]:
    """What each of them returns, in their order. One after another on a GPU, and where torch has
    one thread. Whoever stops asking stops what has not begun.
    """
    threads = torch.get_num_threads()
    workers = min(WORKERS, threads) if device.type == "cpu" else 1
    if workers == 1:
        for each in work:
            yield each()
        return

    def alone(each: Callable[[], T]) -> T:
        torch.set_num_threads(threads // workers)  # of this thread
        with own_modes(gradients=True):
            return each()

    coming = iter(work)
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[T]] = deque(pool.submit(alone, each) for each in islice(coming, workers))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(alone, each) for each in islice(coming, 1))
            yield done
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # of threads that are made from now on
