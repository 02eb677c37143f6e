"""The numbers of a chart: axes, ticks and places in pixels. `charts.svg.j2` draws them.

Home-made, because matplotlib would bring a second of import and SVGs of its own colours, fonts and
web addresses, which a dark page could not change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 300  # of a plot with axes, in pixels
LEFT, RIGHT, TOP, BOTTOM = 96, WIDTH - 16, 12, HEIGHT - 44  # of what is between the axes
SIDE = 440  # of a plot of rates from 0 to 1
UNIT_LEFT, UNIT_RIGHT, UNIT_BOTTOM = 64, SIDE - 16, SIDE - 68  # of what is between its axes
COUNTS = 64  # pixels below it, for how many rows there are
BAR_LEFT, BAR_RIGHT = 190, WIDTH - 90  # of bars, between their names and their numbers
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
    if low < high:
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
    """Lines, each with a name, between axes from 0 to 1, over the diagonal."""

    x: Axis
    y: Axis
    lines: Sequence[tuple[str, Points]]


def rates(lines: dict[str, Points], x_name: str, y_name: str) -> Rates:
    x, y = _unit_axes(x_name, y_name)
    return Rates(x, y, [(name, _places(x, y, points)) for name, points in lines.items()])


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
    bins: Sequence[tuple[float, float, int, float, float]], x_name: str, y_name: str
) -> Reliability:
    """Of bins from a to b: rows, mean probability, share."""
    x, y = _unit_axes(x_name, y_name)
    dots, counts = [], []
    most = max(rows for _, _, rows, _, _ in bins)
    for a, b, rows, probability, share in bins:
        error = 2 * math.sqrt(probability * (1 - probability) / rows)
        low, high = max(0.0, share - error), min(1.0, share + error)
        dots.append((x.place(probability), y.place(share), y.place(low), y.place(high)))
        left, height = x.place(a), round(max(1.0, (COUNTS - 18) * rows / most), 1)
        wide = round(x.place(b) - left - 2, 1)
        counts.append((left + 1, UNIT_BOTTOM + COUNTS + 8 - height, wide, height, short(rows)))
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
    """One of several horizontal bars."""

    name: str
    width: float
    text: str


def bars(values: dict[str, float], unit: str = "") -> list[Bar]:
    """Horizontal bars, the longest as wide as there is room."""
    scale = (BAR_RIGHT - BAR_LEFT) / max([*values.values(), 1e-12])
    return [
        Bar(name, round(max(1.0, value * scale), 1), f"{short(value)} {unit}".rstrip())
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
        return max(24, min(160, 12 + 7 * max(map(len, self.names))))

    @property
    def cell(self) -> int:
        return max(14, min(56, (WIDTH - self.label - 10) // len(self.names)))
