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
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, warn
from .amounts import currency_of, has_quantity
from .fields import ORDERS, bare, is_season, number_of, pattern, second_of
from .kinds import WORDS, canonical, is_missing
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
_NAME = re.compile(r"0\d+")  # 007 is a name
_BARE = re.compile(r"[-−–+(]?[\d., ')eEdD+-]+")
_TELEPHONE = re.compile(r"\+\d[\d ()-]{6,}\d")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")  # of a machine


@dataclass(frozen=True)
class Writing:
    """How the fields of a column are written: `decimal` and `thousands` of numbers, and what a
    `percent` sign divides by; the `order` of the parts of dates."""

    kind: str  # "number" or "date"
    decimal: str = "."
    thousands: str = ""
    order: str = ""
    percent: int = 1

    @property
    def parse(self) -> Callable[[str], float | None]:
        """What one field says; None where it is written otherwise."""
        if self.kind == "date":
            return lambda text: second_of(text, self.order)
        form = pattern(self.decimal, self.thousands)
        return lambda text: number_of(text, form, self.decimal, self.percent)

    def read(self, texts: np.ndarray, reading: Reading | None = None) -> np.ndarray:
        """(rows, 1) of texts: NaN where one is missing, or written otherwise."""
        parse, missing = self.parse, reading.missing if reading else ()
        gone = set(reading.values(self.kind)) if reading else set()
        gone |= {value for text in missing if (value := parse(text)) is not None}
        known = {text: math.nan for text in set(texts.tolist())}
        for text in known:
            if text is not None and text not in missing and not is_missing(text):
                value = parse(text)
                known[text] = math.nan if value is None or value in gone else value
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
        if self.kind not in ("number", "date") or not all(marks) or self.percent not in (1, 100):
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

    def values(self, kind: str) -> list[float]:
        """Numbers, or dates, among what is missing."""
        parse = Writing(kind, order="ymd").parse
        return [value for text in self.missing if (value := parse(text)) is not None]

    @property
    def names(self) -> set[str]:
        """What is missing, by what it says: -999.0 is -999."""
        return {canonical(text) for text in self.missing}

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
    affixed: bool = False  # nearly all fields have something around the number
    percents: bool = False  # some have a percent sign
    unsigned: str = ""  # and one that is not 0 has none
    currencies: tuple[str, ...] = ()

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
        reading, kind = self.reading, self.fields[name].kind
        if name in reading.known:
            return reading.known[name].read(values, reading)
        if reading.missing and kind == "text":
            gone = reading.names
            said = {text: text is not None and canonical(text) in gone for text in set(values)}
            kept = [None if said[text] else text for text in values.tolist()]
            return np.array([*kept, None], dtype=object)[:-1]
        if kind in ("number", "date") and (gone_values := reading.values(kind)):
            return np.where(np.isin(values, np.array(gone_values, values.dtype)), np.nan, values)
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
    percents: Mapping[str, int] | None = None,
) -> Table:
    """The table with columns of texts that are nearly all numbers, or dates, read as such.

    kinds: of columns, as they are wanted; whole: columns of which every field must be one, as
    targets; left: those that stay as they are; percents: what a percent sign divides by in columns
    that had none in training.
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
            known[name] = _known_way(table, name, reading)
            continue
        share, counts = 1.0 if name in whole else NEARLY_ALL, _texts(table, name)
        found = find(counts, reading, want, share, table.decimal_commas)
        found = _divided_by(found, (percents or {}).get(name))
        if found is None and want is None and counts:
            _say_why(table.where, name, counts, reading)
        if found is not None and (want or name in whole or not _in_texts(found)):
            known[name] = found.writing
            _say(table.where, name, found)
            if want and found.percents:
                warn(
                    f"{table.where}: {name!r} is written with percent signs, and was without them"
                    " when the model was trained; 12 % is read as"
                    f" {12 / found.writing.percent:g}."
                )
    if not known and not reading.missing:
        return table
    return AsWritten(table, replace(reading, known=known))


def _divided_by(found: Found | None, percent: int | None) -> Found | None:
    """The same, with percent signs that divide by another number, where one is known."""
    if found is None or percent is None or not found.percents:
        return found
    return replace(found, writing=replace(found.writing, percent=percent))


def _known_way(table: Table, name: str, reading: Reading) -> Writing:
    """How a column is read whose way is known: so, unless its fields are written in another one."""
    way, counts = reading.known[name], _texts(table, name, hope=0.0)
    there = {text: rows for text, rows in counts.items() if not is_missing(text)}
    read, total = _rows_read(way, there), sum(there.values())
    if read >= NEARLY_ALL * total:
        return way
    found = find(there, replace(reading, decimal="", thousands=""), way.kind)
    if found is None and 2 * read > total:
        return way
    others = {text: rows for text, rows in there.items() if way.parse(text) is None}
    example = max(others, key=lambda text: (others[text], text))
    became = "count as missing" if found is None else f"are read like {found.writing.example}"
    warn(
        f"{table.where}: values of {name!r}, such as {example!r}, are not written as in the"
        f" training data ({way.example!r}), and {became}."
    )
    return way if found is None else found.writing


def _in_texts(found: Found) -> bool:
    """Whether the numbers are inside texts that amounts.py reads: so does ONNX, as they are."""
    marks = found.writing.decimal == "." and found.writing.thousands in IN_TEXTS
    return found.affixed and marks and found.writing.percent == 1


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
    if len(found.currencies) > 1:
        warn(several_currencies(where, name, found.currencies))
    if found.unsigned:
        hundred, other = 100 / found.writing.percent, found.unsigned
        warn(
            f"{where}: some numbers in {name!r} have a percent sign and some, such as {other!r}, do"
            f" not; 100 % is read as {hundred:g}: write them in one way if that is wrong."
        )
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


def _say_why(where: str, name: str, counts: Mapping[str, int], reading: Reading) -> None:
    """Where nearly all fields of a column are numbers, or dates, and yet it is one of texts."""
    there = {text: rows for text, rows in counts.items() if not is_missing(text)}
    some = dict(itertools.islice(there.items(), 0, None, 1 + len(there) // TOLD_BY))
    free = replace(reading, decimal="", thousands="")
    # Blanks and apostrophes are in too many codes.
    ways = [way for way in _ways(some, free) if way.thousands not in (" ", "'")]
    for kind, alike in itertools.groupby(ways, lambda way: way.kind):
        by_way = [{text for text in some if way.parse(text) is not None} for way in alike]
        most, either = max(by_way, key=len), set().union(*by_way)
        rows = sum(some[text] for text in either)
        if most != either and rows >= NEARLY_ALL * sum(some.values()):
            warn(
                f"{where}: the {WORDS[kind]} in {name!r} are written in different ways, such as"
                f" {min(most)!r} and {min(either - most)!r}, so they are not read as {WORDS[kind]};"
                " write them in one way."
            )
    found = find(counts, free)
    if found is None or found.writing.kind != "number" or _in_texts(found):
        return
    parse, said = found.writing.parse, _ways(some, reading)
    read = {text for text in some if any(way.parse(text) is not None for way in said)}
    others = {text for text in some if text not in read and parse(text) is not None}
    if others:
        warn(
            f"{where}: numbers in {name!r}, such as {min(others)!r}, are not written with the"
            " decimal and thousands marks that were set, so its texts are names; leave decimal and"
            " thousands out to have marks found column by column."
        )


def several_currencies(where: str, name: str, currencies: Iterable[str]) -> str:
    """What is said of a column with more than one."""
    return (
        f"{where}: {name!r} has amounts in different currencies ({', '.join(currencies)}), which"
        " are read as one number; convert them to one first."
    )


def _texts(table: Table, name: str, hope: float = HOPE) -> Counter[str]:
    """How often texts of a column occur, in rows from all over it; none where the first ones have
    no digits."""
    counts: Counter[str] = Counter()
    for start, stop in spread(table.n, LOOKED_AT):
        texts = [text for text in table.read([name], start, stop)[name].tolist() if text]
        counts.update(texts)
        some = [text for text in texts[:FIRST] if not is_missing(text)]
        if sum(any(c.isdigit() for c in text) for text in some) < hope * len(some):
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
    gone = reading.names
    there = {
        text: rows
        for text, rows in counts.items()
        if not is_missing(text) and not (gone and canonical(text) in gone)
    }
    if not there:
        return None
    ways = _ways(there, reading, kind, commas)
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
    if best.kind == "number" and sum(map(_is_address, some)) >= NEARLY_ALL * len(some):
        return None
    others.sort(key=lambda text: (-there[text], text))
    same = [way for way in ways if way != best and read[way] == read[best]]
    doubtful = not commas and any(_differ(best, way, some) for way in same)
    if best.kind == "date" and kind is None and all(map(is_season, there.keys() - set(others))):
        return None
    if best.kind == "date":
        return Found(best, others, lost, doubtful)
    plain = {text: rows for text, rows in some.items() if _BARE.fullmatch(bare(text))}
    inside = all(
        has_quantity(text) for text in some if text not in plain and parse(text) is not None
    )
    affixed = sum(plain.values()) <= (1 - NEARLY_ALL) * read[best] and inside
    made = Found(best, others, lost, doubtful, affixed, currencies=_currencies(best, some))
    return _with_percents(made, some)


def _ways(
    texts: Iterable[str], reading: Reading, kind: str | None = None, commas: bool = False
) -> list[Writing]:
    """Ways in which texts may be written, those that are preferred first."""
    marks = sorted(reading.marks, key=lambda each: commas and each[0] != ",")
    ways = [Writing("number", *each) for each in marks] if kind != "date" else []
    ways += [Writing("date", order=order) for order in ORDERS] if kind != "number" else []
    if kind is None and _are_names([bare(text) for text in texts]):
        ways = [way for way in ways if way.kind == "date"]
    return ways


def _are_names(texts: list[str]) -> bool:
    """Whether numbers are those of things: 007, or +49 30 123456."""
    plus = [text for text in texts if text.startswith("+")]
    called = bool(plus) and all(_TELEPHONE.fullmatch(text) for text in plus)
    return called or any(_NAME.fullmatch(text) for text in texts)


def _is_address(text: str) -> bool:
    """Whether a text is that of a machine: 192.168.100.101."""
    found = _ADDRESS.fullmatch(text.strip())
    return found is not None and all(int(part) < 256 for part in found[0].split("."))


def _currencies(way: Writing, texts: Iterable[str]) -> tuple[str, ...]:
    """Those of numbers, in the order of their signs."""
    found = {currency_of(text) for text in texts if way.parse(text) is not None}
    return tuple(sorted(found - {""}))


def _with_percents(found: Found, texts: Iterable[str]) -> Found:
    """Where some have a percent sign and some do not, the latter say what they are: shares are at
    most 1, and 12 % is then 0.12. A 0 says nothing."""
    parse = found.writing.parse
    signed = [text for text in texts if bare(text).endswith("%") and parse(text) is not None]
    if not signed:
        return found
    others = {text: parse(text) for text in set(texts).difference(signed)}
    plain = {text: value for text, value in others.items() if value}
    if not plain:
        return replace(found, percents=True)
    percent = 100 if all(abs(value) <= 1 for value in plain.values()) else 1
    writing = replace(found.writing, percent=percent)
    return replace(found, writing=writing, percents=True, unsigned=min(plain))


def _are_codes(texts: Iterable[str]) -> bool:
    """Whether texts in groups are all equally long: 612 345 678 is a telephone's."""
    every = [bare(text) for text in texts]
    return len(every) > 1 and len({len(text) for text in every}) == 1


def _rows_read(way: Writing, there: Mapping[str, int]) -> int:
    parse = way.parse
    return sum(rows for text, rows in there.items() if parse(text) is not None)


def _differ(one: Writing, other: Writing, texts: Iterable[str]) -> bool:
    """Whether two ways to read say different things."""
    first, second = one.parse, other.parse
    return any(first(text) != second(text) for text in texts)


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
