"""Columns of Arrow's: their kinds, and their values as kinds.py has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import dates
from .kinds import names, represent

if TYPE_CHECKING:
    import pyarrow as pa


def of_arrow(kind: pa.DataType) -> str | None:
    """The kind of an Arrow type; "list" of numbers; None for what cannot be a feature."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(kind):  # numbers that are categories are names
        found = of_arrow(kind.value_type)
        return "text" if found == "number" else found
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        numbers = is_.is_floating(kind.value_type) or is_.is_integer(kind.value_type)
        return "list" if numbers else None
    for name, tests in _TESTS.items():
        if any(hasattr(is_, test) and getattr(is_, test)(kind) for test in tests):
            return name
    return None


def is_category(kind: pa.DataType) -> bool:
    """Whether values of this type are names by declaration."""
    import pyarrow as pa

    return pa.types.is_dictionary(kind) and of_arrow(kind) == "text"


# pyarrow.types' own names, of which early versions lack some.
_TESTS = {
    "boolean": ["is_boolean"],
    "date": ["is_date", "is_timestamp"],
    "empty": ["is_null"],
    "number": ["is_integer", "is_floating", "is_decimal", "is_time", "is_duration"],
    "text": [
        "is_string",
        "is_large_string",
        "is_string_view",
        "is_binary",
        "is_large_binary",
        "is_binary_view",
        "is_fixed_size_binary",
    ],
}


def from_arrow(column: pa.Array, kind: str) -> np.ndarray:
    """An Arrow array as its kind is read."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
        if (said := of_arrow(column.type) or "text") != kind:
            return names_from_arrow(column, said)
    type_ = column.type
    if kind == "empty":
        return np.full((len(column), 1), np.nan)
    if kind == "text":
        if pa.types.is_string(type_) or pa.types.is_large_string(type_):
            return np.array([text or None for text in column.to_pylist()], dtype=object)
        return represent(np.array([*column.to_pylist(), None], dtype=object)[:-1], "text")
    if pa.types.is_temporal(type_):
        return _ticks(column)
    if not pa.types.is_floating(type_):
        column = column.cast(pa.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False).reshape(-1, 1)


def names_from_arrow(column: pa.Array, kind: str) -> np.ndarray:
    """The names of an Arrow array; those of whole numbers keep all digits."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return np.array(column.cast(pa.string()).to_pylist(), dtype=object)
    return names(from_arrow(column, kind), kind)


def _ticks(column: pa.Array) -> np.ndarray:
    """Dates, times of day and durations as seconds."""
    import pyarrow as pa

    type_, per = column.type, 0
    if pa.types.is_date32(type_):
        column = column.cast(pa.timestamp("s"))
    elif pa.types.is_date64(type_):
        column = column.cast(pa.timestamp("ms"))
    per = dates.PER_SECOND[getattr(column.type, "unit", "s")]
    whole = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())
    lost = whole.is_null().to_numpy(zero_copy_only=False)
    return dates.counted(whole.fill_null(0).to_numpy(zero_copy_only=False), per, lost).reshape(
        -1, 1
    )
