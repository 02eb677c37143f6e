"""New rows beside those that a model was trained on: columns that are missing, values it never saw.

What training rows held is in the model's account of its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtrc

from ..errors import KernelmillError
from .amounts import Amounts
from .categories import Category
from .encoder import Encoder
from .number_names import NumberNames
from .tables import Table, spread

LOOKED_AT = 200_000  # rows, from all over the table
SHARE = 0.05  # of the rows, from which something is odd
CHANCE = 0.01  # with which so many rows may be odd where the share is no larger


@dataclass(frozen=True)
class Oddity:
    """Something about a column: which share of the rows it is about, beyond the one that was usual
    in training, and whether that is much."""

    column: str
    what: str
    share: float
    example: str = ""
    stops: bool = False  # nothing can be predicted
    rows: int = 0  # that were looked at
    usual: float = 0.0

    @property
    def much(self) -> bool:
        """Whether more of the rows than SHARE are so, by more than chance: a few rows may be."""
        return self.stops or (self.share >= SHARE and self.chance < CHANCE)

    @property
    def unsure(self) -> bool:
        """Whether it would be much, if there were more rows to tell by."""
        return self.share >= SHARE and not self.much

    @property
    def chance(self) -> float:
        """How likely so many rows are odd, or more, where SHARE of all rows are: the tail of a
        binomial distribution."""
        odd, share = round((self.share + self.usual) * self.rows), self.usual + SHARE
        return float(bdtrc(odd - 1, self.rows, share)) if odd and share < 1 else 1.0


def oddities(encoder: Encoder, table: Table) -> list[Oddity]:
    """What is odd about the columns of a table, for a model that was trained on others."""
    found = [
        Oddity(name, "is not there", 1.0, stops=True)
        for name in encoder.inputs
        if name not in table.fields
    ]
    for name in encoder.inputs:
        if name in table.fields:
            found += _of_column(encoder, table, name)
    return sorted(found, key=lambda odd: (-odd.share, odd.column))


def _of_column(encoder: Encoder, table: Table, name: str) -> Iterator[Oddity]:
    """One column, read as in training."""
    alone = replace(encoder, kinds={name: encoder.kinds[name]})
    try:
        table = alone.over(table)
        parts = [table.read([name], a, b)[name] for a, b in spread(table.n, LOOKED_AT)]
    except KernelmillError as error:
        yield Oddity(name, f"cannot be read: {error}", 1.0, stops=True)
        return
    values = np.concatenate(parts) if parts else np.empty((0, 1))
    if not len(values):
        return
    texts = values.dtype == object
    lost = np.array([v is None for v in values] if texts else np.isnan(values).all(1))
    before = encoder.account[encoder.inputs.index(name)]
    usual = before.missing / encoder.rows
    more = float(lost.mean()) - usual
    if more > 0:
        said = "is missing more often than in training"
        yield Oddity(name, said, more, rows=len(lost), usual=float(lost.mean()) - more)
    if before.range is not None and not texts:
        yield from _outside(name, values[~lost, 0], before.range, len(values))
    yield from _written_otherwise(encoder, name, values, max(0.0, usual - float(lost.mean())))
    yield from _unseen(encoder, name, values, lost)


def _written_otherwise(
    encoder: Encoder, name: str, values: np.ndarray, usual: float
) -> Iterator[Oddity]:
    """Texts whose numbers cannot be read. usual: the share of rows that were so in training."""
    for category in encoder.categories:
        if category.name != name or not isinstance(category, Amounts):
            continue
        others = category.others(values)
        more = float(others.mean()) - usual
        if more > 0:
            said, example = "is not written as in the training", str(values[others][0])
            yield Oddity(name, said, more, example, rows=len(others), usual=usual)


def _outside(name: str, values: np.ndarray, limits: list[float], n: int) -> Iterator[Oddity]:
    low, high = limits
    out = (values < low) | (values > high)
    if out.any():
        said = f"is outside of {low:g} to {high:g}, the range in training"
        yield Oddity(name, said, float(out.sum()) / n, f"{values[out][0]:g}", rows=n)


def _unseen(encoder: Encoder, name: str, values: np.ndarray, lost: np.ndarray) -> Iterator[Oddity]:
    for category in encoder.categories:
        if category.name != name or not isinstance(category, Category):
            continue
        if category.how == "hash" or isinstance(category, NumberNames):
            continue
        new = (category.codes(values) == len(category.values)) & ~lost
        if new.any():
            said, example = "was never seen in training", str(values[new][0])
            yield Oddity(name, said, float(new.mean()), example, rows=len(new))
