"""An encoder learned from the training rows of a table, by streaming over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import InputError, warn
from . import dates
from .account import account_of
from .amounts import Amounts
from .bounds import INSTEAD, MISSING, find_bounds, inside
from .categories import CODE_WIDTH, FOLDS, Category, checksums, fold_of
from .checks import check_finite, is_clean, refuse
from .columns import OF_NUMBERS, Columns
from .encoder import Encoder, date_columns, in_parts, numbered
from .kinds import WORDS
from .number_names import EACH, NumberNames, Wholes, are_names
from .summary import Counts, Moments
from .tables import Table
from .text_columns import MOST_OUTPUTS, text_column
from .writing import reading_of

PRIOR = 10.0  # rows that a category's mean target is drawn towards the common mean by
DIFFERENT = 3  # different rows per value of a category, from which a row's content says its fold


@dataclass(frozen=True)
class _Fields:
    """The fields that are features: their kinds in the table's order, and those that become
    numbers, with how many columns each has."""

    kinds: dict[str, str]
    numbers: list[str]
    widths: list[int]

    @classmethod
    def of(cls, table: Table, names: list[str]) -> _Fields:
        kinds = {name: table.fields[name].kind for name in names}
        numbers = [name for name in names if kinds[name] != "text"]
        dated = [kinds[name] == "date" for name in numbers]
        widths = [
            len(dates.PARTS) if is_date else table.fields[name].width
            for name, is_date in zip(numbers, dated, strict=True)
        ]
        return cls(kinds, numbers, widths)

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    @property
    def texts(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "text"]

    @property
    def single(self) -> list[str]:
        """Columns of numbers."""
        sized = zip(self.numbers, self.widths, strict=True)
        return [name for name, width in sized if width == 1 and self.kinds[name] == "number"]

    @property
    def dated(self) -> set[str]:
        return {name for name, kind in self.kinds.items() if kind == "date"}

    @property
    def lone(self) -> bool:
        """One matrix and nothing else."""
        return len(self.kinds) == len(self.numbers) == 1 and not self.dated and self.widths[0] > 1

    @property
    def labels(self) -> list[str]:
        return numbered(self.numbers, self.widths, self.dated)


def learn(
    columns: Columns,
    table: Table,
    skip: list[str],
    Y: np.ndarray,
    train: np.ndarray,
    said: bool = True,
    w: np.ndarray | None = None,
) -> Encoder:
    """Fit an encoder on the training rows of a table, by streaming over it.

    skip: fields that are no features (target, weights); Y: (n,) class codes or (n, c) targets;
    train: (n,) bool; said: `columns` are the user's own. Where they are not, missing values of a
    matrix are refused, as an array's are. w: (n,) weights of the rows, where they differ: one of k
    counts as k rows.
    """
    columns.check()
    names = chosen_fields(columns, table, skip)
    table = columns.named(table)
    given = _Fields.of(table, names)
    moments, counts, wholes = _summarise(table, given, train, w)
    bounds = _find_bounds(table, given, moments, train)
    lost = moments.lost * date_columns(given.numbers, given.widths, given.dated)[2]
    if (columns.missing == "refuse" or (given.lone and not said)) and lost.any():
        refuse(lost, given.labels, table.where)
    if bounds is not None:
        moments, counts, wholes = _summarise(table, given, train, w, bounds)
    encoder = _scaled(columns, given, moments, lost)
    encoder.bounds, encoder.reading = bounds, reading_of(table, names)
    starts = dict(zip(given.numbers, itertools.accumulate(given.widths, initial=0), strict=False))
    said_of = {name: way for name, way in columns.ways.items() if way in OF_NUMBERS}
    encoder.seen_as = {starts[name]: str(way) for name, way in said_of.items()}
    encoder.categories = [
        text_column(columns, name, counts[name], _outputs(Y)) for name in given.texts
    ]
    inside = _scale_amounts(columns, encoder, table, train, w)
    encoder.categories += _maybe_names(columns, wholes, int(train.sum()), _outputs(Y))
    by_target = [
        each for each in encoder.categories if isinstance(each, Category) and each.by_target
    ]
    encoder.by_content = _by_target(by_target, table, names, Y, train, w)
    encoder.categories = [
        each
        for each in encoder.categories
        if not isinstance(each, NumberNames) or each.table is not None
    ]
    if not encoder.d:
        raise InputError(f"{table.where} has no feature that differs between rows.")
    if said or not given.lone:
        starts_of = [starts[name] for name in given.numbers]
        missing = dict(zip(given.numbers, lost[starts_of].tolist(), strict=True))
        missing |= {name: found.missing for name, found in counts.items()} | inside
        encoder.account, encoder.rows = (
            account_of(encoder, table, missing, Y, train),
            int(train.sum()),
        )
    return encoder


def chosen_fields(columns: Columns, table: Table, skip: list[str]) -> list[str]:
    """Names of the fields that are features, as far as they can be."""
    if columns.features is None and table.unused:
        unused = ", ".join(map(repr, table.unused[:5]))
        warn(
            f"{table.where}: {unused} cannot be features (nested, or of another kind) and are not"
            " used."
        )
    every = [name for name in table.fields if name not in skip]
    for name in columns.exclude or []:
        table.field(name)
    every = [name for name in every if name not in (columns.exclude or [])]
    names = every if columns.features is None else list(columns.features)
    categorical = columns.categorical or []
    for name in [*names, *categorical]:
        table.field(name)
    clash = [name for name in names if name in skip]
    if clash:
        raise InputError(
            f"columns: features name {clash[0]!r}, which is the target or the weight; leave it out."
        )
    if not names:
        raise InputError(f"{table.where} has no columns left to be features.")
    for name in categorical:
        if table.field(name).width > 1:
            raise InputError(
                f"columns: categorical names {name!r}, which is a matrix, expected a column."
            )
    twice = [name for name in names if name in (columns.exclude or [])]
    if twice:
        raise InputError(
            f"columns: features and exclude both name {twice[0]!r}; leave it out of one of them."
        )
    for name, way in columns.ways.items():
        _check_way(table, names, name, way)
    return names


def _check_way(table: Table, names: list[str], name: str, way: str | list[str]) -> None:
    """Raise unless a column of which the user says how it is encoded is a feature of that kind."""
    field = table.field(name)
    if name not in names:
        raise InputError(f"columns: how names {name!r}, which is not a feature; leave it out.")
    if field.width > 1:
        raise InputError(f"columns: how names {name!r}, which is a matrix, expected a column.")
    if way in OF_NUMBERS and field.kind != "number":
        raise InputError(
            f"columns: how of {name!r} is {way!r}, expected a column of numbers, and it holds"
            f" {WORDS[field.kind]}; leave it out."
        )
    if way == "numbers" and field.kind not in ("text", "empty", "number"):
        raise InputError(
            f"columns: how of {name!r} is 'numbers', expected numbers, or texts with numbers"
            f" inside, and it holds {WORDS[field.kind]}; leave it out."
        )


def _summarise(
    table: Table,
    given: _Fields,
    train: np.ndarray,
    w: np.ndarray | None,
    bounds: np.ndarray | None = None,
) -> tuple[Moments, dict[str, Counts], dict[str, Wholes]]:
    """Moments of the numbers within their bounds, counts of the names, and whole numbers that may
    be names, in one pass.
    """
    moments = Moments(sum(given.widths), int(train.sum()))
    counts = {name: Counts() for name in given.texts}
    wholes = {name: Wholes() for name in given.single}
    for a, b in itertools.pairwise(table.cuts):
        block, used = table.read(given.names, a, b), train[a:b]
        weights = None if w is None else w[a:b][used]
        if given.numbers:
            values = in_parts(block, given.numbers, given.dated)
            if not is_clean(values):
                known = np.where(np.isnan(values), 0, values)
                check_finite(known, given.labels, table.where)
            values = inside(values, bounds)
            moments.add(values if used.all() else values[used], weights)
        for name, found in counts.items():
            found.add(block[name][used], weights)
        for name, different in wholes.items():
            different.add(block[name][used])
    moments.add_rest()
    return moments, counts, wholes


def _find_bounds(
    table: Table, given: _Fields, moments: Moments, train: np.ndarray
) -> np.ndarray | None:
    """Bounds of the numbers, where some are fill values; parts of a date on a circle have none."""
    circle = date_columns(given.numbers, given.widths, given.dated)[0]

    def blocks(some: np.ndarray) -> Iterator[np.ndarray]:
        for a, b in itertools.pairwise(table.cuts):
            values = in_parts(table.read(given.numbers, a, b), given.numbers, given.dated)
            yield values[train[a:b]][:, some]

    return find_bounds(
        moments.sample,
        np.where(circle, 0, moments.largest),
        blocks,
        [repr(label) for label in given.labels],
        table.where,
        INSTEAD if given.lone else MISSING,
    )


def _maybe_names(
    columns: Columns, wholes: dict[str, Wholes], rows: int, outputs: int
) -> Iterator[NumberNames]:
    """Columns of whole numbers that are names too, if the targets say so."""
    if columns.beyond == "hash" or outputs > MOST_OUTPUTS:
        return
    for name, found in wholes.items():
        values = found.more_than(columns.one_hot)
        if (
            values is not None
            and columns.ways.get(name) != "numbers"
            and len(values) * EACH <= rows
        ):
            yield NumberNames.of(name, values, outputs)


def _scaled(columns: Columns, given: _Fields, moments: Moments, lost: np.ndarray) -> Encoder:
    """The encoder of the numbers: what is taken off them, and divided by."""
    circle, scaled, _ = date_columns(given.numbers, given.widths, given.dated)
    standardise = not given.lone if columns.standardise is None else columns.standardise
    plain = given.lone and not standardise and not lost.any()
    empty = moments.lost == moments.rows
    mean = np.where(empty, 0, moments.mean)
    spread = np.where(empty, 0, moments.deviation)
    varies = spread > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    shift = np.where(circle & varies, 0, mean)
    scale = np.where(varies & (scaled | (standardise & ~circle)), spread, 1.0)
    return Encoder(
        given.numbers,
        given.widths,
        np.zeros_like(mean) if plain else shift,
        np.ones_like(mean) if plain else scale,
        np.flatnonzero((lost > 0) & ~empty),
        [],
        str(moments.dtype) if plain and moments.dtype is not None else "float32",
        given.kinds,
        columns.missing,
        constant=[] if plain else np.flatnonzero(~varies).tolist(),
    )


def _outputs(Y: np.ndarray) -> int:
    """Columns of the targets; one of two classes, for the other follows from it."""
    if Y.ndim == 2:
        return Y.shape[1]
    classes = int(Y.max()) + 1
    return 1 if classes == 2 else classes


def _scale_amounts(
    columns: Columns, encoder: Encoder, table: Table, train: np.ndarray, w: np.ndarray | None
) -> dict[str, int]:
    """Means and deviations of the numbers inside texts, in a pass over those columns; and in how
    many rows there are none."""
    amounts = {each.name: each for each in encoder.categories if isinstance(each, Amounts)}
    if not amounts:
        return {}
    found = _moments_of_amounts(amounts, table, train, w)
    lost = {name: int(each.lost.max()) for name, each in found.items()}
    for name, each in amounts.items():
        each.bounds = _bounds_of_amounts(each, table, train, found[name])
    if any(each.bounds is not None for each in amounts.values()):
        found = _moments_of_amounts(amounts, table, train, w)
    place = len(encoder.shift) + len(encoder.flagged)
    for category in encoder.categories:
        if isinstance(category, Amounts):
            moments = found[category.name]
            varies = moments.deviation > 1e-12 * np.maximum(np.abs(moments.mean), 1e-300)
            scaled = varies & (columns.standardise is not False)
            category.shift = moments.mean
            category.scale = np.where(scaled, moments.deviation, 1.0)
            category.flagged = lost[category.name] > 0
            encoder.constant += (place + np.flatnonzero(~varies)).tolist()
        place += category.width
    return lost


def _moments_of_amounts(
    amounts: dict[str, Amounts], table: Table, train: np.ndarray, w: np.ndarray | None
) -> dict[str, Moments]:
    """Moments of the numbers inside texts, within their bounds, column by column."""
    n = int(train.sum())
    found = {name: Moments(len(each.forms.labels), n) for name, each in amounts.items()}
    for a, b in itertools.pairwise(table.cuts):
        block, used = table.read(list(amounts), a, b), train[a:b]
        weights = None if w is None else w[a:b][used]
        for name, each in amounts.items():
            found[name].add(inside(each.forms.read(block[name][used]), each.bounds), weights)
    for moments in found.values():
        moments.add_rest()
    return found


def _bounds_of_amounts(
    amounts: Amounts, table: Table, train: np.ndarray, moments: Moments
) -> np.ndarray | None:
    """Bounds of the numbers inside the texts of one column, where some are fill values."""

    def blocks(some: np.ndarray) -> Iterator[np.ndarray]:
        for a, b in itertools.pairwise(table.cuts):
            texts = table.read([amounts.name], a, b)[amounts.name][train[a:b]]
            yield amounts.forms.read(texts)[:, some]

    return find_bounds(
        moments.sample,
        moments.largest,
        blocks,
        [repr(f"{amounts.name}: {label}") for label in amounts.forms.labels],
        table.where,
        "name those texts in columns=Columns(na_values=[...]) if they stand for missing values",
    )


def _by_target(
    categories: list[Category],
    table: Table,
    names: list[str],
    Y: np.ndarray,
    train: np.ndarray,
    w: np.ndarray | None,
) -> bool:
    """Mean targets of each category, drawn towards the common mean where it has few rows; and the
    same without each fold.

    Returns whether a row's fold follows from what stands in the row: copies are then in one fold,
    and a weight of k is k copies. Where few different rows share a value that would leave a
    category without rows, and the fold follows from the row's number.
    """
    if not categories:
        return False
    rows = np.flatnonzero(train)
    codes, content = _codes(categories, table, names)
    different = len(np.unique(content[rows]))
    by_content = different >= DIFFERENT * max(len(c.values) for c in categories)
    outputs = _outputs(Y)
    sums = {c.name: np.zeros((FOLDS, len(c.values) + 1, outputs)) for c in categories}
    counts = {c.name: np.zeros((FOLDS, len(c.values) + 1, 1)) for c in categories}
    weight = np.ones(len(train)) if w is None else w
    for part, y in _targets(Y, rows, weight, outputs):
        fold = fold_of(content[part] if by_content else part)
        for c in categories:
            place = fold, codes[c.name][part]
            np.add.at(sums[c.name], place, y * weight[part][:, None])
            np.add.at(counts[c.name], place, weight[part][:, None])
    for c in categories:
        total, many = sums[c.name].sum(0), counts[c.name].sum(0)
        mean = total.sum(0) / max(1e-300, many.sum())
        variance = (mean * (1 - mean)).sum() if Y.ndim == 1 else float(outputs)
        known = slice(None, len(c.values) - 1)  # a missing value has no neighbours
        if isinstance(c, NumberNames) and not are_names(
            sums[c.name][:, known], counts[c.name][:, known], PRIOR, variance
        ):
            continue
        others, fewer = total - sums[c.name], many - counts[c.name]
        c.table = ((total + PRIOR * mean) / (many + PRIOR)).astype(np.float32)
        c.folds = ((others + PRIOR * mean) / (fewer + PRIOR)).astype(np.float32)
        _add_counts(c, many)
        c.features = [*c.labels, *(f"code {i}" for i in range(CODE_WIDTH))]
        c.code_width = CODE_WIDTH
        c.width += CODE_WIDTH
    return by_content


def _add_counts(category: Category, many: np.ndarray) -> None:
    """One more feature: the logarithm of how often a value occurs, standardised over the rows,
    where values differ in it.
    """
    log = np.log1p(many)
    mean = np.average(log, weights=many)
    spread = np.sqrt(np.average((log - mean) ** 2, weights=many))
    if spread < 1e-9:
        return
    assert category.table is not None
    more = ((log - mean) / spread).astype(np.float32)
    category.features = [*category.labels, "count"]
    category.table = np.concatenate([category.table, more], 1)
    category.width += 1


def _codes(
    categories: list[Category], table: Table, names: list[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Of every row: the codes of its categories, and a checksum of what stands in it."""
    codes = {c.name: np.empty(table.n, np.int32) for c in categories}
    content = np.empty(table.n, np.uint64)
    for a, b in itertools.pairwise(table.cuts):
        block = table.read(names, a, b)
        content[a:b] = checksums(block, names)
        for c in categories:
            codes[c.name][a:b] = c.codes(block[c.name])
    return codes, content


def _targets(
    Y: np.ndarray, rows: np.ndarray, weight: np.ndarray, width: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows some at a time, and their targets: one-hot, or standardised."""
    middle, spread = (0.0, 1.0) if Y.ndim == 1 else _weighted(Y[rows], weight[rows])
    for part in np.array_split(rows, max(1, len(rows) >> 16)):
        if Y.ndim == 1:
            yield part, (Y[part][:, None] == np.arange(width)).astype(float)
        else:
            yield part, (Y[part] - middle) / spread


def _weighted(Y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of targets."""
    mean = np.average(Y, 0, w)
    return mean, np.maximum(np.sqrt(np.average((Y - mean) ** 2, 0, w)), 1e-300)
