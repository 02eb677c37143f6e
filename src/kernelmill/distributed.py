"""Communicators. The mathematics asks for sums over ranks and never for how many there are.

`Alone` is one process: sums are the identity. `Ranks` are the processes of a torchrun job, on torch.distributed. `ThreadRank` are threads
of one process, for tests and as the specification of the others. Centers, and everything that has a row for each, are dealt out like
cards: rank r has rows r, r + size, r + 2·size, …
"""

from __future__ import annotations

import atexit
import io
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from .errors import InputError, RankError

T = TypeVar("T")

STEP_SECONDS = 20.0  # that a sum in the middle of training may take: a rank that is gone is noticed within this
PATIENT_SECONDS = 1800.0  # that ranks wait for each other elsewhere: one may still read, tune or write
TILES = 4  # parts in which a sum over ranks is begun while the next is computed
TILE_ROWS = 128  # the least rows of such a part


class Communicator(Protocol):
    rank: int
    size: int

    def all_sum(self, value: Tensor, patient: bool = False) -> Tensor:
        """The sum over ranks, the same bits on each."""
        ...

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        """The same, begun now; the call of what is returned waits for it. `value` is not to be changed meanwhile."""
        ...

    def same(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank: the others wait for it. An error of rank 0 is raised on all."""
        ...

    def lockstep(self, on: bool) -> None:
        """Whether ranks are in the middle of training, where none waits long for another."""
        ...


def shard(comm: Communicator) -> slice:
    """This rank's rows of Z or of a batch. Rows are dealt out like cards, so that every batch and every prefix is spread evenly."""
    return slice(comm.rank, None, comm.size)


def count(comm: Communicator, rows: int) -> int:
    """How many of the first `rows` rows are this rank's."""
    return max(0, (rows - comm.rank + comm.size - 1) // comm.size)


def start_gather(comm: Communicator, mine: Tensor, start: int, stop: int) -> Callable[[], Tensor]:
    """Rows start … stop of a sharded tensor, on every rank; `mine` are this rank's among them. Begun now, waited for by a call."""
    if comm.size == 1:
        return lambda: mine
    whole = mine.new_zeros(stop - start, *mine.shape[1:])
    whole[(comm.rank - start) % comm.size :: comm.size] = mine
    return comm.start_sum(whole)


def gather(comm: Communicator, mine: Tensor, start: int, stop: int) -> Tensor:
    return start_gather(comm, mine, start, stop)()


def largest(comm: Communicator, value: float) -> float:
    """The largest of the ranks' values, on each."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return comm.all_sum(values).max().item()


def by_tiles(comm: Communicator, rows: int, part: Callable[[slice], Tensor]) -> Tensor:
    """part(slice of rows) summed over ranks: the sum of one tile runs while the next is computed. One process has one tile."""
    tiles = 1 if comm.size == 1 else max(1, min(TILES, rows // TILE_ROWS))
    step = -(-rows // tiles)
    sums = [comm.start_sum(part(slice(i, min(i + step, rows)))) for i in range(0, rows, step)]
    return torch.cat([wait() for wait in sums]) if len(sums) > 1 else sums[0]()


class Alone:
    """One process: a sum over ranks is the identity."""

    rank, size = 0, 1

    def all_sum(self, value: Tensor, patient: bool = False) -> Tensor:
        return value

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        return lambda: value

    def same(self, make: Callable[[], T]) -> T:
        return make()

    def lockstep(self, on: bool) -> None:
        pass


class ThreadRank:
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list[Any]):
        self.rank, self.size, self._barrier, self._board = rank, size, barrier, board

    def all_sum(self, value: Tensor, patient: bool = False) -> Tensor:
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

    def lockstep(self, on: bool) -> None:
        pass


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


# ---- torch.distributed -----------------------------------------------------------------------------------------------------------


class Ranks:
    """The processes of a torchrun job. Sums of tensors on GPUs of their own go by NCCL, others by Gloo. Several groups of the same ranks
    differ in how long they wait."""

    def __init__(self, device: str):
        import torch.distributed as dist

        self._dist, self._device, self._stepping = dist, torch.device(device), False
        own_gpu = self._device.type == "cuda" and local_size() <= torch.cuda.device_count() and dist.is_nccl_available()
        self.backend = "nccl" if own_gpu else "gloo"
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENT_SECONDS))
            atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._host = self._group("gloo", PATIENT_SECONDS)
        self._slow = self._host if self.backend == "gloo" else self._group(self.backend, PATIENT_SECONDS)
        self._steps = self._group(self.backend, step_seconds())

    def _group(self, backend: str, seconds: float) -> Any:
        return self._dist.new_group(backend=backend, timeout=timedelta(seconds=seconds))

    def __reduce__(self) -> Any:
        raise InputError("a model that is spread over ranks cannot be pickled; use its save(), which all ranks call together.")

    def _begin(self, value: Tensor, patient: bool) -> Callable[[], Tensor]:
        group = self._steps if self._stepping and not patient else self._slow
        total = value.contiguous().clone()
        if self.backend == "nccl":
            total = total.to(self._device)
        elif total.dtype == torch.bfloat16:
            total = total.float()  # which Gloo cannot add
        try:
            work = self._dist.all_reduce(total, group=group, async_op=True)
        except RuntimeError as error:
            raise lost(error) from None

        def wait() -> Tensor:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost(error) from None
            return total.to(value)

        return wait

    def all_sum(self, value: Tensor, patient: bool = False) -> Tensor:
        return self._begin(value, patient)()

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        return self._begin(value, False)

    def same(self, make: Callable[[], T]) -> T:
        made: tuple[Any, Any] = None, None
        if self.rank == 0:
            try:
                made = make(), None
            except Exception as error:
                made = None, error
        try:
            made = self._given(made)
        except RuntimeError as error:
            raise lost(error) from None
        if made[1] is not None:
            raise made[1]
        return made[0]

    def _given(self, made: Any) -> Any:
        buffer = io.BytesIO()
        if self.rank == 0:
            torch.save(made, buffer)
        size = torch.tensor([buffer.getbuffer().nbytes])
        self._dist.broadcast(size, 0, group=self._host)
        data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._dist.broadcast(data, 0, group=self._host)
        if self.rank == 0:
            return made

        def place(storage: Any, where: str) -> Any:
            return storage if where == "cpu" else storage.cuda(self._device)

        # Sent by this job's own rank 0: what it holds is as much to be trusted as this process itself.
        return torch.load(io.BytesIO(data.numpy().tobytes()), map_location=place, weights_only=False)

    def lockstep(self, on: bool) -> None:
        self._stepping = on


def lost(error: BaseException) -> RankError:
    """What a failed sum means to the user."""
    text = " ".join(str(error).split())
    why = "none came for too long" if "imed out" in text or "imeout" in text else "its connection was closed"
    return RankError(f"another rank was lost ({why}); start the job again with resume=True to go on from its last checkpoint.")


def step_seconds() -> float:
    text = os.environ.get("KERNELMILL_STEP_SECONDS", "")
    try:
        value = float(text) if text else STEP_SECONDS
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError(f"KERNELMILL_STEP_SECONDS={text!r} is set, expected a number of seconds above 0.")
    return value


def launched() -> bool:
    """Whether this process is one of a torchrun job, or of a process group that was made already."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launched_rank() -> int:
    """This process's number in its job, 0 where there is none; known before anything is connected."""
    return int(os.environ.get("RANK", 0)) if launched() else 0


def local_size() -> int:
    """How many ranks of the job share this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1))) if launched() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if launched() else 0


def restarted() -> bool:
    """Whether torchrun has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


_JOINED: dict[str, Ranks] = {}


def join(device: str) -> Communicator:
    """The ranks of this job, connected once in a process; `Alone` where it is no job."""
    if not launched():
        return Alone()
    if device not in _JOINED:
        _JOINED[device] = Ranks(device)
    return _JOINED[device]
