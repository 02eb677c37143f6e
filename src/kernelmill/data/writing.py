"""How people write numbers and dates: "$1,234.50", "12 %", "1.234,5", "(300)", "31/12/2020".

A column of texts that are nearly all written so is one of numbers, or of dates; what is written
otherwise there counts as missing. The model stores how each column was written, and reads new rows
the same way. Where it can be told only by guessing, or something is lost, a warning says so.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, warn
from .amounts import CURRENCY
from .kinds import WORDS, is_missing
from .tables import Field, Table, spread

if TYPE_CHECKING:
    from .tables import ArrowColumns

NEARLY_ALL = 0.95  # of the rows with a value, that have to be written in one way
LOOKED_AT = 200_000  # rows by which it is decided, from places all over the table
TOLD_BY = 2_000  # different texts by which the ways to read them are compared
FIRST, HOPE = 2_000, 0.8  # rows that are looked at first, and the share of digits among them

# Marks before decimals and between thousands, in the order they are tried: of two that read as
# many fields the first is meant. A comma before three digits is a thousand, unless one is told.
MARKS = (
    *((".", ""), (".", ","), (",", ""), (",", ".")),
    *((",", " "), (".", " "), (".", "'"), (",", "'")),
)
IN_TEXTS = ("", ",")  # thousands of numbers that amounts.py reads, currencies and units around them
ORDERS = ("ymd", "dmy", "mdy")  # of the parts of a date
_BLANKS = re.compile("[\u00a0\u2007\u2009\u202f]")
_NAME = re.compile(r"0\d+")  # 007 is a name
_BARE = re.compile(r"[-−(]?[\d., ')eE+-]+")
_CLOCK = (
    r"(?:[T ,]+(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d(?:\.\d+)?))?"
    r"\s*(?P<half>[AaPp])?\.?(?(half)[Mm]?\.?))?"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WORD = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4}|\d\d)"
# A year of two digits beside parts of two digits: 1.2.10 is a version.
_FULL, _SHORT = r"(?P<year>\d{4})", r"(?P<year>\d\d)"
_NUMBERS = {
    "ymd": r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    "dmy": rf"(?P<day>\d{{1,2}})([-/. ])(?P<month>\d{{1,2}})\2{_FULL}",
    "mdy": rf"(?P<month>\d{{1,2}})([-/. ])(?P<day>\d{{1,2}})\2{_FULL}",
}
_OF_TWO = {
    "dmy": rf"(?P<day>\d\d)([/.])(?P<month>\d\d)\2{_SHORT}",
    "mdy": rf"(?P<month>\d\d)([/.])(?P<day>\d\d)\2{_SHORT}",
}
_NAMED = {
    "dmy": rf"{_DAY}[-/. ]*{_WORD}[-/., ]*{_YEAR}",
    "mdy": rf"{_WORD} *{_DAY}[, ]+{_YEAR}",
}
_DATES = {
    order: [
        re.compile(f"{form[order]}{_CLOCK}", re.IGNORECASE)
        for form in (_NUMBERS, _OF_TWO, _NAMED)
        if order in form
    ]
    for order in ORDERS
}


@dataclass(frozen=True)
class Writing:
    """How the fields of a column are written: `decimal` and `thousands` of numbers, the `order` of
    the parts of dates."""

    kind: str  # "number" or "date"
    decimal: str = "."
    thousands: str = ""
    order: str = ""

    @property
    def parse(self) -> Callable[[str], float | None]:
        """What one field says; None where it is written otherwise."""
        if self.kind == "date":
            return lambda text: _second(text, self.order)
        pattern = _pattern(self.decimal, self.thousands)
        return lambda text: _number(text, pattern, self.decimal)

    def read(self, texts: np.ndarray, missing: Collection[str] = ()) -> np.ndarray:
        """(rows, 1) of texts: NaN where one is missing, or written otherwise."""
        parse = self.parse
        known = {text: math.nan for text in set(texts.tolist())}
        for text in known:
            if text is not None and text not in missing and not is_missing(text):
                value = parse(text)
                known[text] = math.nan if value is None else value
        return np.array([known[text] for text in texts.tolist()], np.float64).reshape(-1, 1)

    @property
    def example(self) -> str:
        """The same number, or date, as any column of it."""
        if self.kind == "date":
            return {"ymd": "2024/12/31", "dmy": "31/12/2024", "mdy": "12/31/2024"}[self.order]
        return f"1{self.thousands}234{self.decimal}5"

    def check(self) -> None:
        """ValueError where it is none."""
        marks = (self.decimal in (".", ","), self.thousands in ("", ",", ".", " ", "'"))
        if self.kind not in ("number", "date") or not all(marks):
            raise ValueError("the encoder's writings are not known")
        if (self.kind == "date") != (self.order in ORDERS):
            raise ValueError("the encoder's writings are not known")


@dataclass(frozen=True)
class Reading:
    """How tables are read: `missing` texts, beside those that are always so; marks that are said
    to be used in all columns; and how columns were written that are `known`."""

    missing: tuple[str, ...] = ()
    decimal: str = ""
    thousands: str = ""
    known: Mapping[str, Writing] = field(default_factory=dict)

    @property
    def numbers(self) -> list[float]:
        """Numbers among what is missing."""
        found = [_number(text, _pattern(".", ""), ".") for text in self.missing]
        return [value for value in found if value is not None]

    @property
    def marks(self) -> list[tuple[str, str]]:
        """Marks that numbers may have: those that were said, or any."""
        said = ("", self.thousands)
        return [
            (decimal, thousands)
            for decimal, thousands in MARKS
            if self.decimal in ("", decimal)
            and decimal != self.thousands
            and (not self.thousands or thousands in said)
        ]

    def to_dict(self) -> dict[str, object]:
        known = {name: asdict(writing) for name, writing in self.known.items()}
        kept = {"decimal": self.decimal, "thousands": self.thousands, "known": known}
        return {"missing": list(self.missing), **kept}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """What `to_dict` gave. ValueError where it is something else."""
        known = {name: Writing(**writing) for name, writing in values["known"].items()}
        for writing in known.values():
            writing.check()
        return cls(tuple(values["missing"]), values["decimal"], values["thousands"], known)


@dataclass(frozen=True)
class Found:
    """A way to write, and what a column holds beside it."""

    writing: Writing
    others: list[str]  # texts that are written otherwise
    rows: int  # which have them, of those that were looked at
    doubtful: bool = False  # as many fields are read another way
    affixed: bool = False  # most fields have something around the number

    @property
    def example(self) -> str:
        return repr(self.others[0])


class AsWritten(Table):
    """Another table, of which some columns of texts are read as they are written, and some values
    are missing."""

    def __init__(self, table: Table, reading: Reading):
        self._table, self.reading = table, reading
        self.n, self.cuts, self.where = table.n, table.cuts, table.where
        self.unused, self.files, self.copied = table.unused, table.files, table.copied
        self.comma_columns = table.comma_columns
        self.fields = {
            name: Field(name, reading.known[name].kind) if name in reading.known else each
            for name, each in table.fields.items()
        }

    def read(self, names: list[str], start: int, stop: int) -> dict[str, np.ndarray]:
        block = self._table.read(names, start, stop)
        return {name: self._as_written(name, values) for name, values in block.items()}

    def _as_written(self, name: str, values: np.ndarray) -> np.ndarray:
        missing, kind = self.reading.missing, self.fields[name].kind
        if name in self.reading.known:
            return self.reading.known[name].read(values, missing)
        if missing and kind == "text":
            kept = [None if text in missing else text for text in values.tolist()]
            return np.array([*kept, None], dtype=object)[:-1]
        if self.reading.numbers and kind == "number":
            gone = np.array(self.reading.numbers, values.dtype)
            return np.where(np.isin(values, gone), np.nan, values)
        return values

    def column(self, name: str) -> np.ndarray:
        plain = name not in self.reading.known and not self.reading.missing
        return self._table.column(name) if plain else super().column(name)

    def raw(self, names: list[str]) -> ArrowColumns:
        return self._table.raw(names)

    def _of_kinds(self, other: dict[str, str]) -> Table:
        known = {name: way for name, way in self.reading.known.items() if name not in other}
        return AsWritten(self._table.of_kinds(other), replace(self.reading, known=known))


def as_written(
    table: Table,
    reading: Reading,
    kinds: Mapping[str, str] | None = None,
    whole: Collection[str] = (),
    left: Collection[str] = (),
) -> Table:
    """The table with columns of texts that are nearly all numbers, or dates, read as such.

    kinds: of columns, as they are wanted; whole: columns of which every field must be one, as
    targets; left: those that stay as they are.
    """
    if isinstance(table, AsWritten):
        return table
    wanted, known = kinds or {}, {}
    said = bool(reading.decimal or reading.thousands)
    for name, each in table.fields.items():
        want = wanted.get(name)
        if each.width > 1 or each.named or want == "text" or name in left:
            continue
        if each.kind == "number" and _is_csv(table) and (said or name in reading.known):
            texts = table.of_kinds({name: "text"})
            if said or _is_read(texts, name, reading):
                table = texts
        if table.fields[name].kind != "text" or want == "boolean":
            continue
        if name in reading.known:
            known[name] = reading.known[name]
            continue
        share = 1.0 if name in whole else NEARLY_ALL
        found = find(_texts(table, name), reading, want, share, table.decimal_commas)
        if found is not None and (want or name in whole or not _in_texts(found)):
            known[name] = found.writing
            _say(table.where, name, found)
    if not known and not reading.missing:
        return table
    return AsWritten(table, replace(reading, known=known))


def _in_texts(found: Found) -> bool:
    """Whether the numbers are inside texts that amounts.py reads: so does ONNX, as they are."""
    marks = found.writing.decimal == "." and found.writing.thousands in IN_TEXTS
    return found.affixed and marks


def reading_of(table: Table, names: Collection[str]) -> Reading:
    """How these columns of a table are read."""
    commas = {name: Writing("number", ",") for name in table.comma_columns if name in names}
    if not isinstance(table, AsWritten):
        return Reading(known=commas)
    known = {name: way for name, way in table.reading.known.items() if name in names}
    return replace(table.reading, known={**commas, **known})


def _is_read(texts: Table, name: str, reading: Reading) -> bool:
    """Whether a column is written as it was in training: 1.234 may be plain numbers too."""
    counts = _texts(texts, name)
    there = {text: rows for text, rows in counts.items() if not is_missing(text)}
    read = _rows_read(reading.known[name], there)
    return read >= NEARLY_ALL * sum(there.values()) > 0


def _is_csv(table: Table) -> bool:
    """Whether numbers stand somewhere as texts, and were guessed to be numbers."""
    return hasattr(table, "_again")


def _say(where: str, name: str, found: Found) -> None:
    kind = WORDS[found.writing.kind]
    if found.others:
        warn(
            f"{where}: {found.rows} fields of {name!r} are not {kind}, such as {found.example}, and"
            f" count as missing; put {name!r} in categorical if they mean something."
        )
    if found.doubtful and found.writing.kind == "date":
        warn(
            f"{where}: the dates in {name!r} are read with the day first, though nothing in them"
            " shows it; write them as 2024-12-31 if that is wrong."
        )
    elif found.doubtful:
        mark = "thousands" if found.writing.thousands else "decimal"
        warn(
            f"{where}: the commas in {name!r} are read as {mark} marks, though nothing in them"
            " shows it; set decimal='.' or decimal=',' to settle it."
        )


def _texts(table: Table, name: str) -> Counter[str]:
    """How often texts of a column occur, in rows from all over it; none where the first ones have
    no digits."""
    counts: Counter[str] = Counter()
    for start, stop in spread(table.n, LOOKED_AT):
        texts = [text for text in table.read([name], start, stop)[name].tolist() if text]
        counts.update(texts)
        some = [text for text in texts[:FIRST] if not is_missing(text)]
        if sum(any(c.isdigit() for c in text) for text in some) < HOPE * len(some):
            return Counter()
    return counts


def find(
    counts: Mapping[str, int],
    reading: Reading,
    kind: str | None = None,
    share: float = NEARLY_ALL,
    commas: bool = False,
) -> Found | None:
    """How texts are written, of which so many rows have each; None where there is no one way.
    commas: those of the file are decimal, where they may also be something else."""
    there = {
        text: rows
        for text, rows in counts.items()
        if text not in reading.missing and not is_missing(text)
    }
    if not there:
        return None
    marks = sorted(reading.marks, key=lambda each: commas and each[0] != ",")
    ways = [Writing("number", *each) for each in marks] if kind != "date" else []
    ways += [Writing("date", order=order) for order in ORDERS] if kind != "number" else []
    if kind is None and any(_NAME.fullmatch(_bare(text)) for text in there):
        ways = [way for way in ways if way.kind == "date"]
    some = dict(itertools.islice(there.items(), 0, None, 1 + len(there) // TOLD_BY))
    read = {way: _rows_read(way, some) for way in ways}
    best = max(read, key=read.__getitem__, default=None)  # the first of those that read as many
    if best is None or not read[best]:
        return None
    parse = best.parse
    others = [text for text in there if parse(text) is None]
    lost, total = sum(there[text] for text in others), sum(there.values())
    if total - lost < share * total:
        return None
    if best.thousands in (".", " ", "'") and _are_codes(some):
        return None
    others.sort(key=lambda text: (-there[text], text))
    same = [way for way in ways if way != best and read[way] == read[best]]
    doubtful = not commas and any(_differ(best, way, some) for way in same)
    bare = sum(rows for text, rows in some.items() if _BARE.fullmatch(_bare(text)))
    affixed = best.kind == "number" and bare < read[best] / 2
    return Found(best, others, lost, doubtful, affixed)


def _are_codes(texts: Iterable[str]) -> bool:
    """Whether texts in groups are all equally long: 612 345 678 is a telephone's."""
    bare = [_bare(text) for text in texts]
    return len(bare) > 1 and len({len(text) for text in bare}) == 1


def _rows_read(way: Writing, there: Mapping[str, int]) -> int:
    parse = way.parse
    return sum(rows for text, rows in there.items() if parse(text) is not None)


def _differ(one: Writing, other: Writing, texts: Iterable[str]) -> bool:
    """Whether two ways to read say different things."""
    first, second = one.parse, other.parse
    return any(first(text) != second(text) for text in texts)


# ---- one field


def _bare(text: str) -> str:
    return _BLANKS.sub(" ", text).strip()


@lru_cache(maxsize=64)
def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Numbers with these marks, perhaps with a currency or a percent sign, or in brackets."""
    whole = r"(?:0|[1-9]\d*)"
    if thousands:
        whole = rf"(?:[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+|{whole})"
    point = re.escape(decimal)
    body = rf"(?P<body>(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?)"
    money = rf"(?:{CURRENCY})?"
    return re.compile(
        rf"(?P<open>\()?\s*(?P<sign>[-−])?\s*{money}\s*(?P<after>[-−])?\s*{body}"
        rf"\s*(?:[%‰]|{CURRENCY})?\s*(?(open)\))",
        re.IGNORECASE,
    )


def _number(text: str, pattern: re.Pattern[str], decimal: str) -> float | None:
    found = pattern.fullmatch(_bare(text))
    if found is None or (found["sign"] and found["after"]):
        return None
    body = found["body"]
    if decimal == ",":
        body = re.sub(r"[. ']", "", body).replace(",", ".")
    else:
        body = re.sub(r"[, ']", "", body)
    value = float(body)
    if not math.isfinite(value):
        return None
    return -value if found["open"] or found["sign"] or found["after"] else value


def _second(text: str, order: str) -> float | None:
    """Seconds since 1970 of a date in UTC."""
    bare = _bare(text)
    for pattern in _DATES[order]:
        found = pattern.fullmatch(bare)
        if found is not None:
            return _moment(found.groupdict())
    return None


def _moment(part: dict[str, str | None]) -> float | None:
    year, month = int(part["year"] or 0), part["month"] or ""
    if len(part["year"] or "") == 2:
        year += 1900 if year >= 69 else 2000
    if not month.isdigit():
        if month[:3].lower() not in _MONTHS:
            return None
        month = str(_MONTHS.index(month[:3].lower()) + 1)
    hour = int(part["hour"] or 0)
    if part["half"]:
        hour = hour % 12 + 12 * (part["half"] in "pP")
    try:
        day = datetime(year, int(month), int(part["day"] or 0), tzinfo=UTC)
        minutes, seconds = int(part["minute"] or 0), float(part["second"] or 0)
    except ValueError:
        return None
    if hour > 23 or minutes > 59 or seconds >= 61:
        return None
    return (
        (day - datetime(1970, 1, 1, tzinfo=UTC)).days * 86_400.0
        + hour * 3600
        + (minutes * 60 + seconds)
    )


def check_marks(decimal: str | None, thousands: str | None) -> None:
    """Raise where they are no marks of numbers."""
    if decimal not in (None, ".", ","):
        raise InputError(f"columns: decimal={decimal!r} was given, expected '.' or ','.")
    if thousands not in (None, ",", ".", " ", "'"):
        raise InputError(
            f"columns: thousands={thousands!r} was given, expected ',', '.', ' ' or \"'\"."
        )
    if thousands is not None and thousands == (decimal or "."):
        raise InputError(
            f"columns: thousands={thousands!r} and decimal={decimal or '.'!r} were given, which"
            " have to differ."
        )
