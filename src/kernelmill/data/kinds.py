"""What a field holds: numbers, booleans, dates or texts. One rule for every kind of file, in
training and in prediction.

Typed sources declare the kind of a column. A CSV file declares nothing: guess.py finds the first
form that every field of a column is written in, so that nothing is lost. A model stores the kinds
of its fields, and `convert` turns what another table holds into them.

As arrays, numbers are (rows, width) floats; booleans (rows, 1) of 0 and 1; dates (rows, 1) seconds
since 1970; NaN where one is missing. Texts are (rows,) str, None where missing. A column without
any value is "empty": it fits every kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Protocol, SupportsFloat, TypeVar

import numpy as np

from ..errors import DataFileError
from . import dates

Item = TypeVar("Item")

# What stands for a missing value, in small letters; in texts these are names.
MISSING = (
    *("", "na", "n/a", "n.a.", "#n/a", "<na>", "nan", "nat", "null", "nil", "none", "?", "??"),
    *("-", "--", "---", "–", "—", ".", "..", "...", "*", "_", "unknown", "unk", "missing"),
    *("not available", "not applicable", "not known", "(blank)", "blank", "(null)", "(none)"),
    *("0000-00-00", "0000-00-00 00:00:00"),  # of databases
    *("#null!", "#value!", "#ref!", "#div/0!", "#name?", "#num!", "no data", "nodata"),
)
TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
WORDS = {
    "number": "numbers",
    "boolean": "true or false",
    "date": "dates",
    "text": "texts",
    "empty": "nothing",
}


def is_missing(text: str) -> bool:
    """Whether a text says that there is no value."""
    return text.strip().lower() in _MISSING


_MISSING = frozenset(MISSING)

# ---- names

_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
# Thousands perhaps, or a decimal comma before three digits.
THOUSAND = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d.*)?")
_SWITCH = {"true": "1", "false": "0", "1": "true", "0": "false"}


def names(values: np.ndarray, kind: str) -> np.ndarray:
    """The names of values: 1001, 2.5, true, 2024-02-29. Texts are their own."""
    if kind == "text":
        return values
    if values.dtype.kind in "iu":
        return np.array([str(v) for v in values.reshape(-1).tolist()], dtype=object)
    ways = {"boolean": _boolean_name, "date": dates.name_of}
    name: Callable[[float], str] = ways.get(kind, _number_name)
    every = values.reshape(-1).astype(np.float64).tolist()
    return np.array([None if math.isnan(v) else name(v) for v in every], dtype=object)


def _number_name(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def _boolean_name(value: float) -> str:
    return "true" if value else "false"


def canonical(text: str) -> str:
    """The name of what a text says, where it is written as numbers, booleans or dates are: 1.0 is
    1. 007 is a name of its own."""
    bare = text.strip()
    if _WHOLE.fullmatch(bare):
        return str(int(bare))
    if _NUMBER.fullmatch(bare):
        return _number_name(float(bare))
    if bare in TRUE or bare in FALSE:
        return bare.lower()
    if _DATE.fullmatch(bare):
        try:
            return dates.name_of(dates.second_of(bare))
        except (ValueError, OverflowError):
            return text
    return text


class Names:
    """Where names stand in a list. The list decides: a text is looked up as it is, then as what it
    says, so that 1, "1" and "1.0" meet."""

    def __init__(self, known: Iterable[str | None]):
        self._exact: dict[str | None, int] = {}
        self._said: dict[str, int] = {}
        for code, name in enumerate(known):
            self._exact[name] = code
            if name is not None:
                said = canonical(name)
                # Of two that say the same, none is meant.
                self._said[said] = code if said not in self._said else -1
        for name, code in self._exact.items():
            if name is not None and name in self._said:
                self._said[name] = code

    def codes(self, texts: np.ndarray) -> np.ndarray:
        """Their places; the length of the list for names that are not in it."""
        found = {text: self._code(text) for text in set(texts.tolist())}
        return np.array([found[text] for text in texts.tolist()], dtype=np.int64)

    def _code(self, text: str | None) -> int:
        unknown = len(self._exact)
        if text in self._exact or text is None:
            return self._exact.get(text, unknown)
        said = canonical(text)
        code = self._said.get(said, self._said.get(_SWITCH.get(said, said), -1))
        return unknown if code < 0 else code

    def aliases(self) -> dict[str, int]:
        """Other spellings that are known beforehand."""
        known = {name: code for name, code in self._said.items() if code >= 0}
        return {name: code for name, code in known.items() if name not in self._exact}


# ---- from one kind to another


def unify(kinds: Iterable[str]) -> str:
    """The kind of a column whose parts have these: texts wherever they differ."""
    found = set(kinds) - {"empty"}
    return "empty" if not found else found.pop() if len(found) == 1 else "text"


def convert(values: np.ndarray, given: str, wanted: str, name: str, where: str) -> np.ndarray:
    """Values of one kind as those of another, or one sentence about the first that cannot be."""
    if given == wanted or (given, wanted) == ("boolean", "number"):
        return values
    if wanted == "text":
        return names(values, given)
    if "empty" in (given, wanted):
        return np.full((len(values), 1), np.nan)
    if given == "text":
        out, bad = _parse(values, wanted)
    elif (given, wanted) == ("number", "boolean"):
        strange = values[~np.isnan(values) & (values != 0) & (values != 1)]
        out, bad = values, _number_name(float(strange[0])) if len(strange) else None
    else:
        out = np.full((len(values), 1), np.nan)
        bad = next((text for text in names(values, given).tolist() if text is not None), None)
    if bad is None:
        return out
    raise DataFileError(
        f"{where} has {WORDS[given]} in {name!r}, such as {bad!r}, which had {WORDS[wanted]} when"
        " the model was trained."
    )


def _parse(values: np.ndarray, wanted: str) -> tuple[np.ndarray, str | None]:
    """Texts as values of a kind, and the first that cannot be read so."""
    out = np.full((len(values), 1), np.nan)
    texts = [None if text is None else text.strip() for text in values.tolist()]
    parse = _PARSERS[wanted] if wanted != "number" else _number_parser(texts)
    for i, text in enumerate(texts):
        try:
            out[i, 0] = np.nan if text is None or is_missing(text) else parse(text)
        except (ValueError, KeyError, OverflowError):
            return out, text
    return out, None


def _number_parser(texts: list[str | None]) -> Callable[[str], float]:
    """Reads numbers. Commas are decimal where a field among them leaves no doubt: 1,234 alone may
    be a thousand, and is refused."""
    decimal = any(text and COMMA.fullmatch(text) and not THOUSAND.fullmatch(text) for text in texts)

    def parse(text: str) -> float:
        if "_" in text:
            raise ValueError(text)
        return float(text.replace(",", ".") if decimal and COMMA.fullmatch(text) else text)

    return parse


_SAID = {**dict.fromkeys([*TRUE, "1"], 1.0), **dict.fromkeys([*FALSE, "0"], 0.0)}
_PARSERS = {"boolean": _SAID.__getitem__, "date": dates.second_of}


# ---- arrays of numpy's


class Array(Protocol):
    """Rows of one type: an array of numpy's, rows of a file, or a dataset of HDF5."""

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def ndim(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def of_array(values: Array) -> str:
    """The kind of an array by its type; of Python objects, see `settle`."""
    kinds = {"b": "boolean", "M": "date", "O": "text", "S": "text", "U": "text"}
    return kinds.get(values.dtype.kind, "number")


def settle(values: np.ndarray) -> tuple[np.ndarray, str]:
    """An array of Python objects as one of the kind that all of them are: mixed ones become
    names."""
    items = [None if is_lost(v) else _decoded(v) for v in values.tolist()]
    found = {_of_object(v) for v in items if v is not None}
    if not found:
        return np.full(len(items), np.nan), "empty"
    if found == {"date"}:
        return np.array([np.nan if v is None else dates.second_of(v) for v in items]), "date"
    if found <= {"number", "boolean"}:
        kind = "boolean" if found == {"boolean"} else "number"
        if all(isinstance(v, (int, np.integer)) for v in items):
            try:
                return np.array(items, bool if kind == "boolean" else np.int64), kind
            except OverflowError:
                pass
        return np.array([np.nan if v is None else _float_of(v) for v in items]), kind
    return np.array([None if v is None else _name_of(v) for v in items], dtype=object), "text"


def is_lost(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (not isinstance(value, (str, bytes)) and bool(value != value))
    )


def _decoded(value: Item) -> Item | str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _float_of(value: timedelta | SupportsFloat | str) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _of_object(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "boolean"
    if isinstance(value, (Real, Decimal, timedelta)):
        return "number"
    return "date" if isinstance(value, (date, np.datetime64)) else "text"


def _name_of(value: object) -> str:
    """The name of one object."""
    kind = _of_object(value)
    if kind == "text":
        return str(value)
    array, _ = settle(np.array([value, None], dtype=object)[:1])
    return names(array, kind)[0]


def places(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Where labels stand among classes, -1 where they do not. Those of another kind meet by their
    names: 1, "1" and "1.0" are one class."""
    given, kind = of_array(labels), of_array(classes)
    if given == kind and kind != "date":
        known = {label: code for code, label in enumerate(classes.tolist())}
        return np.array([known.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    codes = Names(_names_of_all(classes, kind).tolist()).codes(_names_of_all(labels, given))
    return np.where(codes == len(classes), -1, codes)


def _names_of_all(values: np.ndarray, kind: str) -> np.ndarray:
    return names(values if values.dtype.kind in "iu" else represent(values, kind), kind)


def represent(values: np.ndarray, kind: str) -> np.ndarray:
    """An array as the kind is read: see the top of this file."""
    if kind == "text":
        found = [None if is_lost(v) else str(_decoded(v)) for v in values.tolist()]
        # An empty text is none: CSV cannot tell them apart.
        return np.array([text or None for text in found], dtype=object)
    if values.dtype.kind in "mM":
        values = dates.seconds(values)
    elif values.dtype.kind != "f" or values.dtype.itemsize > 8:
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return values.reshape(len(values), -1)
