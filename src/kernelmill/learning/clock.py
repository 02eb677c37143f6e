"""The seconds of a fit's stages."""

from __future__ import annotations

import itertools
import time

STAGES = ("choosing kernel and solver", "choosing centers", "solving")


class Clock:
    """A stopwatch: one mark at the end of each stage."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    @property
    def start(self) -> float:
        return self._marks[0]

    def timings(self) -> dict[str, float]:
        """Seconds by stage; a resumed run chooses nothing."""
        marks = self._marks
        while len(marks) <= len(STAGES):
            marks = [marks[0], *marks]
        seconds = (late - early for early, late in itertools.pairwise(marks))
        return dict(zip(STAGES, seconds, strict=True))
