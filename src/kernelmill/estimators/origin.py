"""Where a model comes from, and how good it was on rows that it did not see: what it says of itself
in its folder, in ONNX, in `info` and in the report.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePath
from typing import TypedDict

from torch import Tensor

from ..data import Table
from ..scoring import ERRORS, score
from ..version import __version__

KEPT_OUT, IN_TURN = "kept out", "each kept out in turn"


class Origin(TypedDict):
    """Which library made a model, when, and of which data."""

    library: str
    date: str
    seconds: float
    rows: int
    data: str  # the name of the file or folder, or what else it was
    fingerprint: str  # of its files; empty of data in memory


class HeldOut(TypedDict):
    """Scores of rows that the model, or one like it, was not trained on."""

    rows: int
    how: str
    scores: dict[str, float]


def origin_of(data: str, fingerprint: str, rows: int, seconds: float) -> Origin:
    return {
        "library": f"kernelmill {__version__}",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 3),
        "rows": rows,
        "data": data,
        "fingerprint": fingerprint,
    }


def fingerprint_of(table: Table) -> str:
    """Of the files that a table lies in: their sizes, and checksums of what they hold, for large
    ones of blocks all over them.
    """
    return "; ".join(said for said, *_ in table.files.account())


def name_of(where: str) -> str:
    """Of a file or folder without where it lies, which is nobody's business."""
    quoted = where.startswith(("'", '"'))
    return PurePath(where.strip("'\"")).name if quoted else where


def held_out_numbers(values: Tensor, targets: Tensor, w: Tensor, how: str) -> HeldOut:
    """Of a regression: values and targets (r, c) in their own units."""
    names = ["r2", "rmse", "absolute_error"] if len(values) > 1 else ["rmse", "absolute_error"]
    return _held_out(names, values, targets, w, how)


def held_out_classes(
    probabilities: Tensor, decided: Tensor, targets: Tensor, w: Tensor, how: str
) -> HeldOut:
    """Of classes: probabilities, what is largest for the class that is decided for, and targets of
    0 and 1.
    """
    found = _held_out(["accuracy"], decided, targets, w, how)
    if bool((targets.sum(0) > 0).all()):
        found["scores"]["roc_auc"] = score("roc_auc", probabilities, targets, w)
    logs = (targets * probabilities.clamp(min=1e-300).log()).sum(1)
    found["scores"]["log_loss"] = -((w * logs).sum() / w.sum()).item()  # they are calibrated
    return found


def _held_out(names: list[str], values: Tensor, targets: Tensor, w: Tensor, how: str) -> HeldOut:
    scores = {name: score(name, values, targets, w) for name in names}
    shown = {name: -value if name in ERRORS else value for name, value in scores.items()}
    return {"rows": len(values), "how": how, "scores": shown}
