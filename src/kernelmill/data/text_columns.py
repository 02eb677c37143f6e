"""How a column of texts is encoded: as the user says, or as its values suggest."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..errors import InputError, warn
from .amounts import Amounts, count_forms, currency_of, find_forms, with_points
from .categories import Category
from .columns import Columns
from .scales import Order, find_order, given_order
from .summary import MOST_VALUES, Counts, Moments
from .writing import several_currencies

MOST_OUTPUTS = 16  # columns of targets that a category may be encoded by; with more it is hashed


def text_column(columns: Columns, name: str, counts: Counts, outputs: int) -> Category | Amounts:
    """A column of texts, as it was said or as its values suggest. What depends on targets or
    numbers inside the texts comes later."""
    way = columns.ways.get(name)
    if counts.values is not None and len(counts.values) == 1:
        # As little as a constant number: what was never seen there must not count either.
        return Category(name, "one_hot", 0, list(counts.values), np.zeros((2, 0), np.float32))
    many = counts.values is None or len(counts.values) > columns.one_hot
    forms = None
    if way == "numbers" or many:
        forms = find_forms(counts.forms, way == "numbers", counts.values or ())
    if forms is None and way == "numbers":
        some = f", such as {_some(counts.values)}" if counts.values else ""
        raise InputError(
            f"columns: how of {name!r} is 'numbers', expected texts that are nearly all written in"
            f" a few ways with numbers inside, and got others{some}."
        )
    if forms is not None and way in (None, "numbers"):
        # Behind a number a currency is a unit, with a feature of its own.
        before = {currency_of(words[0]) for words in forms.words if len(words) == 2} - {""}
        if len(before) > 1:
            warn(several_currencies("columns", name, sorted(before)))
        k = len(forms.labels)
        return Amounts(name, forms, np.zeros(k), np.ones(k), False)
    if many and way is None and counts.values is not None:
        _say_of_commas(name, counts.values)
    if way == "hash" or (way is None and many and _is_hashed(columns, counts, outputs)):
        return Category(name, "hash", columns.hash_size)
    if counts.values is None:
        raise InputError(
            f"columns: how of {name!r} is {way!r}, and it has more than {MOST_VALUES:,} different"
            " values; say 'hash'."
        )
    values = sorted(counts.values, key=lambda value: (value is None, value or ""))
    if way == "target" or (way is None and many):
        return Category(name, "target", outputs, values)
    order = _order(way, name, counts.values, many)
    one_hot = [] if many and order is not None else values
    return _by_table(columns, name, counts.values, order, values, one_hot)


def _say_of_commas(name: str, counts: dict[str | None, float]) -> None:
    """Numbers inside texts are read with decimal points: with commas they are names."""
    other = {with_points(text): rows for text, rows in counts.items() if text is not None}
    if find_forms(count_forms(other), texts=other) is not None:
        written = max(other, key=lambda text: (other[text], text))
        warn(
            f"columns: {name!r} has texts with decimal commas, such as {with_points(written)!r},"
            f" which are taken for names; write {written!r} to have their numbers read."
        )


def _is_hashed(columns: Columns, counts: Counts, outputs: int) -> bool:
    return columns.beyond == "hash" or counts.values is None or outputs > MOST_OUTPUTS


def _some(values: Iterable[str | None]) -> str:
    return ", ".join(repr(value) for value in sorted(filter(None, values))[:3])


def _order(
    way: str | list[str] | None, name: str, counts: dict[str | None, float], many: bool
) -> Order | None:
    """The order of a column's values: as given, or as far as it can be told."""
    if way == "one_hot":
        return None
    if way is None or isinstance(way, str):
        order = None if way is None and many else find_order(counts, way == "ordered")
        if order is None and way == "ordered":
            raise InputError(
                f"columns: how of {name!r} is 'ordered', and its values, such as"
                f" {_some(counts)}, show no order; give them as a list, lowest first."
            )
        return order
    order = given_order(way)
    others = sorted(value for value in counts if value is not None and value not in order.places)
    if len(order.places.keys() & counts.keys()) < 2:
        raise InputError(
            f"columns: how of {name!r} lists {', '.join(map(repr, way[:3]))}, and its values are"
            f" others, such as {_some(others)}."
        )
    if others:
        warn(f"columns: how of {name!r} does not list {others[0]!r}; it is put in the middle.")
    return order


def _by_table(
    columns: Columns,
    name: str,
    counts: dict[str | None, float],
    order: Order | None,
    values: list[str | None],
    one_hot: list[str | None],
) -> Category:
    """Values that have a row of a table each: their numbers in an order, and one-hot. Those without
    a place, and unseen ones, are in the middle of it."""
    table = np.eye(len(values) + 1, len(one_hot))
    if order is None:
        return Category(name, "one_hot", len(values), values, table.astype(np.float32))
    numbers = np.full((len(values), len(order.labels)), np.nan)
    for i, value in enumerate(values):
        if value is not None and value in order.places:
            numbers[i] = order.places[value]
    moments = Moments(numbers.shape[1])
    moments.add(numbers, np.array([counts[value] for value in values], np.float64))
    moments.add_rest()
    scale = np.where(moments.deviation > 0, moments.deviation, 1)
    scale = np.ones_like(scale) if columns.standardise is False else scale
    placed = np.zeros((len(values) + 1, numbers.shape[1]))
    placed[:-1] = np.nan_to_num((numbers - moments.mean) / scale)
    table = np.concatenate([placed, table], 1).astype(np.float32)
    labels = [*order.labels, *("missing" if value is None else value for value in one_hot)]
    return Category(name, "ordered", table.shape[1], values, table, features=labels)
