"""Communicators. The mathematics asks for sums over ranks and never for how many there are.

`Alone` is one process: sums are the identity. `Ranks` are the processes of a torchrun job, on torch.distributed. `ThreadRank` are threads
of one process, for tests and as the specification of the others. Centers, and everything that has a row for each, are dealt out like
cards: rank r has rows r, r + size, r + 2·size, …
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from .errors import InputError, RankError

log = logging.getLogger("kernelmill")

P = ParamSpec("P")
T = TypeVar("T")

LATE = 60.0  # seconds after which a rank says that it waits for the others to make the same call
LINGER = 3.0  # seconds that rank 0, whose process has the store, waits at its end for others to hear why it failed
SILENCE = 20.0  # seconds without a word after which a rank is taken for lost
PATIENCE = 7 * 86400.0  # seconds that ranks wait for one that is heard of: it may still read, tune, solve or write
MEETING = 600.0  # seconds in which all ranks of a job must have come
LOST = 8  # exit code of a process that is ended because another one was lost
TILES = 4  # parts in which a sum over ranks is begun while the next is computed
TILE_ROWS = 512  # the least rows of such a part: a block of fewer reads all centers for too little


class Communicator(Protocol):
    rank: int
    size: int

    def all_sum(self, value: Tensor) -> Tensor:
        """The sum over ranks, the same bits on each. `value` is given away: the sum may take its place."""
        ...

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        """The same, begun now; the call of what is returned waits for it."""
        ...

    def same(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank: the others wait for it. An error of rank 0 is raised on all."""
        ...


def shard(comm: Communicator) -> slice:
    """This rank's rows of Z or of a batch. Rows are dealt out like cards, so that every batch and every prefix is spread evenly."""
    return slice(comm.rank, None, comm.size)


def count(comm: Communicator, rows: int) -> int:
    """How many of the first `rows` rows are this rank's."""
    return max(0, (rows - comm.rank + comm.size - 1) // comm.size)


def start_together(comm: Communicator, place: Any, rows: int, *parts: Tensor) -> Callable[[], list[Tensor]]:
    """Tensors of `rows` rows, on every rank; `parts` are this rank's rows of them, which stand at `place`. Begun now, waited for by a call.
    They go as bytes, in one sum: where one rank has a row, the others add zeros."""
    if comm.size == 1:
        return lambda: list(parts)
    flat = [part.reshape(len(part), math.prod(part.shape[1:])).contiguous().view(torch.uint8) for part in parts]
    widths = [piece.shape[1] for piece in flat]
    whole = torch.zeros(rows, sum(widths), dtype=torch.uint8, device=parts[0].device)
    whole[place] = torch.cat(flat, 1)
    wait = comm.start_sum(whole)

    def gathered() -> list[Tensor]:
        pieces = wait().split(widths, 1)
        return [piece.contiguous().view(part.dtype).view(rows, *part.shape[1:]) for piece, part in zip(pieces, parts, strict=True)]

    return gathered


def start_gather(comm: Communicator, start: int, stop: int, *mine: Tensor) -> Callable[[], list[Tensor]]:
    """Rows start … stop of sharded tensors, on every rank; `mine` are this rank's among them."""
    return start_together(comm, slice((comm.rank - start) % comm.size, None, comm.size), stop - start, *mine)


def gather(comm: Communicator, mine: Tensor, start: int, stop: int) -> Tensor:
    return start_gather(comm, start, stop, mine)()[0]


def largest(comm: Communicator, value: float) -> float:
    """The largest of the ranks' values, on each."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return comm.all_sum(values).max().item()


def agree(comm: Communicator, facts: dict[str, str]) -> None:
    """Raise on every rank unless all have the same facts. What begins with # is a checksum, which nobody wants to read."""
    if comm.size == 1:
        return
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
    return [bytes(row[:length].tolist()).decode() for row, length in zip(comm.all_sum(table), lengths.tolist(), strict=True)]


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
    """A rank that waits at the door of a call says so: perhaps the others were never told to call it."""
    text = "rank %d has waited %g s in %s for another rank, and goes on waiting; all ranks call fit, predict, score and save together"
    with _unless_done_in(LATE, lambda: log.warning(text, comm.rank, LATE, call)):
        yield


def together(where: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For methods that all ranks call: an error of this rank is told to those that would wait for it. `where` an object has its ranks."""

    def told(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                with suppress(AttributeError):  # not fitted yet
                    if isinstance(comm := attrgetter(where)(args[0]), Ranks):
                        comm.tell(error)
                raise

        return call

    return told


def by_tiles(comm: Communicator, rows: int, part: Callable[[slice], Tensor]) -> Tensor:
    """part(slice of rows) summed over ranks: the sum of one tile runs while the next is computed. One process has one tile."""
    tiles = 1 if comm.size == 1 else max(1, min(TILES, rows // TILE_ROWS))
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
    """The processes of a torchrun job. Sums of tensors on GPUs of their own go by NCCL, others by Gloo. Ranks wait for each other as long
    as it takes, while all of them are heard of."""

    def __init__(self, device: str):
        import torch.distributed as dist

        self._dist, self._device, self._broken, self._last = dist, torch.device(device), "", None
        self.begun = 0  # sums and broadcasts so far: the same number on all ranks is the same one
        self._failed = False
        with in_time():
            self._connect()

    def _connect(self) -> None:
        dist = self._dist
        if not dist.is_initialized():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            self._store, token = meet(rank, size)
            store = dist.PrefixStore(token, self._store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
            atexit.register(self._leave)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._host = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))
        self._sums, self.backend, self._pulse = self._host, "gloo", cast("Pulse | None", None)
        if self.size > 1 and "MASTER_ADDR" in os.environ:
            self._pulse = Pulse(self, self.same(lambda: os.urandom(8).hex()))
        own_gpu = self._device.type == "cuda" and local_size() <= torch.cuda.device_count() and dist.is_nccl_available()
        if largest(self, 0.0 if own_gpu else 1.0) == 0.0:  # all ranks, or none
            self._sums, self.backend = dist.new_group(backend="nccl", timeout=timedelta(seconds=PATIENCE)), "nccl"

    def __reduce__(self) -> Any:
        raise InputError("a model that is spread over ranks cannot be pickled; use its save(), which all ranks call together.")

    def start_sum(self, value: Tensor) -> Callable[[], Tensor]:
        total = value.contiguous()
        if self.backend == "nccl":
            total = total.to(self._device)
        work = self._last = self._begun(lambda: self._dist.all_reduce(total, group=self._sums, async_op=True))

        def wait() -> Tensor:
            if self.backend == "nccl":
                work.wait()  # the GPU waits, not this thread; `give_up` looks after it
            else:
                self._wait(work)
            return total.to(value)

        return wait

    def all_sum(self, value: Tensor) -> Tensor:
        return self.start_sum(value)()

    def _begun(self, begin: Callable[[], Any]) -> Any:
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
        """At the end of this process. What a lost rank left unfinished would be waited for: it is dropped."""
        if self._pulse is not None:
            self._pulse.leave(self._failed)
        if self._broken:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(LOST)
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _wait(self, work: Any) -> None:
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
        made: tuple[Any, Any] = None, None
        if self.rank == 0:
            threads = torch.get_num_threads()
            torch.set_num_threads(threads * local_size())  # the others wait: their cores are free
            try:
                made = make(), None
            except Exception as error:
                made = None, error
            finally:
                torch.set_num_threads(threads)
        made = self._given(made)
        if made[1] is not None:
            raise made[1]
        return made[0]

    def _given(self, made: Any) -> Any:
        buffer = io.BytesIO()
        if self.rank == 0:
            torch.save(made, buffer)
        size = torch.tensor([buffer.getbuffer().nbytes])
        self._wait(self._begun(lambda: self._dist.broadcast(size, 0, group=self._host, async_op=True)))
        data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        self._wait(self._begun(lambda: self._dist.broadcast(data, 0, group=self._host, async_op=True)))
        if self.rank == 0:
            return made

        def place(storage: Any, where: str) -> Any:
            return storage if where == "cpu" else storage.to(device=self._device)

        # Sent by this job's own rank 0: what it holds is as much to be trusted as this process itself.
        return torch.load(io.BytesIO(data.numpy().tobytes()), map_location=place, weights_only=False)

    def give_up(self, why: str) -> None:
        """End this process where it waits for a GPU, which cannot be told: nothing else would."""
        if self.backend == "nccl" and self._last is not None and not self._last.is_completed():
            print(f"rank {self.rank}: error: {why}", file=sys.stderr, flush=True)
            os._exit(LOST)


def meet(rank: int, size: int) -> tuple[Any, str]:
    """The job's store, and a name under which these very processes meet in it. torchrun keeps one store for a job that it starts again:
    what an earlier process of the same rank left there must not be taken for this one's."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=MEETING)
    try:
        store = torch.distributed.TCPStore(address, port, None, rank == 0 and not agent, limit, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        raise RankError(
            f"rank {rank} cannot reach the job at {address}:{port} ({str(error)[:80]}); check MASTER_ADDR and the network."
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
    raise RankError(f"rank {rank} waited {MEETING:g} s, and not all {size} ranks of the job came; look at the others' errors.")


@contextmanager
def in_time() -> Iterator[None]:
    """Ends this process where connecting takes too long: the thread that connects cannot be told."""

    def end() -> None:
        text = f"the ranks of the job could not be connected in {MEETING:g} s; check the network between their machines."
        print(f"rank {os.environ.get('RANK', '?')}: error: {text}", file=sys.stderr, flush=True)
        os._exit(LOST)

    with _unless_done_in(MEETING + 30, end):
        yield


TOGETHER = "all ranks need the same data and settings, and call fit, predict, score and save together."
GONE = "another rank was lost ({}); start the job again with resume=True to go on from its last checkpoint."


class Pulse:
    """Every rank says in the job's store that it is there, and listens to the next one. A rank that raises an error says that too, with the
    number of sums it had begun: one that waits in a later sum knows that it waits for nothing, unless it failed at the same point."""

    def __init__(self, ranks: Ranks, token: str):
        self._ranks, self._token, self._silence = ranks, token, silence()
        self._following, self._quiet, self._told = (ranks.rank + 1) % ranks.size, 0.0, ""
        self._listening = threading.Lock()
        self._heard, self._others, self._own = 0, cast("list[tuple[int, int, str]]", []), cast("set[int]", set())
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = torch.distributed.TCPStore(address, port, is_master=False, wait_for_workers=False)
        for work in (self._beat, self._watch):
            threading.Thread(target=work, daemon=True, name="kernelmill-pulse").start()

    @property
    def lost(self) -> str:
        """Who does not come any more, as a sentence, or nothing."""
        if not self._told and self._quiet > self._silence:
            self._told = GONE.format(f"nothing was heard of rank {self._following} for {self._silence:g} s")
        for rank, begun, said in self._others:
            if not self._told and begun < self._ranks.begun and not (said and begun in self._own):
                ended = f"rank {rank} has ended, and rank {self._ranks.rank} waits for it; {TOGETHER}"
                self._told = f"rank {rank} ended this job with {said}" if said else ended
        return self._told

    def tell(self, said: str) -> None:
        """Nothing: this process ends."""
        self._own.add(self._ranks.begun)
        with suppress(RuntimeError, OSError):
            number = self._store.add(self._key("failures"), 1)
            self._store.set(self._key(f"failure-{number}"), json.dumps([self._ranks.rank, self._ranks.begun, said]))

    def listen(self) -> None:
        """To what other ranks told."""
        with self._listening, suppress(RuntimeError, OSError):
            count = self._store.add(self._key("failures"), 0)
            while self._heard < count and self._store.check([self._key(f"failure-{self._heard + 1}")]):
                self._heard += 1
                rank, begun, said = json.loads(self._store.get(self._key(f"failure-{self._heard}")))
                if rank != self._ranks.rank:
                    self._others.append((rank, begun, said))

    def leave(self, failed: bool) -> None:
        """Rank 0 may have the store in its process: where it failed, others are given the time to hear why."""
        self.tell("")
        until = time.monotonic() + (LINGER if failed and self._ranks.rank == 0 else 0.0)
        with suppress(RuntimeError, OSError):
            gone = self._store.add(self._key("gone"), 1)
            while gone < self._ranks.size and time.monotonic() < until:
                time.sleep(0.05)
                gone = self._store.add(self._key("gone"), 0)

    def _key(self, name: Any) -> str:
        return f"kernelmill/{self._token}/{name}"

    def _beat(self) -> None:
        """May hang with the network: then nothing is heard any more, which is what `lost` goes by."""
        last, count = "", 0
        while True:
            time.sleep(self._silence / 10)
            count += 1
            with suppress(RuntimeError, OSError):
                self._store.set(self._key(self._ranks.rank), str(count))
                if self.lost:
                    self._store.set(self._key("lost"), self.lost)
                if self._store.check([self._key("lost")]):
                    self._told = self._told or self._store.get(self._key("lost")).decode()
                self.listen()
                if self._store.check([self._key(self._following)]):
                    now = self._store.get(self._key(self._following)).decode()
                    last, self._quiet = now, self._quiet if now == last else 0.0

    def _watch(self) -> None:
        """Counts while it runs: a process that was stopped for a while has heard nothing, and lost nobody."""
        while True:
            time.sleep(self._silence / 20)
            self._quiet += self._silence / 20
            if self.lost:
                self._ranks.give_up(self.lost)


def silence() -> float:
    """Seconds without a word after which a rank is taken for lost."""
    text = os.environ.get("KERNELMILL_SILENCE", "")
    try:
        value = float(text) if text else SILENCE
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError(f"KERNELMILL_SILENCE={text!r} is set, expected a number of seconds above 0.")
    return value


def launched() -> bool:
    """Whether this process is one of a torchrun job, or of a process group that was made already."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


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
