"""The numbers of a chart: axes, ticks and places in pixels. `charts.svg.j2` draws them.

Home-made, because matplotlib would bring a second of import and SVGs of its own colours, fonts and
web addresses, which a dark page could not change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 480, 320  # of a plot with axes, in pixels: two stand side by side, one on a phone
LEFT, RIGHT, TOP, BOTTOM = 88, WIDTH - 26, 12, HEIGHT - 52  # of what is between the axes
UNIT_LEFT, UNIT_RIGHT, UNIT_BOTTOM = 72, WIDTH - 20, 400  # of a plot of rates from 0 to 1
COUNTS = 64  # pixels below it, for how many rows there are
CELLS = 48, 32  # of a density, across and up
LIGHTEST = 0.15  # of a cell with one row
BEYOND = 0.001  # of the rows that may lie beyond the axes of a density, on each side
NAME = 22  # letters of a class that a confusion matrix shows
MATRIX_WIDTH = 640
Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Four to eight round numbers from low to high."""
    if log:
        return _log_ticks(low, high)
    raw = ((high - low) or abs(high) or 1.0) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, -(-(last - first) // 6))
    found = [10.0**e for e in range(first, last + 1, step)]
    if len(found) < 3:  # less than two decades
        fine = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 1.5, 2, 3, 5, 7)]
        found = [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return found if len(found) > 1 else [low, high]


def short(value: float) -> str:
    """A number in few letters."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def brief(count: float) -> str:
    """A count in at most four letters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * size:
            return (
                f"{count / size:.0f}{unit}" if count >= 9.95 * size else f"{count / size:.1f}{unit}"
            )
    return f"{count:.0f}"


@dataclass(frozen=True)
class Axis:
    """An axis whose numbers from `low` to `high` are at the pixels from `start` to `stop`."""

    name: str
    low: float
    high: float
    start: int
    stop: int
    log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return round(self.start + (self.stop - self.start) * (value - low) / (high - low), 1)

    def ticks(self) -> list[tuple[float, str]]:
        return [(self.place(value), short(value)) for value in ticks(self.low, self.high, self.log)]


def _span(values: Sequence[float], log: bool) -> tuple[float, float]:
    """The smallest and the largest value, apart from each other."""
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    pad = (abs(low) or 1) * 0.1
    return (low / 2, high * 2) if log else (low - pad, high + pad)


@dataclass(frozen=True)
class Plot:
    """Points between two axes, in pixels, and the ends of a dashed line for comparison."""

    x: Axis
    y: Axis
    points: Points
    guide: tuple[float, float, float, float] | None = None


def curve(
    points: Points, x_name: str, y_name: str, log_x: bool = False, log_y: bool = False
) -> Plot:
    """A line through points, without those that its axes cannot show."""
    known = [
        (x, y)
        for x, y in points
        if math.isfinite(y) and (x > 0 or not log_x) and (y > 0 or not log_y)
    ]
    return _plot(known, x_name, y_name, log_x, log_y)


def scatter(points: Points, x_name: str, y_name: str, diagonal: bool = False) -> Plot:
    """Dots, and the line where both are the same (diagonal) or where y is 0."""
    plot = _plot([point for point in points if all(map(math.isfinite, point))], x_name, y_name)
    x, y = plot.x, plot.y
    if diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        ends = (x.place(low), y.place(low), x.place(high), y.place(high))
        return Plot(x, y, plot.points, ends if low < high else None)
    zero = (LEFT, y.place(0), RIGHT, y.place(0))
    return Plot(x, y, plot.points, zero if y.low <= 0 <= y.high else None)


@dataclass(frozen=True)
class Density:
    """How many points are where: left, top, width, height and shade of cells, and the ends of a
    dashed line for comparison. Points beyond the axes count at their ends.
    """

    x: Axis
    y: Axis
    cells: Sequence[tuple[float, float, float, float, float]]
    guide: tuple[float, float, float, float] | None
    beyond: int


def density(
    x: np.ndarray, y: np.ndarray, x_name: str, y_name: str, diagonal: bool = False
) -> Density:
    """Shades for any number of points, and the line where both are the same (diagonal, with equal
    axes) or where y is 0.
    """
    spans = [_common([x, y])] * 2 if diagonal else [_common([x]), _common([y])]
    axes = Axis(x_name, *spans[0], LEFT, RIGHT), Axis(y_name, *spans[1], BOTTOM, TOP)
    inside = [value.clip(*span) for value, span in zip((x, y), spans, strict=True)]
    counts, *edges = np.histogram2d(inside[0], inside[1], CELLS, spans)
    most = math.log(max(2.0, counts.max()))
    cells = []
    for i, j in np.argwhere(counts):
        left, right = axes[0].place(edges[0][i]), axes[0].place(edges[0][i + 1])
        bottom, top = axes[1].place(edges[1][j]), axes[1].place(edges[1][j + 1])
        shade = LIGHTEST + (1 - LIGHTEST) * math.log(counts[i, j]) / most
        size = round(right - left, 1), round(bottom - top, 1)
        cells.append((left, top, *size, round(shade, 2)))
    beyond = int(((inside[0] != x) | (inside[1] != y)).sum())
    if diagonal:
        return Density(*axes, cells, (LEFT, BOTTOM, RIGHT, TOP), beyond)
    zero = (LEFT, axes[1].place(0), RIGHT, axes[1].place(0))
    has_zero = spans[1][0] <= 0 <= spans[1][1]
    return Density(*axes, cells, zero if has_zero else None, beyond)


def _common(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """A span of nearly all values, with those that are not far from it."""
    inner = [np.quantile(each, [BEYOND, 1 - BEYOND]) for each in values]
    low, high = min(low for low, _ in inner), max(high for _, high in inner)
    room = (high - low) / 4
    low = max(low - room, min(each.min() for each in values))
    high = min(high + room, max(each.max() for each in values))
    return _span([float(low), float(high)], log=False)


def _plot(
    points: Points, x_name: str, y_name: str, log_x: bool = False, log_y: bool = False
) -> Plot:
    x = Axis(x_name, *_span([x for x, _ in points], log_x), LEFT, RIGHT, log_x)
    low, high = _span([y for _, y in points], log_y)
    margin = 0.0 if log_y else (high - low) * 0.05
    y = Axis(y_name, low - margin, high + margin, BOTTOM, TOP, log_y)
    return Plot(x, y, _places(x, y, points))


@dataclass(frozen=True)
class Rates:
    """Lines between axes from 0 to 1, and the ends of a dashed line for comparison."""

    x: Axis
    y: Axis
    lines: Sequence[Points]
    guide: tuple[float, float, float, float] | None


def rates(
    lines: Sequence[Points],
    x_name: str,
    y_name: str,
    guide: tuple[float, float] | None = None,
) -> Rates:
    """guide: the heights of the dashed line at both ends."""
    x, y = _unit_axes(x_name, y_name)
    ends = None
    if guide is not None:
        ends = (float(x.start), y.place(guide[0]), float(x.stop), y.place(guide[1]))
    return Rates(x, y, [_places(x, y, points) for points in lines], ends)


@dataclass(frozen=True)
class Reliability:
    """Shares against probabilities, with their errors, and below them how many rows there are.

    dots: x, y, and the ends of the error in y; counts: left, top, width, height and the number.
    """

    x: Axis
    y: Axis
    dots: Sequence[tuple[float, float, float, float]]
    counts: Sequence[tuple[float, float, float, float, str]]


def reliability(
    bins: Sequence[tuple[float, float, int, float, float, float]], x_name: str, y_name: str
) -> Reliability:
    """Of bins from a to b: rows, mean probability, share and its standard error."""
    x, y = _unit_axes(x_name, y_name)
    dots, counts = [], []
    most = max(rows for _, _, rows, *_ in bins)
    for a, b, rows, probability, share, error in bins:
        low, high = max(0.0, share - 2 * error), min(1.0, share + 2 * error)
        dots.append((x.place(probability), y.place(share), y.place(low), y.place(high)))
        left, height = x.place(a), round(max(1.0, (COUNTS - 18) * rows / most), 1)
        wide = round(x.place(b) - left - 2, 1)
        counts.append((left + 1, UNIT_BOTTOM + COUNTS + 8 - height, wide, height, brief(rows)))
    return Reliability(x, y, dots, counts)


def _unit_axes(x_name: str, y_name: str) -> tuple[Axis, Axis]:
    x = Axis(x_name, 0.0, 1.0, UNIT_LEFT, UNIT_RIGHT)
    return x, Axis(y_name, 0.0, 1.0, UNIT_BOTTOM, TOP)


def _places(x: Axis, y: Axis, points: Points) -> Points:
    return [(x.place(a), y.place(b)) for a, b in points]


@dataclass(frozen=True)
class Histogram:
    """Vertical bars: left, top, width, height; and where 0 is, if it is among them."""

    x: Axis
    y: Axis
    bars: Sequence[tuple[float, float, float, float]]
    zero: float | None


def histogram(edges: Sequence[float], counts: Sequence[int], x_name: str) -> Histogram:
    """How many values there are between these edges."""
    x = Axis(x_name, edges[0], edges[-1], LEFT, RIGHT)
    y = Axis("rows", 0.0, 1.05 * max(1, *counts), BOTTOM, TOP)
    bars = []
    for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True):
        left, top = x.place(a), y.place(count)
        width, height = round(x.place(b) - left - 1, 1), round(BOTTOM - top, 1)
        bars.append((left, top, width, height))
    zero = x.place(0.0) if edges[0] < 0 < edges[-1] else None
    return Histogram(x, y, bars, zero)


@dataclass(frozen=True)
class Bar:
    """One of several horizontal bars: its width is in percent of the longest."""

    name: str
    width: float
    text: str


def bars(values: dict[str, float], form: str) -> list[Bar]:
    """form: how a value is written."""
    most = max([*values.values(), 1e-12])
    return [
        Bar(name, round(max(0.5, 100 * value / most), 1), form.format(value))
        for name, value in values.items()
    ]


@dataclass(frozen=True)
class Matrix:
    """Counts, true classes in rows, and the sizes of their picture."""

    counts: Sequence[Sequence[int]]
    names: Sequence[str]

    @property
    def label(self) -> int:
        """Pixels that the names need."""
        return max(24, 12 + 9 * min(NAME, max(map(len, self.names))))

    def written(self, count: int) -> str:
        """A count, as long as a cell has room for it; none is left out."""
        if self.cell < 30 or count == 0:
            return ""
        return f"{count:,}" if self.cell >= 9 * len(f"{count:,}") else brief(count)

    @property
    def cell(self) -> int:
        return max(14, min(72, (MATRIX_WIDTH - self.label - 10) // len(self.names)))
