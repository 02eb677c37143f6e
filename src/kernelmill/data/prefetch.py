"""Work done ahead, in a thread: the next window is read, or the next batch copied, while this one
is computed with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, Full, Queue
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def one_ahead(function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """function(item) for each item, in order, the next one computed in a thread while this one is
    used. Items are made by the caller's own thread, so that all torch work stays there: every
    thread that computes with torch would start threads of its own.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[T] | None = None
        for item in items:
            later = pool.submit(function, item)
            if waiting is not None:
                yield waiting.result()
            waiting = later
        if waiting is not None:
            yield waiting.result()


def ahead(items: Iterator[T], depth: int = 1) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them made before they are wanted.

    An error is raised where its item was wanted; a consumer that leaves early ends the thread.
    """
    # An item, or what kept it from being made; None at the end.
    queue: Queue[tuple[T] | BaseException | None] = Queue(maxsize=depth)
    done = threading.Event()

    def work() -> None:
        try:
            for item in items:
                if not _put(queue, (item,), done):
                    return
            _put(queue, None, done)
        except BaseException as error:
            _put(queue, error, done)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (found := _get(queue, thread)) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0]
    finally:
        done.set()
        thread.join()


def _put(queue: Queue[S], item: S, done: threading.Event) -> bool:
    """Whether there was room for the item before `done`."""
    while not done.is_set():
        try:
            queue.put(item, timeout=0.1)
            return True
        except Full:
            continue
    return False


def _get(queue: Queue[S], thread: threading.Thread) -> S:
    """The next item of a thread that puts them."""
    while True:
        try:
            return queue.get(timeout=5)
        except Empty:
            if not thread.is_alive():
                raise RuntimeError("the thread that reads ahead ended unexpectedly") from None
