"""The history of a run."""

from __future__ import annotations

from typing import Any

from ..solvers import Event

FIELDS = ("kind", "epoch", "rows", "seconds", "loss", "eta")


class History:
    """One row of numbers for each report of a run, but for its start and its end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "end"):
            return
        row = {name: getattr(event, name) for name in FIELDS}
        if event.note:
            row["note"] = event.note
        if event.score is not None:
            row["validation_score"] = event.score
        self.rows.append(row)
