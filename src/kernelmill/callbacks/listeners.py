"""All that listens to a run, in order: one object for each duty."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from ..distributed.team import Communicator, any_rank, leads
from ..errors import InputError
from ..signals import Ends
from ..solvers import Event
from ..storage.run_folder import NoRun, Watch
from .early_stopping import NoEarlyStopping
from .history import History
from .progress import ProgressBar
from .validation import NoValidation

Callback = Callable[[Event], object]  # what is true asks the run to stop


class Listeners:
    """Scores, history, early stopping, the user's callbacks, checkpoints.

    Each may ask for the end; ranks end together.

    `weights` turns a solver's weights into those of the model, which callbacks see. `deadline`, as
    `time.perf_counter` counts, is when a run has to be over.
    """

    def __init__(
        self,
        validation: NoValidation,
        stopping: NoEarlyStopping,
        callbacks: Sequence[Callback],
        weights: Callable[[Tensor], Tensor],
        store: NoRun,
        ends: Ends,
        comm: Communicator,
        deadline: float = math.inf,
    ):
        self._deadline, self.late, self._last = deadline, False, math.inf
        self._validation, self.stopping, self.history = validation, stopping, History()
        self._callbacks = callbacks if leads(comm) else ()  # rank 0 speaks for all
        self._weights, self._store, self._ends, self._comm = weights, store, ends, comm
        self.interrupted = False

    def __call__(self, event: Event) -> bool:
        event = self._validation.add_score(event)
        self.history(event)
        stop = self.stopping(event, self.history.rows)
        shown = event
        if self._callbacks and event.alpha is not None:
            shown = replace(event, alpha=self._weights(event.alpha))
        for callback in self._callbacks:
            stop = bool(callback(shown)) or stop
        # A round more would end too late, if it takes as long as the last one.
        now = time.perf_counter()
        left = event.kind != "end" and event.rows < event.rows_total
        late = left and now + max(0.0, now - self._last) > self._deadline
        self._last = now
        due = self._store.due(event) and leads(self._comm)
        stop, ending, due, late = any_rank(self._comm, stop, self._ends.wanted, due, late)
        self.late = self.late or late
        if due:
            self._store.note(event, self.kept(), self.stopping.stopped)
        self.interrupted = self.interrupted or ending or event.kind == "interrupted"
        return stop or ending or late

    def kept(self) -> Watch:
        stopping = self.stopping
        return {
            "history": self.history.rows,
            "best": stopping.best,
            "best_score": float(stopping.best_score),
            "waited": stopping.waited,
        }

    def restore(self, kept: Watch, best: Tensor | None) -> None:
        """Go on where the listeners of an earlier part of the run were."""
        self.history.rows = list(kept["history"])
        self.stopping.best = best
        self.stopping.best_score, self.stopping.waited = kept["best_score"], kept["waited"]


def callbacks_of(given: object, verbose: int) -> list[Callback]:
    """The user's callbacks as a list, with a progress bar where one was asked for."""
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    several = [callback for callback in several if callback is not None]
    found = [callback for callback in several if callable(callback)]
    if len(found) < len(several):
        raise InputError(
            f"callbacks={given!r} was given, expected a callable that takes an Event, or a list of"
            " them."
        )
    return [*found, ProgressBar()] if verbose else found
