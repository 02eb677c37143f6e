"""What each column of a table became, and what is odd about it: `model.columns_`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .kinds import WORDS
from .tables import Table, spread

if TYPE_CHECKING:
    from .encoder import Encoder

LOOKED_AT = 20_000  # rows by which it is told what is odd
ENOUGH = 50  # rows from which it is
NEARLY = 0.999  # of the target's variance, what one column may not explain without a word
MOST_VALUES = 1_000  # of a column of names, by whose means a target is explained
SHOWN = 40  # columns in a terminal
HEAD = ("column", "holds", "became", "features", "missing", "note")


@dataclass
class Column:
    """One column: what it holds, what it became, how many features those are, in how many rows it
    is missing, and what is odd about it."""

    name: str
    holds: str
    became: str
    features: int
    missing: int
    notes: list[str] = field(default_factory=list)
    range: list[float] | None = None  # of numbers, in the rows that were looked at

    @property
    def cells(self) -> tuple[str, ...]:
        features, missing = f"{self.features:,}", f"{self.missing:,}" if self.missing else ""
        return self.name, self.holds, self.became, features, missing, "; ".join(self.notes)


class Account(list[Column]):
    """The columns of a table, in its order; a short table as text, and in a notebook."""

    def __str__(self) -> str:
        shown = [HEAD, *(_plain(column.cells) for column in self[:SHOWN])]
        widths = [max(len(row[i]) for row in shown) for i in range(len(HEAD))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in shown]
        more = [f"… and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return "\n".join(line.rstrip() for line in [*lines, *more])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in HEAD)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in column.cells) for column in self)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_list(self) -> list[dict[str, Any]]:
        return [asdict(column) for column in self]

    @classmethod
    def from_list(cls, values: list[dict[str, Any]]) -> Account:
        return cls(Column(**each) for each in values)


def _plain(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Without what would move a terminal's cursor, and no longer than a line has room for."""
    clean = ("".join(c if c.isprintable() else "·" for c in cell) for cell in cells)
    return tuple(cell if len(cell) <= 60 else f"{cell[:59]}…" for cell in clean)


def account_of(
    encoder: Encoder, table: Table, missing: Mapping[str, int], Y: np.ndarray, train: np.ndarray
) -> Account:
    """Of the columns that an encoder was learned from. missing: of each, in how many rows."""
    counts: dict[str, int] = {}
    for name, _ in encoder.sources:
        counts[name] = counts.get(name, 0) + 1
    notes, ranges = _looked_at(encoder, table, Y, train)
    names = {each.name: each for each in encoder.categories}
    made = Account()
    for name in encoder.inputs:
        each = table.fields[name]
        holds = WORDS[each.kind] if each.width == 1 else f"{each.width} numbers"
        if name in names and counts.get(name):
            became = names[name].summary
        elif name in names:
            became = "nothing"
        else:
            became = {"date": "parts of a date", "empty": "nothing"}.get(each.kind, "as it is")
        if name in encoder.reading.known:
            notes[name].insert(0, f"written like {encoder.reading.known[name].example}")
        features = counts.get(name, 0)
        lost = int(missing.get(name, 0))
        made.append(Column(name, holds, became, features, lost, notes[name], ranges.get(name)))
    return made


def _looked_at(
    encoder: Encoder, table: Table, Y: np.ndarray, train: np.ndarray
) -> tuple[dict[str, list[str]], dict[str, list[float]]]:
    """What is odd about columns, and the ranges of numbers, by rows from all over the table."""
    ranges: dict[str, list[float]] = {}
    notes: dict[str, list[str]] = {name: [] for name in encoder.inputs}
    single = [name for name in encoder.inputs if table.fields[name].width == 1]
    ranges_of_rows = spread(table.n, LOOKED_AT)
    if not single or not ranges_of_rows:
        return notes, ranges
    parts, rows = [], []
    for start, stop in ranges_of_rows:
        inside = np.flatnonzero(train[start:stop])
        block = table.read(single, start, stop)
        parts.append({name: values[inside] for name, values in block.items()})
        rows.append(start + inside)
    targets = _centered(Y[np.concatenate(rows)])
    for name in single:
        values = np.concatenate([part[name] for part in parts]).reshape(len(targets), -1)[:, 0]
        notes[name] += _notes(values, targets)
        if values.dtype != object and not np.isnan(values).all():
            ranges[name] = [float(np.nanmin(values)), float(np.nanmax(values))]
    return notes, ranges


def _notes(values: np.ndarray, targets: np.ndarray) -> list[str]:
    """Of one column: (rows,) texts or numbers."""
    texts = values.dtype == object
    there = np.array([value is not None for value in values]) if texts else ~np.isnan(values)
    known = values[there]
    if not len(known):
        return ["nothing in it"]
    codes = _codes(known)
    distinct = int(codes.max()) + 1
    if distinct == 1:
        return ["always the same"]
    if len(known) < ENOUGH:
        return []
    found = []
    whole = texts or bool((known == np.rint(known)).all())
    if distinct == len(known) and whole and (texts or _counts_up(known)):
        found.append("another value in each row: an ID?")
    if there.all() and _explained(None if texts else known, codes, distinct, targets) >= NEARLY:
        found.append("almost gives the target away: known when predicting?")
    if texts and distinct <= MOST_VALUES and (alike := _alike(sorted(set(known.tolist())))):
        found.append(f"different values: {alike[0]!r} and {alike[1]!r}")
    return found


def _alike(names: list[str]) -> tuple[str, str] | None:
    """Two names that differ in blanks or capitals alone, if there are any."""
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(" ".join(name.casefold().split()), name)
        if first != name:
            return first, name
    return None


def _codes(values: np.ndarray) -> np.ndarray:
    """A number for each different value."""
    if values.dtype != object:
        return np.unique(values, return_inverse=True)[1]
    known: dict[str, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values.tolist()])


def _counts_up(numbers: np.ndarray) -> bool:
    """Whether numbers are those of rows, but for some that are left out."""
    return float(numbers.max() - numbers.min()) < 2.0 * len(numbers)


def _centered(Y: np.ndarray) -> np.ndarray:
    """(rows, c) targets without their mean; classes as one column each."""
    Y = (Y[:, None] == np.unique(Y)).astype(float) if Y.ndim == 1 else Y.astype(float)
    return Y - Y.mean(0)


def _explained(
    numbers: np.ndarray | None, codes: np.ndarray, distinct: int, targets: np.ndarray
) -> float:
    """The share of the targets' variance that a column explains: by a line, or by the mean of each
    of its values."""
    total = float((targets**2).sum())
    if total == 0:
        return 0.0
    best = 0.0
    if numbers is not None:
        x = numbers - numbers.mean()
        size = float((x**2).sum())
        if size > 0:
            best = float(((x @ targets) ** 2).sum() / size / total)
    if distinct <= min(MOST_VALUES, len(codes) // 10):
        sums = np.zeros((distinct, targets.shape[1]))
        np.add.at(sums, codes, targets)
        counts = np.bincount(codes, minlength=distinct)[:, None]
        best = max(best, float((sums**2 / counts).sum() / total))
    return best
