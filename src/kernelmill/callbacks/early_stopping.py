"""Early stopping: the run ends when held-out rows are not predicted better any more."""

from __future__ import annotations

import math

from torch import Tensor

from ..solvers import Event


class NoEarlyStopping:
    """The last weights are the model's."""

    best: Tensor | None = None
    best_score = -math.inf
    waited = 0
    stopped = False

    def __call__(self, event: Event) -> bool:
        return False


class EarlyStopping(NoEarlyStopping):
    """Keeps the weights of the best score, and asks for the end after `patience` epochs without a
    better one.
    """

    def __init__(self, patience: int):
        self._patience = patience

    def __call__(self, event: Event) -> bool:
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
