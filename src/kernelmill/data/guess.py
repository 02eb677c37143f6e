"""What the columns of a CSV file hold, which does not say so: all of their fields are looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .kinds import FALSE, MISSING, THOUSAND, TRUE

if TYPE_CHECKING:
    import pyarrow as pa

# In the order they are tried; a text is what is none of them.
_FORMS = ["whole", "number", "comma", "boolean", "date"]
_ALSO = {"whole": ["whole", "number", "comma"]}  # forms that a form's fields are written in too


class Guess:
    """The form of a CSV column, told block by block: the first that every field so far is written
    in.

    Numbers are written without a leading zero or plus (007 is a name); booleans are true and false;
    dates are ISO's. `commas`: one inside a number is decimal; else 1,234 may be a thousand, and
    only a column without such fields has decimal commas. `text`: it is known to be texts, exactly
    as they are written.
    """

    def __init__(self, text: bool = False, commas: bool = False):
        self._forms, self._commas = [] if text else [*_FORMS], commas
        self._seen = text

    @property
    def has_commas(self) -> bool:
        return self._seen and self._forms[:1] == ["comma"]

    @property
    def type(self) -> pa.DataType:
        """What Arrow holds such a column as."""
        import pyarrow as pa

        if not self._seen:
            return pa.null()
        types = {"whole": pa.int64(), "boolean": pa.bool_(), "date": pa.timestamp("us")}
        return types.get(self._forms[0], pa.float64()) if self._forms else pa.string()

    def take(self, strings: pa.Array) -> pa.Array:
        """A block of the column, as what it is by now."""
        import pyarrow as pa

        tried = [strings]
        for form in self._forms:
            found = _written(tried, form)
            if found is None:
                continue
            if form == "comma" and not self._commas and _share(strings, THOUSAND):
                continue
            if found.null_count < len(found):
                self._forms = [other for other in self._forms if other in _ALSO.get(form, [form])]
                self._seen = True
            return found.cast(self.type) if self._seen else pa.nulls(len(found))
        self._forms, self._seen = [], True
        return strings


def _share(strings: pa.Array, *patterns: re.Pattern) -> float:
    """How many of these fields are written in one of these ways, of those that are there."""
    import pyarrow.compute as pc

    either = "|".join(f"(?:{pattern.pattern})" for pattern in patterns)
    return pc.mean(pc.match_substring_regex(strings, f"^\\s*(?:{either})\\s*$")).as_py() or 0.0


def _written(tried: list[pa.Array], form: str) -> pa.Array | None:
    """The block as this form, or None where a field is not written so. `tried`: the fields as they
    are; and without blanks around them and missing words, which is done where it is needed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for i in range(2):
        if i == len(tried):
            bare = pc.ascii_trim_whitespace(tried[0])
            missing = pc.is_in(pc.utf8_lower(bare), value_set=pa.array(MISSING))
            tried.append(pc.if_else(missing, pa.scalar(None, bare.type), bare))
        try:
            found = _PARSERS[form](tried[i])
        except pa.ArrowInvalid:
            continue
        if found is not None:
            return found
    return None


def _plain(strings: pa.Array) -> bool:
    """Whether no number begins with a plus, or a zero with more digits behind it. On the bytes: a
    regular expression takes twice as long as reading the numbers."""
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
    leading = (text[np.minimum(at, last)] == ord("0")) & digits & (at < last)
    return not ((first == ord("+")) | leading).any()


def _whole(strings: pa.Array) -> pa.Array | None:
    found = strings.cast("int64")
    return found if _plain(strings) else None


def _number(strings: pa.Array) -> pa.Array | None:
    found = strings.cast("float64")
    return found if _plain(strings) else None


def _comma(strings: pa.Array) -> pa.Array | None:
    import pyarrow.compute as pc

    if pc.any(pc.match_substring(strings, ".")).as_py():
        return None
    return _number(pc.replace_substring(strings, ",", "."))


def _boolean(strings: pa.Array) -> pa.Array | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(strings, value_set=pa.array([*TRUE, *FALSE, None]))
    if not pc.all(known).as_py():
        return None
    true = pc.is_in(strings, value_set=pa.array(TRUE))
    return pc.if_else(strings.is_null(), pa.scalar(None, pa.bool_()), true)


def _date(strings: pa.Array) -> pa.Array:
    """Moments in UTC, which those without a zone are taken to be in."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zoned = pc.fill_null(pc.match_substring_regex(strings, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"), False)
    nothing = pa.scalar(None, strings.type)
    there = pc.if_else(zoned, strings, nothing)
    here = pc.if_else(zoned, nothing, strings)
    return pc.coalesce(_moments(here, None), _moments(there, "UTC").cast(pa.timestamp("us")))


def _moments(strings: pa.Array, zone: str | None) -> pa.Array:
    """Fractions of a second may have nine digits: then six are kept."""
    import pyarrow as pa

    try:
        return strings.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return strings.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("us", zone), safe=False)


_PARSERS: dict[str, Callable[[pa.Array], pa.Array | None]] = {
    "whole": _whole,
    "number": _number,
    "comma": _comma,
    "boolean": _boolean,
    "date": _date,
}
