"""Numbers inside texts: "83 years 05 months", "3.5 kg", "Rs. 1,200", "€1.2M".

A text is taken apart into numbers and the words around them. The words are a form; a column with
few forms is read by them, and each number is a feature. A form is matched as it is written, so that
ONNX reads the same (export.py).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import warn
from .bounds import check_bounds, clipped
from .kinds import is_missing

Words = tuple[str, ...]  # before the first number, between two of them, behind the last

NEARLY_ALL = 0.95  # of the rows with a value, that have to be written in one of the forms
MOST_FORMS = 16  # of a column
MOST_NUMBERS = 6  # in a text
MANY_OTHERS = 50  # texts written otherwise, up to which a part of the training rows may be so
GROUPS = 5  # of three digits after a comma, at most
# Both Python and RE2 read it: bounded, so that no number is infinite.
NUMBER = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,{GROUPS}}}|[0-9]{{1,15}})(?:\.[0-9]{{1,15}})?"
_NUMBER = re.compile(f"({NUMBER})")
_UNIT = re.compile(r"\s*([^\W\d_]+|[%°\"'′″])")
CURRENCY = r"[$€£¥₹\uffe1\uffe5]|rs\.?|inr|usd|eur|gbp|chf|us\$"
_CURRENCY = re.compile(rf"(?:{CURRENCY})\s*", re.IGNORECASE)
_SIGNS = {
    **{"us$": "$", "usd": "$", "eur": "€", "gbp": "£", "rs": "₹", "inr": "₹", "chf": "CHF"},
    **{"\uffe1": "£", "\uffe5": "¥"},  # twice as wide
}
_BEFORE = re.compile(r"(?:about|approx\.?|around|ca\.?|~|<|>|≤|≥|[-+−–])?\s*", re.IGNORECASE)
_ABOUT = re.compile(r"(?:~|≈|<=?|>=?|≤|≥)\s*")
_BARE = (("", ""), ("-", ""))
_BETWEEN = (":", "/", "x", "×")  # of times, dates and sizes: "12:30", "31/12/2024", "3 x 4"
_TIMES = {"k": 1e3, "m": 1e6, "mn": 1e6, "b": 1e9, "bn": 1e9, "lakh": 1e5, "crore": 1e7}
_LETTER = re.compile(r"\s*[KMBb]\s*")  # a factor, or a part of a name
_OTHER_MARKS = str.maketrans(",.", ".,")
# Units of one kind: they are one number together.
_SAME = {
    **{"mg": ("g", 1e-3), "kg": ("g", 1e3)},
    **{"mm": ("m", 1e-3), "cm": ("m", 1e-2), "km": ("m", 1e3)},
    **{"ml": ("l", 1e-3), "cl": ("l", 1e-2)},
    **{"kb": ("mb", 1e-3), "gb": ("mb", 1e3), "tb": ("mb", 1e6)},
}


def take_apart(text: str) -> tuple[Words, list[float]]:
    """The words around the numbers of a text, and the numbers."""
    parts = _NUMBER.split(text)
    return tuple(parts[::2]), [float(part.replace(",", "")) for part in parts[1::2]]


def is_form(words: Words) -> bool:
    """Whether texts of these words can be read in one way only."""
    between = words[1:-1]
    alone = words[0].endswith(".") and not words[0][:-1].rstrip(".")[-1:].isalpha()
    return (
        1 < len(words) <= MOST_NUMBERS + 1
        and all(part not in ("", ",", ".") for part in between)
        and not alone
        and all(part.isprintable() for part in words)
    )


def is_quantity(words: Words) -> bool:
    """Whether numbers among these words are quantities, not numbers of things: "12 floors" and
    "$12" are, and "<12", "shop 12" and "12-34" are not."""
    money = _CURRENCY.fullmatch(words[0]) is not None
    if len(words) == 2 and not words[1] and _ABOUT.fullmatch(words[0]):
        return True
    if not money and _BEFORE.fullmatch(words[0]) is None:
        return False
    between = [part.strip().lower() for part in words[1:-1]]
    sized = bool(between) and all(part in _BETWEEN for part in between)
    return money or sized or any(_UNIT.match(part) for part in words[1:])


def has_quantity(text: str) -> bool:
    """Whether a text is one of quantities."""
    words, _ = take_apart(text)
    return is_form(words) and is_quantity(words)


def currency_of(text: str) -> str:
    """The sign of the currency in a text, if there is one."""
    found = re.search(CURRENCY, text, re.IGNORECASE)
    return "" if found is None else _SIGNS.get(found[0].lower().rstrip("."), found[0])


@dataclass
class Forms:
    """What the texts of a column look like, and which feature each of their numbers belongs to."""

    words: list[list[str]]  # of each form
    slots: list[list[int]]  # of each form, the feature of each of its numbers
    factors: list[list[float]]  # what each number is multiplied by
    labels: list[str]  # of the features

    def with_bare_numbers(self) -> Forms:
        """The same, by which numbers without the words around them are read too: those of another
        table, whose column is one of numbers. They are of the most frequent unit; a thousand is
        none."""
        unit = 1.0 if self.labels == ["number"] else abs(self.factors[0][0])
        for words, factor in zip(_BARE, (unit, -unit), strict=True):
            if list(words) not in self.words:
                self.words.append(list(words))
                self.slots.append([0])
                self.factors.append([factor])
        return self

    def read(self, texts: np.ndarray) -> np.ndarray:
        """(rows, features) of texts: NaN where they are written otherwise; 0 where only a part is
        not there, as the months of "94 years"."""
        known = {text: self.numbers_of(text) for text in set(texts.tolist())}
        rows = [known[text] for text in texts.tolist()]
        return np.array(rows, np.float64).reshape(len(texts), len(self.labels))

    def numbers_of(self, text: str | None) -> list[float]:
        """The features of one text."""
        out = [math.nan] * len(self.labels)
        if text is None:
            return out
        words, numbers = take_apart(text)
        if not is_form(words) or list(words) not in self.words:
            return out
        place = self.words.index(list(words))
        out = [0.0] * len(self.labels)
        for slot, factor, number in zip(
            self.slots[place], self.factors[place], numbers, strict=True
        ):
            out[slot] += factor * number
        return out

    def validate(self) -> None:
        """ValueError where its parts do not fit each other."""
        k = len(self.labels)
        for words, slots, factors in zip(self.words, self.slots, self.factors, strict=True):
            fits = is_form(tuple(words)) and len(words) == len(slots) + 1 == len(factors) + 1
            if not fits or not all(0 <= slot < k for slot in slots):
                raise ValueError("the encoder's numbers in texts do not fit each other")
            if not np.isfinite(factors).all():
                raise ValueError("the encoder's numbers in texts do not fit each other")


def count_forms(counts: Mapping[str | None, float] | Mapping[str, float]) -> dict[Words, float]:
    """How many rows are written in each form, of how many each text has."""
    found: Counter[Words] = Counter()
    for text, rows in counts.items():
        if text is not None and not is_missing(text):
            found[take_apart(text)[0]] += rows  # type: ignore[assignment]
    return dict(found)


def find_forms(
    counts: Mapping[Words, float], told: bool = False, texts: Iterable[str | None] = ()
) -> Forms | None:
    """The forms that nearly all rows of a column are written in, or None where there are none.

    told: the user says that its numbers are meant; else they have to look like quantities.
    texts: of the column, unless they are too many to be names.
    """
    fits = [words for words in counts if is_form(words) and (told or is_quantity(words))]
    # Beside "5k" and "<5" a 5 is a number like these; beside "12A" it may be that of a house.
    enough = sum(counts[words] for words in fits) > (1 - NEARLY_ALL) * sum(counts.values())
    alike = enough and not told and all(_meanings(words)[0][0] == "number" for words in fits)
    if alike and have_bare_beside(texts):
        fits += [words for words in _BARE if words in counts and words not in fits]
    used = sorted(fits, key=lambda words: (-counts[words], words))[:MOST_FORMS]
    rows, total = sum(counts[words] for words in used), sum(counts.values())
    if not used or rows < NEARLY_ALL * total:
        return None
    read = [_meanings(words) for words in used]
    share: Counter[str] = Counter()
    for words, meaning in zip(used, read, strict=True):
        for label in dict.fromkeys(label for label, _ in meaning):
            share[label] += counts[words]  # type: ignore[assignment]
    labels = list(share)
    # Names such as 12A and 12B have no number in common.
    if not told and (max(share.values()) < rows / 2 or len(labels) > MOST_NUMBERS):
        return None
    found = Forms(
        [list(words) for words in used],
        [[labels.index(label) for label, _ in meaning] for meaning in read],
        [[factor for _, factor in meaning] for meaning in read],
        labels,
    )
    return found.with_bare_numbers() if len(labels) == 1 else found


def have_bare_beside(texts: Iterable[str | None]) -> bool:
    """Whether bare numbers among texts are of one kind with those that have a factor: beside "5k",
    "1.5M" or "$5M" they are; beside "5B" they are lines of buses, unless they are as large."""
    scaled, plain = [math.inf], [-math.inf]
    for text in filter(None, texts):
        words, numbers = take_apart(text)
        if words in _BARE:
            plain.append(numbers[0])
        elif len(words) == 2 and (factor := _unit(words[1])[1]) >= 1e3:
            if not _LETTER.fullmatch(words[1]) or words[0] or "." in text:
                return True
            scaled.append(factor * numbers[0])
    return scaled == [math.inf] or max(plain) >= min(scaled)


def with_points(text: str) -> str:
    """A text with decimal commas, and points between thousands, the other way round."""
    return text.translate(_OTHER_MARKS)


def _meanings(words: Words) -> list[tuple[str, float]]:
    """Of each number: its unit, and what it is multiplied by. Units of the same name are told
    apart by their place."""
    found: list[tuple[str, float]] = []
    for i, behind in enumerate(words[1:]):
        unit, factor = _unit(behind)
        if words[0].strip() in ("-", "−", "–") and i == 0:
            factor = -factor
        found.append((unit, factor))
    bare = Counter(unit for unit, _ in found)
    seen: Counter[str] = Counter()
    out = []
    for unit, factor in found:
        seen[unit] += 1
        apart = bare[unit] > 1 and unit not in {base for base, _ in _SAME.values()}
        name = unit or "number"
        out.append((f"{name} {seen[unit]}" if apart else name, factor))
    return out


def _unit(behind: str) -> tuple[str, float]:
    """What stands behind a number: "years" is year, "K" a thousand, "kg" a thousand g."""
    found = _UNIT.match(behind)
    if found is None:
        return "", 1.0
    word = found[1].lower()
    if word in _TIMES and found[1] != "m":  # which is a metre
        return "", _TIMES[word]
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word.removesuffix("s")
    if word in _BETWEEN:
        return "", 1.0
    return _SAME.get(word, (word, 1.0))


@dataclass
class Amounts:
    """How one column of texts becomes the numbers inside them."""

    name: str
    forms: Forms
    shift: np.ndarray  # (features,) what is taken off, and what a missing number becomes
    scale: np.ndarray
    flagged: bool  # some texts had none: a last column says where
    how: str = "numbers"
    bounds: np.ndarray | None = None  # (2, features) that numbers count as, at least and at most

    folds = None  # targets play no part

    @property
    def parts(self) -> list[int]:
        """See Category."""
        return [0] * self.width

    @property
    def width(self) -> int:
        return len(self.forms.labels) + self.flagged

    @property
    def labels(self) -> list[str]:
        """Names of its features, behind the column's."""
        flag = ["missing"] if self.flagged else []
        return [*self.forms.labels, *flag]

    @property
    def summary(self) -> str:
        return f"numbers inside texts: {', '.join(self.forms.labels)}"

    def encode(self, texts: np.ndarray, training: bool = False) -> np.ndarray:
        """(rows, width)."""
        values = clipped(self.forms.read(texts), self.bounds)
        k = values.shape[1]
        lost = np.isnan(values).all(1)
        self._warn_of_others(texts, lost, MANY_OTHERS if training else 0)
        out = np.zeros((len(texts), self.width))
        out[:, :k] = np.where(lost[:, None], 0, (values - self.shift) / self.scale)
        out[:, k:] = lost[:, None]
        return out

    def others(self, texts: np.ndarray) -> np.ndarray:
        """(rows,) where there is a text, and it is written otherwise."""
        return np.isnan(self.forms.read(texts)).all(1) & (texts != None)  # noqa: E711

    def _warn_of_others(self, texts: np.ndarray, lost: np.ndarray, beyond: int) -> None:
        others = lost & (texts != None)  # noqa: E711 (of every element)
        if others.sum() > beyond and 2 * others.sum() >= len(texts):
            warn(
                f"half of the values of {self.name!r} or more, such as {texts[others][0]!r}, are"
                f" not written as in the training data ({example(self.forms.words[0])!r}), and"
                " count as missing."
            )

    def validate(self) -> None:
        """ValueError where its parts do not fit each other."""
        self.forms.validate()
        if self.bounds is not None:
            check_bounds(self.bounds, len(self.forms.labels))
        arrays = (self.shift, self.scale)
        fits = all(
            isinstance(a, np.ndarray)
            and a.shape == (len(self.forms.labels),)
            and np.isfinite(a).all()
            for a in arrays
        )
        if not fits or self.how != "numbers" or (self.scale <= 0).any():
            raise ValueError("the encoder's numbers in texts do not fit each other")


def example(words: Iterable[str], number: str = "0") -> str:
    """A text of this form."""
    return number.join(words)
