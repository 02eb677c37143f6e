"""Ranks that are the processes of a torchrun job, on torch.distributed."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.types import Storage

from ..errors import InputError, RankError
from .environment import is_launched, local_size
from .heartbeat import GONE, LOST, Pulse
from .team import Alone, Communicator, T, _unless_done_in, largest

# Seconds that ranks wait for one that is heard of: it may still read, tune, solve or write.
PATIENCE = 7 * 86400.0

MEETING = 600.0  # seconds in which all ranks of a job must have come


class Ranks:
    """The processes of a torchrun job.

    Sums of tensors on GPUs of their own go by NCCL, others by Gloo. Ranks wait for each other as
    long as it takes, while all of them are heard of.
    """

    def __init__(self, device: str):
        import torch.distributed as dist

        self._dist, self._device, self._broken, self._last = dist, torch.device(device), "", None
        # Sums and broadcasts so far: the same number on all ranks is the same one.
        self.begun = 0
        self._failed = False
        with in_time():
            self._connect()

    def _connect(self) -> None:
        dist = self._dist
        if not dist.is_initialized():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            self._store, token = meet(rank, size)
            store = dist.PrefixStore(token, self._store)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE)
            )
            atexit.register(self._leave)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._host = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))
        self._sums, self.backend, self._pulse = self._host, "gloo", cast("Pulse | None", None)
        if self.size > 1 and "MASTER_ADDR" in os.environ:
            self._pulse = Pulse(self, self.same(lambda: os.urandom(8).hex()))
        own_gpu = (
            self._device.type == "cuda"
            and local_size() <= torch.cuda.device_count()
            and dist.is_nccl_available()
        )
        if largest(self, 0.0 if own_gpu else 1.0) == 0.0:  # all ranks, or none
            self._sums, self.backend = (
                dist.new_group(backend="nccl", timeout=timedelta(seconds=PATIENCE)),
                "nccl",
            )

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a model that is spread over ranks cannot be pickled; use its save(), which all ranks"
            " call together."
        )

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        total = value.contiguous()
        if self.backend == "nccl":
            total = total.to(self._device)
        work = self._last = self._begun(
            lambda: self._dist.all_reduce(total, group=self._sums, async_op=True)
        )

        def wait() -> Tensor:
            if self.backend == "nccl":
                work.wait()  # the GPU waits, not this thread; `give_up` looks after it
            else:
                self._wait(work)
            return total.to(value)

        return wait

    def all_sum(self, value: Tensor) -> Tensor:
        return self.start_sum(value)()

    def _begun(self, begin: Callable[[], T]) -> T:
        if self._broken:
            raise RankError(self._broken)
        self.begun += 1
        try:
            return begin()
        except RuntimeError:
            raise self._gone() from None

    def _gone(self, why: str = "") -> RankError:
        """What this rank says when another is gone: what that one said, if it said something."""
        if not why and self._pulse is not None:
            self._pulse.listen()
            why = self._pulse.lost
        self._broken = why or GONE.format("its connection was closed")
        return RankError(self._broken)

    def tell(self, error: Exception) -> None:
        """Let others know why this rank does not come any more."""
        self._failed = True
        if self._pulse is not None:
            self._pulse.tell(f"{type(error).__name__}: {error}")

    def _leave(self) -> None:
        """At the end of this process.

        What a lost rank left unfinished would be waited for: it is dropped.
        """
        if self._pulse is not None:
            self._pulse.leave(self._failed)
        if self._broken:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(LOST)
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _wait(self, work: torch.distributed.Work) -> None:
        while True:
            if self._pulse is not None and (why := self._pulse.lost):
                raise self._gone(why)
            try:
                work.wait(timeout=timedelta(seconds=1))
                return
            except RuntimeError as error:
                if "timed out" not in str(error) and "imeout" not in str(error):
                    raise self._gone() from None

    def same(self, make: Callable[[], T]) -> T:
        made: tuple[T | None, Exception | None] = None, None
        if self.rank == 0:
            threads = torch.get_num_threads()
            # The others wait: their cores are free.
            torch.set_num_threads(threads * local_size())
            try:
                made = make(), None
            except Exception as error:
                made = None, error
            finally:
                torch.set_num_threads(threads)
        made = self._given(made)
        if made[1] is not None:
            raise made[1]
        return cast(T, made[0])

    def _given(self, made: T) -> T:
        buffer = io.BytesIO()
        if self.rank == 0:
            torch.save(made, buffer)
        size = torch.tensor([buffer.getbuffer().nbytes])
        self._wait(
            self._begun(lambda: self._dist.broadcast(size, 0, group=self._host, async_op=True))
        )
        data = (
            torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
            if self.rank == 0
            else torch.empty(int(size), dtype=torch.uint8)
        )
        self._wait(
            self._begun(lambda: self._dist.broadcast(data, 0, group=self._host, async_op=True))
        )
        if self.rank == 0:
            return made

        def place(storage: Storage, where: str) -> Storage:
            if where == "cpu":
                return storage
            return storage.to(device=self._device)  # type: ignore[attr-defined]  # it has it

        # Sent by this job's own rank 0: what it holds is as much to be
        # trusted as this process itself.
        return torch.load(
            io.BytesIO(data.numpy().tobytes()), map_location=place, weights_only=False
        )

    def give_up(self, why: str) -> None:
        """End this process where it waits for a GPU, which cannot be told: nothing else would."""
        if self.backend == "nccl" and self._last is not None and not self._last.is_completed():
            print(f"rank {self.rank}: error: {why}", file=sys.stderr, flush=True)
            os._exit(LOST)


def meet(rank: int, size: int) -> tuple[torch.distributed.Store, str]:
    """The job's store, and a name under which these very processes meet in it. torchrun keeps
    one store for a job that it starts again: what an earlier process of the same rank left there
    must not be taken for this one's.
    """
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=MEETING)
    try:
        store = torch.distributed.TCPStore(
            address, port, None, rank == 0 and not agent, limit, wait_for_workers=False
        )
    except (RuntimeError, OSError) as error:
        raise RankError(
            f"rank {rank} cannot reach the job at {address}:{port} ({str(error)[:80]}); check"
            " MASTER_ADDR and the network."
        ) from None
    own, until = os.urandom(8).hex(), time.monotonic() + MEETING

    def said(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    store.set(f"kernelmill/here/{rank}", own)
    while time.monotonic() < until:
        if rank == 0:  # a roll of those who are here, until all of them have found themselves in it
            here = [said(f"kernelmill/here/{other}") for other in range(size)]
            if all(here) and said("kernelmill/roll") != "/".join(here):
                store.set("kernelmill/roll", "/".join(here))
            seen = [said(f"kernelmill/seen/{other}") for other in range(1, size)]
            if all(here) and all(each == "/".join(here) for each in seen):
                store.set("kernelmill/begin", "/".join(here))
        roll = said("kernelmill/roll")
        if roll.split("/")[rank : rank + 1] == [own]:
            store.set(f"kernelmill/seen/{rank}", roll)
            if said("kernelmill/begin") == roll:
                return store, hashlib.sha256(roll.encode()).hexdigest()[:16]
        time.sleep(0.02)
    raise RankError(
        f"rank {rank} waited {MEETING:g} s, and not all {size} ranks of the job came; look at the"
        " others' errors."
    )


@contextmanager
def in_time() -> Iterator[None]:
    """Ends this process where connecting takes too long: the thread that connects cannot be
    told.
    """

    def end() -> None:
        text = (
            f"the ranks of the job could not be connected in {MEETING:g} s; check the network"
            " between their machines."
        )
        print(f"rank {os.environ.get('RANK', '?')}: error: {text}", file=sys.stderr, flush=True)
        os._exit(LOST)

    with _unless_done_in(MEETING + 30, end):
        yield


_JOINED: dict[str, Ranks] = {}


def join(device: str, wanted: int | None = None) -> Communicator:
    """The ranks of this job, connected once in a process; `Alone` where it is no job.

    `wanted`: how many there should be.
    """
    if is_launched() and device not in _JOINED:
        _JOINED[device] = Ranks(device)
    comm = _JOINED[device] if is_launched() else Alone()
    if wanted is not None and wanted != comm.size:
        raise InputError(
            f"ranks={wanted} was given in a job of {comm.size}; leave it out, set ranks=1 to fit"
            f" alone, or start the script with `torchrun --nproc-per-node {wanted}`."
        )
    return comm
