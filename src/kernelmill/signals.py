"""Signals that end a run in an orderly way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .distributed.team import Communicator, is_alone


class Ends:
    """SIGTERM and Ctrl-C where several ranks train: they wait for the moment in which all can stop
    together. A second one does not.
    """

    def __init__(self, comm: Communicator):
        self.wanted, self._terminated, self._alone = False, False, is_alone(comm)

    @contextmanager
    def listening(self) -> Iterator[None]:
        if self._alone or threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            if self.wanted:
                raise KeyboardInterrupt
            self.wanted, self._terminated = True, number == signal.SIGTERM

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            if self._terminated:
                os.kill(os.getpid(), signal.SIGTERM)
