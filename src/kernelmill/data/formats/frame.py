"""Columns in memory: data frames of pandas and polars, dicts of arrays, and arrays themselves."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from ...errors import DataFileError
from ..arrow_tables import in_memory
from ..dates import moments
from ..files import need
from ..kinds import settle
from ..tables import ArrayTable, Table, readable
from .base import Format, Kinds, Peek
from .npy import peek_shapes, table_of_array

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa


class ArrowFrame(Protocol):
    """A data frame that Arrow can hold, such as one of polars'."""

    columns: list[str]

    def __len__(self) -> int: ...

    def to_arrow(self) -> pa.Table: ...


Columns = dict[object, ArrayLike]  # by name


def _open(X: np.ndarray | Columns | pd.DataFrame | ArrowFrame, limit: int, kinds: Kinds) -> Table:
    if isinstance(X, np.ndarray):
        return table_of_array(X)
    if isinstance(X, dict):
        arrays = {str(name): _array(values) for name, values in X.items()}
        return ArrayTable(arrays, "the columns")
    need("pyarrow")
    where = "the data frame"
    names = [str(name) for name in X.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataFileError(f"{where} has two columns called {twice!r}; rename one.")
    with readable(where):
        return in_memory(_from_pandas(X) if hasattr(X, "iloc") else X.to_arrow(), where)


def _array(values: ArrayLike) -> np.ndarray:
    """A column as an array; a list with texts in it as objects, since numpy would write all others
    as texts in its own way."""
    if isinstance(values, (list, tuple)) and any(isinstance(value, str) for value in values):
        return np.array([*values, None], dtype=object)[:-1]
    return np.asarray(values)


def _from_pandas(X: pd.DataFrame) -> pa.Table:
    """Columns of objects that Arrow knows no one type for become names; so do intervals. Periods
    become the moments at which they begin."""
    pa, other = need("pyarrow"), {}
    for place, (name, kind) in enumerate(X.dtypes.items()):
        column = X.iloc[:, place]
        if str(kind).startswith("period"):
            other[name] = column.dt.to_timestamp()
        elif str(kind).startswith("Sparse"):
            other[name] = column.sparse.to_dense()
        elif str(kind).startswith("interval"):
            other[name] = column.astype(str)
        elif str(kind) == "category" and str(kind.categories.dtype).startswith("interval"):
            other[name] = column.cat.rename_categories(str)
        elif str(kind) == "object":
            try:
                found = pa.array(column, from_pandas=True)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                other[name] = _settled(column.to_numpy())
                continue
            # Of a date and a moment Arrow keeps the dates alone.
            if found.type == pa.date32() and any(isinstance(v, datetime) for v in column):
                other[name] = _settled(column.to_numpy())
    if other:
        X = X.copy(deep=False)
        for name, values in other.items():
            X[name] = values
    return pa.Table.from_pandas(X, preserve_index=False)


def _settled(values: np.ndarray) -> np.ndarray:
    found, kind = settle(values)
    return moments(found) if kind == "date" else found


def _is_in_memory(X: object) -> bool:
    return isinstance(X, (np.ndarray, dict)) or (hasattr(X, "columns") and hasattr(X, "dtypes"))


def _peek(X: np.ndarray | Columns | pd.DataFrame | ArrowFrame) -> Peek:
    if isinstance(X, np.ndarray):
        return peek_shapes([X.shape])
    if isinstance(X, dict):
        return peek_shapes([_array(values).shape for values in X.values()])
    return Peek(len(X), len(X.columns))


FORMAT = Format("frames", _open, _peek, takes=_is_in_memory, arrays=True)
