"""Independent work side by side: factors of a few hundred rows are too small for all cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

import torch

from ..ops.modes import WhileAny, own_modes

T = TypeVar("T")

WORKERS = 4  # at most, which share torch's threads
# The number of a worker's threads is also that of every thread that is made later.
default_threads = WhileAny(lambda: partial(torch.set_num_threads, torch.get_num_threads()))


def workers_for(count: int, device: torch.device) -> int:
    """How many of so many pieces of work are done at a time."""
    return max(1, min(WORKERS, torch.get_num_threads(), count)) if device.type == "cpu" else 1


def side_by_side(work: Sequence[Callable[[], T]], device: torch.device) -> Iterator[T]:
    """What each of them returns, in their order. One after another on a GPU, and where torch has
    one thread. Whoever stops asking stops what has not begun.
    """
    threads, workers = torch.get_num_threads(), workers_for(len(work), device)
    if workers == 1:
        for each in work:
            yield each()
        return

    def alone(each: Callable[[], T]) -> T:
        torch.set_num_threads(threads // workers)  # of this thread
        with own_modes(gradients=True):
            return each()

    coming, waiting = iter(work), deque[Future[T]]()
    with default_threads:
        pool = ThreadPoolExecutor(workers)
        try:
            waiting.extend(pool.submit(alone, each) for each in islice(coming, workers))
            while waiting:
                done = waiting.popleft().result()
                waiting.extend(pool.submit(alone, each) for each in islice(coming, 1))
                yield done
        finally:
            pool.shutdown(cancel_futures=True)
