"""The run ends when held-out rows are not predicted better any more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..kernel_system import is_level
from ..solvers import Event, HistoryRow, PCGState


class NoEarlyStopping:
    """The last weights are the model's."""

    best: Tensor | None = None
    best_score = -math.inf
    waited = 0
    stopped = False

    def __call__(self, event: Event, history: Sequence[HistoryRow]) -> bool:
        return False


class EarlyStopping(NoEarlyStopping):
    """Keeps the weights of the best score, and asks for the end after `patience` epochs without a
    better one.
    """

    def __init__(self, patience: int):
        self._patience = patience

    def __call__(self, event: Event, history: Sequence[HistoryRow]) -> bool:
        if event.score is None or event.alpha is None:
            return False
        if event.score > self.best_score:
            self.best_score = event.score
            self.best = event.alpha.clone()
            self.waited = 0
        else:
            self.waited += 1
        self.stopped = self.waited >= self._patience
        return self.stopped


class Level(NoEarlyStopping):
    """Asks for the end where R² of held-out rows has come to its limit; the last weights are the
    model's.
    """

    def __call__(self, event: Event, history: Sequence[HistoryRow]) -> bool:
        if not isinstance(event.state, PCGState):
            return False
        scores = [row.get("validation_score") for row in history]
        errors = [1 - score for score in scores if score is not None]
        self.stopped = is_level(errors, event.state.residual)
        return self.stopped
