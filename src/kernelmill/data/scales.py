"""Names with an order that can be told from the texts: ranges ("13 TO 15", "<5", "65+"), numbers
with a unit ("4 rooms"), and well-known scales ("low, medium, high")."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from .amounts import count_forms, find_forms, have_bare_beside, take_apart

ENOUGH = 0.9  # of the rows with a value, whose place in the order is known
FEWEST = 3  # values in an order: of two, one-hot says as much
LETTERS = 4  # of the alphabet without a gap, to be taken for an order

# Lowest first; "a|b" are two words for one place.
_SCALES = [
    "very poor|very bad|terrible|awful, poor|bad, fair|mediocre|below average,"
    " average|typical|ok|okay|acceptable, good|above average, very good,"
    " excellent|great|premium, ideal|outstanding|perfect",
    "po, fa, ta, gd, ex",
    "i3, i2, i1, si2, si1, vs2, vs1, vvs2, vvs1, if, fl",
    "none|no|zero, minimum|minimal|min|lowest, very low, low, medium low|below average,"
    " medium|moderate|mid|middle|normal|average|intermediate, medium high|above average, high,"
    " very high, maximum|max|highest|extreme",
    "none|no|absent, minimum|minimal|trace|very light|very mild, light|mild|slight|weak|minor,"
    " medium|moderate|normal, heavy|severe|strong|major|serious|marked,"
    " very heavy|very severe|critical|maximum|extreme, fatal",
    "xxs, xs|extra small|very small|tiny, s|small, m|medium|med|mid, l|large|big,"
    " xl|extra large|very large|huge, xxl|2xl, xxxl|3xl, 4xl",
    "never, rarely|seldom|almost never|hardly ever, occasionally|sometimes, often|frequently,"
    " usually|very often|mostly|almost always, always",
    "never, yearly|annually|annual, half yearly|semi annually|semi annual, quarterly,"
    " monthly, fortnightly|biweekly|bi weekly, weekly, daily, hourly",
    "strongly disagree|completely disagree, disagree, somewhat disagree|slightly disagree,"
    " neutral|neither|neither agree nor disagree|undecided, somewhat agree|slightly agree, agree,"
    " strongly agree|completely agree",
    "very dissatisfied|very unsatisfied, dissatisfied|unsatisfied,"
    " somewhat dissatisfied, neutral|neither, somewhat satisfied, satisfied, very satisfied",
    "very negative, negative, neutral, positive, very positive",
    "very unlikely, unlikely, neutral|possible, likely, very likely, certain",
    "not important|unimportant, slightly important, moderately important, important,"
    " very important, extremely important",
    "illiterate|none|no schooling, preschool|kindergarten,"
    " primary|elementary|primary school|1st 4th|basic 4y, 5th 6th|basic 6y,"
    " 7th 8th|middle school, 9th|basic 9y|lower secondary, 10th, 11th, 12th,"
    " secondary|secondary school|high school|hs grad|high school graduate,"
    " some college|professional course, assoc voc, assoc acdm|associate|associates,"
    " bachelors|bachelor|university degree|undergraduate|college|tertiary,"
    " masters|master|graduate|postgraduate, prof school|professional, doctorate|phd|doctoral",
    "infant|baby|newborn, toddler, child|kid, teen|teenager|adolescent, young|young adult,"
    " adult|middle aged, senior|old|elderly",
    "freezing, very cold, cold, cool|chilly, mild, warm, hot, very hot",
    "very slow, slow, medium|normal|moderate, fast, very fast",
    "bronze, silver, gold, platinum, diamond",
    "economy, premium economy, business, first",
    "basic, standard|regular, plus, premium, ultimate",
    "intern|trainee|entry|entry level, junior|beginner|novice, mid|mid level|intermediate,"
    " senior|advanced, lead|staff|principal|expert",
    "first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth",
    "zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve",
    "d, c, cc, ccc-, ccc, ccc+, b-, b, b+, bb-, bb, bb+, bbb-, bbb, bbb+, a-, a, a+, aa-, aa,"
    " aa+, aaa",
    "f, e, d-, d, d+, c-, c, c+, b-, b, b+, a-, a, a+",
]
# On a circle: as ranks they did not help the tables they were tried on (hotel, shoppers, steel), so
# they are one-hot unless the user says that they are ordered.
_CALENDAR = [
    "january|jan, february|feb, march|mar, april|apr, may, june|jun, july|jul, august|aug,"
    " september|sep|sept, october|oct, november|nov, december|dec",
    "monday|mon, tuesday|tue|tues, wednesday|wed, thursday|thu|thur|thurs, friday|fri,"
    " saturday|sat, sunday|sun",
    "early morning|dawn, morning, noon|midday, afternoon, evening, night, late night",
    "winter, spring, summer, autumn|fall",
]
# Values beside every order, which count neither for it nor against.
_BESIDE = set(
    ["unknown", "undefined", "other", "others", "n/a", "na", "missing", "unspecified", "?", "-"]
    + ["not specified", "not available", "not known", "prefer not to say", "don't know"]
)

_DASH = re.compile("[‐‑‒–—−]")
_MONEY = r"(?:[$€£¥₹]|rs\.?|usd|eur|gbp|inr)?\s*"
_PRICE = re.compile(r"[$€£¥₹]|\b(?:rs|usd|eur|gbp|inr)\b")
_LESS = r"(?:<|<=|≤|under|below|less than|fewer than|up to|until|at most)"
_MORE = r"(?:>|>=|≥|over|above|more than|greater than|at least|from)"
_COUNTED = (
    r"(?:grade|level|lvl|tier|stage|phase|step|rank|band|size|floor|generation|gen|quarter|q|week|"
    r"year|month|day|semester|term|decile|quintile|quartile)"
)
_BEHIND_LESS = r"(?:(?:or|and) (?:less|fewer|under|below|younger|lower))"
_BEHIND_MORE = r"(?:\+|plus|(?:or|and) (?:more|over|above|older|up|higher|upwards?))"
_TIMES = r"(?P<times>k|mn?|bn?)?"
_UNIT = r"(?P<unit>|%|[^\W\d_][^\d+]*?)"
_HEAD = re.compile(
    rf"[\[(]?\s*(?P<way>{_LESS}|{_MORE}|{_COUNTED}|between|ages?|aged)?\s*(?P<sign>-)?#?\s*{_MONEY}"
)
_INNER = re.compile(rf"{_TIMES}\s*{_UNIT}\s*(?:-|to|\.\.+|…|and|through|thru|,)\s*{_MONEY}")
_TAIL = re.compile(
    rf"{_TIMES}\s*(?:st|nd|rd|th)?\s*(?P<plus>\+)?\s*{_UNIT}\s*"
    rf"(?P<way>{_BEHIND_LESS}|{_BEHIND_MORE})?\s*[\])]?"
)
_FACTOR = {None: 1.0, "k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9}


class Order(NamedTuple):
    """Numbers of the values that have a place in an order, and what each number is."""

    labels: list[str]
    places: dict[str, list[float]]


class _Range(NamedTuple):
    low: float
    high: float
    unit: str
    bare: bool  # a number and nothing else, as codes are


def given_order(names: list[str]) -> Order:
    """The order that was given, lowest first."""
    return Order(["order"], {name: [float(place)] for place, name in enumerate(names)})


def find_order(counts: Mapping[str | None, float], told: bool = False) -> Order | None:
    """The order of names of which there are so many rows each, or None where none can be told.

    told: the user says that there is one; then months, weekdays and the like have it too.
    """
    rows = {
        text: many
        for text, many in counts.items()
        if text is not None and text.strip().lower() not in _BESIDE
    }
    scales = [*SCALES, *CALENDAR] if told else SCALES
    texts = list(rows)
    for places in (_ranges(texts), _scale(texts, scales), _letters(texts)):
        known = sum(rows[text] for text in places)
        if len(set(places.values())) >= FEWEST and known >= ENOUGH * sum(rows.values()):
            return Order(["order"], {text: [place] for text, place in places.items()})
    forms = find_forms(count_forms(rows), texts=rows)
    if forms is None:
        return None
    read = {text: forms.numbers_of(text) for text in rows}
    places_ = {text: numbers for text, numbers in read.items() if not math.isnan(numbers[0])}
    return Order(forms.labels, places_) if len(places_) >= FEWEST else None


def _ranges(texts: list[str]) -> dict[str, float]:
    """The middles of texts that are ranges or numbers of one unit."""
    found = {text: each for text in texts if (each := read_range(text)) is not None}
    units = {each.unit for each in found.values() if each.unit}
    bare = [each.bare for each in found.values()]
    if len(units) > 1 or all(bare) or (any(bare) and not have_bare_beside(found)):
        return {}
    widths = sorted(each.high - each.low for each in found.values())
    closed = [width for width in widths if math.isfinite(width)]
    # An end that is open is as far away as the others are.
    width = max(1.0, closed[len(closed) // 2]) if closed else 1.0
    out = {}
    for text, each in found.items():
        low = each.low if math.isfinite(each.low) else each.high - width
        high = each.high if math.isfinite(each.high) else each.low + width
        out[text] = (low + high) / 2
    return out


def read_range(text: str) -> _Range | None:
    """What a text such as "13 TO 15", "<5", "65 and over", "Q3" or "4 rooms" spans."""
    bare = _DASH.sub("-", text.strip().lower()).replace("_", " ")
    words, numbers = take_apart(bare)
    if len(numbers) not in (1, 2):
        return None
    head, tail = _HEAD.fullmatch(words[0]), _TAIL.fullmatch(words[-1])
    if head is None or tail is None:
        return None
    if tail["times"] in ("m", "b") and not _PRICE.search(bare):
        return None  # metres, or the second of two letters
    factor = _FACTOR[tail["times"]]
    if head["sign"]:
        numbers = [-numbers[0], *numbers[1:]]
    if len(numbers) == 2:
        return _closed(words[1], numbers, factor, tail["unit"])
    number = numbers[0] * factor
    unit = singular(tail["unit"])
    before, behind = head["way"] or "", tail["plus"] or tail["way"] or ""
    if re.fullmatch(_LESS, before) or re.fullmatch(_BEHIND_LESS, behind):
        return _Range(-math.inf, number, unit, False)
    if re.fullmatch(_MORE, before) or re.fullmatch(_BEHIND_MORE, behind):
        return _Range(number, math.inf, unit, False)
    return _Range(number, number, unit, words == ("", ""))


def _closed(between: str, numbers: list[float], factor: float, unit: str) -> _Range | None:
    inner = _INNER.fullmatch(between)
    if inner is None:
        return None
    low, high = numbers
    low *= factor if inner["times"] is None else _FACTOR[inner["times"]]
    high *= factor
    return _Range(low, high, singular(unit), False) if low <= high else None


def singular(unit: str) -> str:
    word = unit.strip().rstrip(".")
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word


def _scale(texts: list[str], scales: list[dict[str, int]]) -> dict[str, float]:
    """Places in the well-known scale that most of the texts are in."""
    said = _without_common(texts)
    best: dict[str, float] = {}
    for scale in scales:
        found = {}
        for text in texts:
            place = scale.get(text.strip().lower(), scale.get(said[text]))
            if place is not None:
                found[text] = float(place)
        if len(found) > len(best) and not _only_letters(found):
            best = found
    ranks = sorted(set(best.values()))
    return {text: float(ranks.index(place)) for text, place in best.items()}


def _only_letters(texts: Mapping[str, float]) -> bool:
    """Whether these may be letters of something else: A, B, C are grades where F comes after D."""
    names = {text.strip().lower() for text in texts}
    single = all(len(name) == 1 and name.isalpha() for name in names)
    return single and names != {"s", "m", "l"} and names != {"a", "b", "c", "d", "f"}


def _letters(texts: list[str]) -> dict[str, float]:
    """Places in the alphabet, of letters without a gap between them."""
    places = {text: float(ord(text)) for text in texts if re.fullmatch("[A-Z]|[a-z]", text)}
    if len(places) < max(LETTERS, len(texts)):
        return {}
    gaps = max(places.values()) - min(places.values()) + 1 - len(places)
    return {} if gaps else places


def _without_common(texts: list[str]) -> dict[str, str]:
    """Texts in plain words, without a first or last word that all of them have: "Light_Load" is
    light."""
    words = {text: re.split(r"[\s_./-]+", text.strip().lower()) for text in texts}
    if all(len(each) > 1 for each in words.values()):
        if len({each[-1] for each in words.values()}) == 1:
            words = {text: each[:-1] for text, each in words.items()}
        elif len({each[0] for each in words.values()}) == 1:
            words = {text: each[1:] for text, each in words.items()}
    return {text: " ".join(each) for text, each in words.items()}


def _read_scale(scale: str) -> dict[str, int]:
    places = [place.strip() for place in scale.split(",")]
    return {word: i for i, place in enumerate(places) for word in place.split("|")}


SCALES = [_read_scale(scale) for scale in _SCALES]
CALENDAR = [_read_scale(scale) for scale in _CALENDAR]
