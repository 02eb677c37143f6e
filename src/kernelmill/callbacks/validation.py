"""Scores of held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from ..solvers import Event


class NoValidation:
    """No rows are held out: events are passed on as they are."""

    def add_score(self, event: Event) -> Event:
        return event


class Validation(NoValidation):
    """Scores the weights of every epoch on rows that are not trained on."""

    def __init__(self, score: Callable[[Tensor], float]):
        self._score = score

    def add_score(self, event: Event) -> Event:
        if event.kind != "epoch" or event.alpha is None:
            return event
        return replace(event, score=self._score(event.alpha))
