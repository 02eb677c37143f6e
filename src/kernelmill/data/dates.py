"""Dates as numbers: seconds since 1970 in UTC, whatever unit or zone they came in, and the parts of
a date that are features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Protocol, Self, TypeVar

import numpy as np

DAY = 86_400.0
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
PARTS = [
    "days",
    "year",
    "month cos",
    "month sin",
    "weekday cos",
    "weekday sin",
    "hour cos",
    "hour sin",
]
# Cosine and sine share a bandwidth, others have one each: a delay is of a day, of an hour, or of
# both (docs/columns.md).
GROUPS = [0, 1, 2, 2, 3, 3, 4, 4]
# The others are on a circle as they are.
SCALED = np.array([name in ("days", "year") for name in PARTS])


def seconds(values: np.ndarray) -> np.ndarray:
    """datetime64 or timedelta64 of any unit as float64 seconds, NaN where missing.

    Whole seconds and the rest are divided apart: the same moment is the same number to the bit, in
    whatever unit.
    """
    unit, step = np.datetime_data(values.dtype)
    if unit not in PER_SECOND or step != 1:
        finer = unit in ("ps", "fs", "as")
        values = values.astype(f"{values.dtype.kind}8[{'ns' if finer else 's'}]")
        unit = "ns" if finer else "s"
    return counted(values.view(np.int64), PER_SECOND[unit], np.isnat(values))


def counted(ticks: np.ndarray, per_second: int, lost: np.ndarray) -> np.ndarray:
    whole = ticks // per_second
    return np.where(lost, np.nan, whole + (ticks - whole * per_second) / per_second)


def moments(values: np.ndarray) -> np.ndarray:
    """Seconds as datetime64[us], NaT where they are missing."""
    lost = np.isnan(values)
    out = np.rint(np.where(lost, 0, values) * 1e6).astype(np.int64).view("datetime64[us]")
    out[lost] = np.datetime64("NaT")
    return out


def second_of(value: object) -> float:
    """One date or time of Python's, or an ISO text; one without a zone is UTC.

    ValueError where it is none.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if isinstance(value, np.datetime64):
        return float(seconds(np.array([value]))[0])
    if not isinstance(value, datetime):
        if not isinstance(value, date):
            raise ValueError(f"{value!r} is not a date")
        value = datetime(value.year, value.month, value.day)
    since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(
        1970, 1, 1, tzinfo=UTC
    )
    return since.days * DAY + since.seconds + since.microseconds / 1e6


def name_of(second: float) -> str:
    """The ISO text of a moment: without its time where that is midnight."""
    text = str(moments(np.array([second]))[0])
    day, time = text.split("T")
    return (
        day
        if second % DAY == 0
        else f"{day}T{time.rstrip('0').rstrip('.') if '.' in time else time}"
    )


class Arithmetic(Protocol):
    """Numbers to compute with: an array, or a value of an ONNX graph."""

    def __add__(self, other: Self | float, /) -> Self: ...

    def __sub__(self, other: Self | float, /) -> Self: ...

    def __mul__(self, other: Self | float, /) -> Self: ...

    def __truediv__(self, other: Self | float, /) -> Self: ...


N = TypeVar("N", bound=Arithmetic)


def parts(second: np.ndarray) -> list[np.ndarray]:
    """The features of dates, as PARTS names them."""
    return parts_by(second, np.floor, np.sin)


def parts_by(second: N, floor: Callable[[N], N], sin: Callable[[N], N]) -> list[N]:
    """The same, computed with the given functions.

    Only arithmetic, floor and sin, so that ONNX has the same; NaN stays NaN.

    The civil calendar counted from 1 March 0000, in eras of 400 years: H. Hinnant,
    chrono-compatible low-level date algorithms.
    """
    day = floor(second / DAY)
    shifted = day + 719_468.0
    era = floor(shifted / 146_097.0)
    in_era = shifted - era * 146_097.0
    year = floor(
        (in_era - floor(in_era / 1460.0) + floor(in_era / 36_524.0) - floor(in_era / 146_096.0))
        / 365.0
    )
    in_year = in_era - (year * 365.0 + floor(year / 4.0) - floor(year / 100.0))
    month = floor((in_year * 5.0 + 2.0) / 153.0) + 2.0  # 2 for March to 13 for February
    turn = floor(month / 12.0)
    weekday = day + 3.0
    weekday = weekday - floor(weekday / 7.0) * 7.0  # Monday is 0
    turns = [(month - turn * 12.0) / 12.0, weekday / 7.0, second / DAY - day]
    circles = [sin(t * (2 * math.pi) + quarter) for t in turns for quarter in (math.pi / 2, 0.0)]
    return [second / DAY, year + era * 400.0 + turn, *circles]
