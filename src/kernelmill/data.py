"""Where (X, y) comes from: a Source has rows, batches and a position. Here, arrays in memory, on the CPU or on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any, Protocol

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

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.X, self.Y, self.w


class Source(Protocol):
    n: int
    d: int
    c: int
    mean: Tensor  # (c,) what was taken off the targets
    device: torch.device  # where batches are wanted

    def take(self, rows: Tensor) -> Batch:
        """These rows, in this order."""
        ...

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        """Batches of m rows in the random order of this epoch, from row `position` of that order on.

        The order depends on the seed and the epoch alone, so a run that stops and resumes sees the same batches.
        """
        ...

    def sweep(self, m: int) -> Iterator[Batch]:
        """All rows in the source's own order, m at a time."""
        ...


class ArraySource:
    """Rows of tensors in memory. Targets are an (n, c) tensor, or (n,) class codes that become one-hot rows batch by batch.

    `keep` are the numbers of the rows that count, all where it is None: rows kept out cost no copy of the others. `device` is where
    batches are wanted. Rows that are there already are gathered there; rows in host memory are copied while the batch before computes.
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        *,
        mean: Tensor,
        w: Tensor | None = None,
        keep: Tensor | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ):
        self._X, self._seed, self.device = X, seed, torch.device(device)
        self._y, self.mean = y.to(X.device), mean.to(X.device)
        # Targets of a class code, less their mean: one row each, while that table is small.
        few = y.ndim == 1 and len(mean) <= 2048
        self._targets = torch.eye(len(mean), dtype=mean.dtype, device=X.device) - self.mean if few else None
        self._w = None if w is None else w.to(X.device)
        self._keep = None if keep is None else keep.to(X.device)
        self.n, self.d, self.c = len(X) if keep is None else len(keep), X.shape[1], len(mean)

    def take(self, rows: Tensor) -> Batch:
        return self._take(rows, pin=False)

    def _take(self, rows: Tensor, pin: bool) -> Batch:
        rows = rows.to(self._X.device)
        at = rows if self._keep is None else self._keep[rows]
        X = torch.index_select(self._X, 0, at, out=torch.empty(len(at), self.d, dtype=self._X.dtype, pin_memory=True) if pin else None)
        y = self._y[at]
        if self._targets is not None:
            Y = self._targets[y]
        else:
            Y = (torch.nn.functional.one_hot(y, self.c) if y.ndim == 1 else y).to(self.mean.dtype) - self.mean
        w = torch.ones(len(at), dtype=Y.dtype, device=Y.device) if self._w is None else self._w[at]
        return Batch(rows, X, Y, w)

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
        return self._in_order(torch.randperm(self.n, generator=generator)[position:], m)

    def sweep(self, m: int) -> Iterator[Batch]:
        return self._in_order(torch.arange(self.n), m)

    def _in_order(self, order: Tensor, m: int) -> Iterator[Batch]:
        if self.device.type == "cuda" and not self._X.is_cuda:
            return copied_ahead((self._take(order[i : i + m], pin=True) for i in range(0, len(order), m)), self.device)
        order = order.to(self._X.device)
        return (self.take(order[i : i + m]) for i in range(0, len(order), m))


def copied_ahead(batches: Iterator[Batch], device: torch.device, depth: int = 3) -> Iterator[Batch]:
    """The same batches on a GPU. A thread gathers and copies the next ones on a stream of its own while this one computes."""
    queue: Queue[Any] = Queue(maxsize=depth)
    done = threading.Event()
    stream = torch.cuda.Stream(device)

    def put(item: Any) -> bool:
        while not done.is_set():
            try:
                queue.put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                with torch.cuda.stream(stream):
                    held = [t if t.is_pinned() else t.pin_memory() for t in batch.tensors()]
                    moved = Batch(*(t.to(device, non_blocking=True) for t in held))
                    ready = stream.record_event()
                if not put((moved, ready)):
                    return
            put(None)
        except BaseException as error:  # raised where the batch was wanted
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = queue.get(timeout=5)
            except Empty:
                if not thread.is_alive():
                    raise RuntimeError("the thread that reads batches ended without a word") from None
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            batch, ready = item
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in batch.tensors():
                tensor.record_stream(current)
            yield batch
    finally:
        done.set()
        thread.join()
