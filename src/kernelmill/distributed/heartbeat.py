"""The heartbeat of a rank: how the others learn that it is alive, has failed, or is lost."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import Protocol, cast

import torch

from ..errors import InputError
from .team import TOGETHER

# Seconds that rank 0, whose process has the store, waits at its end for
# others to hear why it failed.
LINGER = 3.0
SILENCE = 20.0  # seconds without a word after which a rank is taken for lost

LOST = 8  # exit code of a process that is ended because another one was lost

GONE = (
    "another rank was lost ({}); start the job again with resume=True to resume from its"
    " last checkpoint."
)


class Watched(Protocol):
    """A rank: its place, the sums it has begun, and how it is told that another is lost."""

    rank: int
    size: int
    begun: int

    def give_up(self, why: str) -> None: ...


class Pulse:
    """Every rank says in the job's store that it is there, and listens to the next one.

    A rank that raises an error says that too, with the number of sums it had begun: one that
    waits in a later sum knows that it waits for nothing, unless it failed at the same point.
    """

    def __init__(self, ranks: Watched, token: str):
        self._ranks, self._token, self._silence = ranks, token, silence()
        self._following, self._quiet, self._told = (ranks.rank + 1) % ranks.size, 0.0, ""
        self._listening = threading.Lock()
        self._heard, self._others, self._own = (
            0,
            cast("list[tuple[int, int, str]]", []),
            cast("set[int]", set()),
        )
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = torch.distributed.TCPStore(
            address, port, is_master=False, wait_for_workers=False
        )
        for work in (self._beat, self._watch):
            threading.Thread(target=work, daemon=True, name="kernelmill-pulse").start()

    @property
    def lost(self) -> str:
        """Who does not come any more, as a sentence, or nothing."""
        if not self._told and self._quiet > self._silence:
            self._told = GONE.format(
                f"nothing was heard from rank {self._following} for {self._silence:g} s"
            )
        for rank, begun, said in self._others:
            if not self._told and begun < self._ranks.begun and not (said and begun in self._own):
                ended = (
                    f"rank {rank} has ended, and rank {self._ranks.rank} waits for it; {TOGETHER}"
                )
                self._told = f"rank {rank} ended this job with {said}" if said else ended
        return self._told

    def tell(self, said: str) -> None:
        """Nothing: this process ends."""
        self._own.add(self._ranks.begun)
        with suppress(RuntimeError, OSError):
            number = self._store.add(self._key("failures"), 1)
            self._store.set(
                self._key(f"failure-{number}"),
                json.dumps([self._ranks.rank, self._ranks.begun, said]),
            )

    def listen(self) -> None:
        """To what other ranks told."""
        with self._listening, suppress(RuntimeError, OSError):
            count = self._store.add(self._key("failures"), 0)
            while self._heard < count and self._store.check(
                [self._key(f"failure-{self._heard + 1}")]
            ):
                self._heard += 1
                rank, begun, said = json.loads(self._store.get(self._key(f"failure-{self._heard}")))
                if rank != self._ranks.rank:
                    self._others.append((rank, begun, said))

    def leave(self, failed: bool) -> None:
        """Rank 0 may have the store in its process: where it failed, others are given the time
        to hear why.
        """
        self.tell("")
        until = time.monotonic() + (LINGER if failed and self._ranks.rank == 0 else 0.0)
        with suppress(RuntimeError, OSError):
            gone = self._store.add(self._key("gone"), 1)
            while gone < self._ranks.size and time.monotonic() < until:
                time.sleep(0.05)
                gone = self._store.add(self._key("gone"), 0)

    def _key(self, name: str | int) -> str:
        return f"kernelmill/{self._token}/{name}"

    def _beat(self) -> None:
        """May hang with the network: then nothing is heard any more, which is what `lost` goes
        by.
        """
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
        """Counts while it runs: a process that was stopped for a while has heard nothing, and
        lost nobody.
        """
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
        raise InputError(
            f"KERNELMILL_SILENCE={text!r} is set, expected a number of seconds above 0."
        )
    return value
