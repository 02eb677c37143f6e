"""What a field holds: numbers, booleans, dates or texts. One rule for every kind of file, in training and in prediction.

Typed sources declare the kind of a column. A CSV file declares nothing: `Guess` finds the first form that every field of a column is
written in, so that nothing is lost. A model stores the kinds of its fields, and `convert` turns what another table holds into them.

As arrays, numbers are (rows, width) floats; booleans (rows, 1) of 0 and 1; dates (rows, 1) seconds since 1970; NaN where one is missing.
Texts are (rows,) str, None where missing. A column without any value is "empty": it fits every kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from ..errors import DataFileError
from . import dates

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?"]  # but in texts, where they are names
TRUE, FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
WORDS = {"number": "numbers", "boolean": "true or false", "date": "dates", "text": "texts", "empty": "nothing"}

# ---- names ---------------------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d*)")
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_THOUSAND = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # perhaps, or a decimal comma before three digits
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d.*)?")
_SWITCH = {"true": "1", "false": "0", "1": "true", "0": "false"}


def names(values: np.ndarray, kind: str) -> np.ndarray:
    """The names of values: 1001, 2.5, true, 2024-02-29. Texts are their own."""
    if kind == "text":
        return values
    if values.dtype.kind in "iu":
        return np.array([str(v) for v in values.reshape(-1).tolist()], dtype=object)
    name: Callable[[float], str] = {"boolean": _boolean_name, "date": dates.name_of}.get(kind, _number_name)
    found = [None if math.isnan(v) else name(v) for v in values.reshape(-1).astype(np.float64).tolist()]
    return np.array(found, dtype=object)


def _number_name(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def _boolean_name(value: float) -> str:
    return "true" if value else "false"


def canonical(text: str) -> str:
    """The name of what a text says, where it is written as numbers, booleans or dates are: 1.0 is 1. 007 is a name of its own."""
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
    """Where names stand in a list. The list decides: a text is looked up as it is, then as what it says, so that 1, "1" and "1.0" meet."""

    def __init__(self, known: Iterable[str | None]):
        self._exact: dict[str | None, int] = {}
        self._said: dict[str, int] = {}
        for code, name in enumerate(known):
            self._exact[name] = code
            if name is not None:
                said = canonical(name)
                self._said[said] = code if said not in self._said else -1  # of two that say the same, none is meant
        self._said |= {name: code for name, code in self._exact.items() if name in self._said and name is not None}

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
        return {name: code for name, code in self._said.items() if code >= 0 and name not in self._exact}


# ---- from one kind to another ----------------------------------------------------------------------------------------------------------


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
    bad: Any = None
    if given == "text":
        out, texts = np.full((len(values), 1), np.nan), [None if text is None else text.strip() for text in values.tolist()]
        parse = _PARSERS[wanted] if wanted != "number" else _number_parser(texts)
        for i, text in enumerate(texts):
            try:
                out[i, 0] = np.nan if text is None or text in MISSING else parse(text)
            except (ValueError, KeyError, OverflowError):
                bad = text
                break
        else:
            return out
    elif (given, wanted) == ("number", "boolean"):
        strange = ~np.isnan(values) & (values != 0) & (values != 1)
        if not strange.any():
            return values
        bad = _number_name(float(values[strange][0]))
    else:
        found = names(values, given).tolist()
        bad = next((text for text in found if text is not None), None)
        if bad is None:
            return np.full((len(values), 1), np.nan)
    raise DataFileError(f"{where} has {WORDS[given]} in {name!r}, such as {bad!r}, which had {WORDS[wanted]} when the model was trained.")


def _number_parser(texts: list[str | None]) -> Callable[[str], float]:
    """Reads numbers. Commas are decimal where a field among them leaves no doubt: 1,234 alone may be a thousand, and is refused."""
    decimal = any(text and _COMMA.fullmatch(text) and not _THOUSAND.fullmatch(text) for text in texts)

    def parse(text: str) -> float:
        if "_" in text:
            raise ValueError(text)
        return float(text.replace(",", ".") if decimal and _COMMA.fullmatch(text) else text)

    return parse


_SAID = {**dict.fromkeys([*TRUE, "1"], 1.0), **dict.fromkeys([*FALSE, "0"], 0.0)}
_PARSERS = {"boolean": _SAID.__getitem__, "date": dates.second_of}


# ---- arrays of numpy's -----------------------------------------------------------------------------------------------------------------


def of_array(values: Any) -> str:
    """The kind of an array by its type; of Python objects, see `settle`."""
    return {"b": "boolean", "M": "date", "O": "text", "S": "text", "U": "text"}.get(values.dtype.kind, "number")


def settle(values: np.ndarray) -> tuple[np.ndarray, str]:
    """An array of Python objects as one of the kind that all of them are: mixed ones become names."""
    items = [None if _lost(v) else v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values.tolist()]
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
        return np.array([np.nan if v is None else v.total_seconds() if isinstance(v, timedelta) else float(v) for v in items]), kind
    return np.array([None if v is None else _name_of(v) for v in items], dtype=object), "text"


def _lost(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (not isinstance(value, (str, bytes)) and bool(value != value))


def _of_object(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "boolean"
    if isinstance(value, (Real, Decimal, timedelta)):
        return "number"
    return "date" if isinstance(value, (date, np.datetime64)) else "text"


def _name_of(value: Any) -> str:
    """The name of one object."""
    kind = _of_object(value)
    if kind == "text":
        return str(value)
    array, _ = settle(np.array([value, None], dtype=object)[:1])
    return names(array, kind)[0]


def places(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Where labels stand among classes, -1 where they do not. Those of another kind meet by their names: 1, "1" and "1.0" are one class."""
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
        found = [None if _lost(v) else v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()]
        return np.array([text or None for text in found], dtype=object)  # an empty text is none: CSV cannot tell them apart
    if values.dtype.kind in "mM":
        values = dates.seconds(values)
    elif values.dtype.kind != "f" or values.dtype.itemsize > 8:
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return values.reshape(len(values), -1)


# ---- columns of Arrow's ----------------------------------------------------------------------------------------------------------------


def of_arrow(kind: Any) -> str | None:
    """The kind of an Arrow type; "list" of numbers; None for what cannot be a feature."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(kind):
        return of_arrow(kind.value_type)
    if is_.is_boolean(kind):
        return "boolean"
    if is_.is_date(kind) or is_.is_timestamp(kind):
        return "date"
    if is_.is_null(kind):
        return "empty"
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind) or is_.is_time(kind) or is_.is_duration(kind):
        return "number"
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return "list" if is_.is_floating(kind.value_type) or is_.is_integer(kind.value_type) else None
    views = getattr(is_, "is_string_view", None), getattr(is_, "is_binary_view", None)
    texts = is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary, *filter(None, views)
    return "text" if any(is_text(kind) for is_text in texts) else None


def from_arrow(column: Any, kind: str) -> np.ndarray:
    """An Arrow array as its kind is read."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
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


def names_from_arrow(column: Any, kind: str) -> np.ndarray:
    """The names of an Arrow array; those of whole numbers keep all digits."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return np.array(column.cast(pa.string()).to_pylist(), dtype=object)
    return names(from_arrow(column, kind), kind)


def _ticks(column: Any) -> np.ndarray:
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
    return dates.counted(whole.fill_null(0).to_numpy(zero_copy_only=False), per, lost).reshape(-1, 1)


# ---- columns of a CSV file ---------------------------------------------------------------------------------------------------------------

_FORMS = ["whole", "number", "comma", "boolean", "date"]  # in the order they are tried; a text is what is none of them
_ALSO = {"whole": ["whole", "number", "comma"]}  # forms that the fields of a form are written in too


class Guess:
    """The form of a CSV column, told block by block: the first that every field so far is written in.

    Numbers are written without a leading zero or plus (007 is a name); booleans are true and false; dates are ISO's. `commas`: one inside
    a number is decimal; else 1,234 may be a thousand, and only a column without such fields has decimal commas. `text`: it is known to
    be texts, exactly as they are written.
    """

    def __init__(self, text: bool = False, commas: bool = False):
        self._forms, self._commas = [] if text else [*_FORMS], commas
        self._seen, self.doubtful = text, False  # doubtful: texts that look like numbers with commas

    @property
    def has_commas(self) -> bool:
        return self._seen and self._forms[:1] == ["comma"]

    @property
    def type(self) -> Any:
        """What Arrow holds such a column as."""
        import pyarrow as pa

        if not self._seen:
            return pa.null()
        types = {"whole": pa.int64(), "boolean": pa.bool_(), "date": pa.timestamp("us")}
        return types.get(self._forms[0], pa.float64()) if self._forms else pa.string()

    def take(self, strings: Any) -> Any:
        """A block of the column, as what it is by now."""
        import pyarrow as pa

        tried = [strings]
        for form in self._forms:
            found = _written(tried, form)
            if found is None or (form == "comma" and not self._commas and _share(strings, _THOUSAND)):
                continue
            if found.null_count < len(found):
                self._forms = [other for other in self._forms if other in _ALSO.get(form, [form])]
                self._seen = True
            return found.cast(self.type) if self._seen else pa.nulls(len(found))
        self.doubtful = self.doubtful or (bool(self._forms) and _share(strings, _THOUSAND, _COMMA) > 0.9)
        self._forms, self._seen = [], True
        return strings


def _share(strings: Any, *patterns: re.Pattern) -> float:
    """How many of these fields are written in one of these ways, of those that are there."""
    import pyarrow.compute as pc

    either = "|".join(f"(?:{pattern.pattern})" for pattern in patterns)
    return pc.mean(pc.match_substring_regex(strings, f"^\\s*(?:{either})\\s*$")).as_py() or 0.0


def _written(tried: list[Any], form: str) -> Any:
    """The block as this form, or None where a field is not written so. `tried`: the fields as they are; and without blanks around them and
    missing words, which is done where it is needed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parse = {"whole": _whole, "number": _number, "comma": _comma, "boolean": _boolean, "date": _date}[form]
    for i in range(2):
        if i == len(tried):
            bare = pc.ascii_trim_whitespace(tried[0])
            tried.append(pc.if_else(pc.is_in(bare, value_set=pa.array(MISSING)), pa.scalar(None, bare.type), bare))
        try:
            found = parse(tried[i])
        except pa.ArrowInvalid:
            continue
        if found is not None:
            return found
    return None


def _plain(strings: Any) -> bool:
    """Whether no number begins with a plus, or a zero with more digits behind it. On the bytes: a regular expression takes twice as long as
    reading the numbers."""
    strings = strings.drop_null()
    if not len(strings):
        return True
    _, starts, text = strings.buffers()
    starts = np.frombuffer(starts, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    text = np.frombuffer(text, np.uint8)
    at, last = starts[:-1], starts[1:] - 1
    first = text[at]
    at = at + (first == ord("-"))
    more = text[np.minimum(at + 1, last)]  # the same byte again where there is no other
    digits = (more >= ord("0")) & (more <= ord("9")) | (more | 32 == ord("x"))
    return not ((first == ord("+")) | (text[np.minimum(at, last)] == ord("0")) & digits & (at < last)).any()


def _whole(strings: Any) -> Any:
    found = strings.cast("int64")
    return found if _plain(strings) else None


def _number(strings: Any) -> Any:
    found = strings.cast("float64")
    return found if _plain(strings) else None


def _comma(strings: Any) -> Any:
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(strings, ".")).as_py():
        return None
    return _number(pc.replace_substring(strings, ",", "."))


def _boolean(strings: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(strings, value_set=pa.array([*TRUE, *FALSE, None]))
    if not pc.all(known).as_py():
        return None
    return pc.if_else(strings.is_null(), pa.scalar(None, pa.bool_()), pc.is_in(strings, value_set=pa.array(TRUE)))


def _date(strings: Any) -> Any:
    """Moments in UTC, which those without a zone are taken to be in."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zoned = pc.fill_null(pc.match_substring_regex(strings, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"), False)
    nothing = pa.scalar(None, strings.type)
    there = pc.if_else(zoned, strings, nothing)
    here = pc.if_else(zoned, nothing, strings)
    return pc.coalesce(_moments(here, None), _moments(there, "UTC").cast(pa.timestamp("us")))


def _moments(strings: Any, zone: str | None) -> Any:
    """Fractions of a second may have nine digits: then six are kept."""
    import pyarrow as pa

    try:
        return strings.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return strings.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("us", zone), safe=False)
