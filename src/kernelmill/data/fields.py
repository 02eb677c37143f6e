"""One field, as people write numbers and dates: "$1,234.50", "12 %", "(300)", "31/12/2020"."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache

from .amounts import CURRENCY

ORDERS = ("ymd", "dmy", "mdy")  # of the parts of a date

# What stands for an ASCII character: blanks of other widths, the typographic apostrophe, and what
# East Asian keyboards write twice as wide.
_ALIKE = {
    **dict.fromkeys([0x00A0, 0x2007, 0x2009, 0x202F, 0x3000], " "),
    0x2019: "'",
    **{0xFEE0 + c: chr(c) for c in range(0x21, 0x7F)},
}
_CLOCK = (
    r"(?:[T ,]+(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
    r"\s*(?P<half>[AaPp])?\.?(?(half)[Mm]?\.?)\s*(?P<zone>Z|UTC|GMT|[-+−]\d\d(?::?\d\d)?)?)?"
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
_MONTH = re.compile(r"(?P<year>(?:19|20)\d\d)-(?P<month>0[1-9]|1[0-2])")  # ISO's: its first day
_OF_TWO = {
    "dmy": rf"(?P<day>\d\d)([/.])(?P<month>\d\d)\2{_SHORT}",
    "mdy": rf"(?P<month>\d\d)([/.])(?P<day>\d\d)\2{_SHORT}",
}
_NAMED = {
    "dmy": rf"{_DAY}[-/. ]*{_WORD}[-/., ]*{_YEAR}",
    "mdy": rf"{_WORD} *{_DAY}[, ]+{_YEAR}",
}
_OF_ORDER = {
    order: [
        re.compile(f"{form[order]}{_CLOCK}", re.IGNORECASE)
        for form in (_NUMBERS, _OF_TWO, _NAMED)
        if order in form
    ]
    for order in ORDERS
}
# The year first leaves no doubt, whatever order the others have.
_DATES = {"ymd": [*_OF_ORDER["ymd"], _MONTH]} | {
    order: [*_OF_ORDER[order], *_OF_ORDER["ymd"]] for order in ("dmy", "mdy")
}


def bare(text: str) -> str:
    """A field without blanks around it, in ASCII where that means the same."""
    return (text if text.isascii() else text.translate(_ALIKE)).strip()


@lru_cache(maxsize=64)
def pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Numbers with these marks, perhaps with a currency or a percent sign, or in brackets."""
    whole = r"(?:0|[1-9]\d*)"
    if thousands:
        whole = rf"(?:[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+|{whole})"
    if thousands == ",":  # lakhs: 12,34,567
        whole = rf"(?:[1-9]\d?(?:,\d\d)+,\d{{3}}|{whole})"
    point = re.escape(decimal)
    plain = rf"(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
    # Fortran's powers, which follow decimals: 24D-42 is a code.
    body = rf"(?P<body>{plain}|{whole}?{point}\d+[dD][+-]\d{{2,3}})"
    money = rf"(?:{CURRENCY})?"
    return re.compile(
        rf"(?P<open>\()?\s*(?P<sign>[-−–+])?\s*{money}\s*(?P<after>[-−–+])?\s*{body}"
        rf"(?P<behind>--?|[−–—])?"
        rf"\s*(?:(?P<percent>%)|‰|{CURRENCY})?\s*(?(open)\))",
        re.IGNORECASE,
    )


def number_of(text: str, pattern: re.Pattern[str], decimal: str, percent: int = 1) -> float | None:
    """What a field says; None where it is written otherwise. percent: what a percent sign divides
    by."""
    found = pattern.fullmatch(bare(text))
    if found is None:
        return None
    signs = [found[part] for part in ("sign", "after", "behind") if found[part]]
    body = found["body"]
    if found["behind"] and body.endswith(decimal):  # a price without decimals: 49.-
        signs.remove(found["behind"])
    # A minus behind is that of ledgers, which write decimals: 2- is a grade.
    elif found["behind"] and not (
        found["behind"] in "-−–" and re.search(rf"{re.escape(decimal)}\d", body)
    ):
        return None
    if len(signs) > 1:
        return None
    if decimal == ",":
        body = re.sub(r"[. ']", "", body).replace(",", ".")
    else:
        body = re.sub(r"[, ']", "", body)
    value = float(re.sub("[dD]", "e", body))
    if not math.isfinite(value):
        return None
    if found["percent"]:
        value /= percent
    return -value if found["open"] or (signs and signs != ["+"]) else value


def second_of(text: str, order: str) -> float | None:
    """Seconds since 1970 of a date; one without a zone is UTC."""
    plain = bare(text)
    for form in _DATES[order]:
        found = form.fullmatch(plain)
        if found is not None:
            return _moment(found.groupdict())
    return None


def is_season(text: str) -> bool:
    """Whether a text that may be a month is two years, one after the other: 2011-12."""
    found = _MONTH.fullmatch(bare(text))
    return found is not None and int(found["month"]) == (int(found["year"]) + 1) % 100


def _moment(part: dict[str, str | None]) -> float | None:
    year, month = int(part["year"] or 0), part["month"] or ""
    if len(part["year"] or "") == 2:
        year += 1900 if year >= 69 else 2000
    if not month.isdigit():
        if month[:3].lower() not in _MONTHS:
            return None
        month = str(_MONTHS.index(month[:3].lower()) + 1)
    hour, half = int(part.get("hour") or 0), part.get("half")
    if half and half in "aA" and hour > 12:
        return None
    if half:
        hour = hour % 12 + 12 * (half in "pP")
    try:
        day = datetime(year, int(month), int(part.get("day") or 1), tzinfo=UTC)
    except ValueError:
        return None
    minute, second = int(part.get("minute") or 0), int(part.get("second") or 0)
    if hour > 23 or minute > 59 or second > 60:
        return None
    days = (day - datetime(1970, 1, 1, tzinfo=UTC)).days
    whole = days * 86_400 + hour * 3600 + minute * 60 + second - _offset(part.get("zone") or "")
    # Six digits of a second are kept, as of files.
    return whole + int((part.get("fraction") or "")[:6].ljust(6, "0")) / 1e6


def _offset(zone: str) -> int:
    """Seconds that clocks of a zone are ahead of UTC."""
    if zone[:1] not in ("+", "-", "−"):
        return 0
    digits = zone[1:].replace(":", "")
    ahead = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
    return ahead if zone[0] == "+" else -ahead
