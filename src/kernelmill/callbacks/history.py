"""The history of a run."""

from __future__ import annotations

from ..solvers import Event, HistoryRow


class History:
    """One row of numbers for each report of a run, but for its start and its end."""

    def __init__(self) -> None:
        self.rows: list[HistoryRow] = []

    def __call__(self, event: Event) -> None:
        if event.kind in ("start", "end"):
            return
        row: HistoryRow = {
            "kind": event.kind,
            "epoch": event.epoch,
            "rows": event.rows,
            "seconds": event.seconds,
            "loss": event.loss,
            "eta": event.eta,
        }
        if event.note:
            row["note"] = event.note
        if event.score is not None:
            row["validation_score"] = event.score
        self.rows.append(row)
