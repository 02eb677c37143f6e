"""Pictures as SVG text, for a page that needs nothing else: lines, scattered points, bars and a matrix of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 76, 44, 12, 16
Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Four to eight round numbers between the two."""
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        step = max(1, -(-(last - first) // 6))
        found = [10.0**e for e in range(first, last + 1, step)]
        if len(found) < 3:  # less than two decades
            fine = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 1.5, 2, 3, 5, 7)]
            found = [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        return found if len(found) > 1 else [low, high]
    span = high - low or abs(high) or 1.0
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    wide = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    return [i * wide for i in range(math.ceil(low / wide - 1e-9), math.floor(high / wide + 1e-9) + 1)]


def shown(value: float) -> str:
    """A number in few letters."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e").replace(".0e", "e")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


class _Frame:
    """Axes: from numbers to places in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], log_x: bool, log_y: bool, x_name: str, y_name: str):
        self.log_x, self.log_y = log_x, log_y
        self.x_low, self.x_high = _span(xs, log_x)
        self.y_low, self.y_high = _span(ys, log_y, margin=not log_y)
        lines = []
        for value in ticks(self.x_low, self.x_high, log_x):
            x = self.x(value)
            lines.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{shown(value)}</text>')
        for value in ticks(self.y_low, self.y_high, log_y):
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown(value)}</text>')
        middle = (TOP + HEIGHT - BOTTOM) / 2
        lines.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
        lines.append(
            f'<text class="name" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{escape(y_name)}</text>'
        )
        self.lines = lines

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _share(value, self.x_low, self.x_high, self.log_x)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(value, self.y_low, self.y_high, self.log_y)


def _span(values: Sequence[float], log: bool, margin: bool = False) -> tuple[float, float]:
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1)
    pad = (high - low) * 0.05 if margin else 0.0
    return low - pad, high + pad


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _svg(inside: Sequence[str], label: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{width:.0f}px">{"".join(inside)}</svg>'
    )


def lines(series: dict[str, Points], x_name: str, y_name: str, log_x: bool = False, log_y: bool = False) -> str:
    """One line for each name; points that a logarithm cannot show are left out."""
    usable = {
        name: [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log_y) and (x > 0 or not log_x)]
        for name, points in series.items()
    }
    usable = {name: points for name, points in usable.items() if points}
    every = [point for points in usable.values() for point in points]
    frame = _Frame([x for x, _ in every], [y for _, y in every], log_x, log_y, x_name, y_name)
    parts = list(frame.lines)
    for number, (name, points) in enumerate(usable.items()):
        places = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line s{number % 4}" points="{places}"/>')
        if len(points) <= 60:
            parts += [f'<circle class="dot s{number % 4}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>' for x, y in points]
        if len(usable) > 1:
            place = f'x="{WIDTH - RIGHT - 4}" y="{TOP + 14 + 18 * number}"'
            parts.append(f'<text class="legend s{number % 4}" {place} text-anchor="end">{escape(name)}</text>')
    return _svg(parts, f"{y_name} against {x_name}")


def scatter(points: Points, x_name: str, y_name: str, diagonal: bool = False) -> str:
    frame = _Frame([x for x, _ in points], [y for _, y in points], False, False, x_name, y_name)
    parts = list(frame.lines)
    if diagonal:
        low, high = max(frame.x_low, frame.y_low), min(frame.x_high, frame.y_high)
        if low < high:
            ends = f'x1="{frame.x(low):.1f}" y1="{frame.y(low):.1f}" x2="{frame.x(high):.1f}" y2="{frame.y(high):.1f}"'
            parts.append(f'<line class="same" {ends}/>')
    else:
        parts.append(f'<line class="same" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{frame.y(0):.1f}" y2="{frame.y(0):.1f}"/>')
    parts += [f'<circle class="point s0" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2"/>' for x, y in points]
    return _svg(parts, f"{y_name} against {x_name}")


def bars(values: dict[str, float], unit: str) -> str:
    """Horizontal bars with their numbers."""
    high, most, left = 26, max([*values.values(), 1e-12]), 190
    parts = []
    for row, (name, value) in enumerate(values.items()):
        y, wide = row * high, (WIDTH - left - 90) * value / most
        parts.append(f'<text class="name" x="{left - 10}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar s0" x="{left}" y="{y + 4}" width="{max(1.0, wide):.1f}" height="{high - 8}" rx="2"/>')
        parts.append(f'<text class="tick" x="{left + max(1.0, wide) + 8:.1f}" y="{y + 17}">{shown(value)} {escape(unit)}</text>')
    return _svg(parts, ", ".join(values), WIDTH, max(1, len(values)) * high + 4)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Counts, true classes in rows, each row shaded by its shares."""
    k = len(names)
    label = max(24, min(160, 12 + 7 * max(map(len, names))))
    cell = max(14, min(56, (WIDTH - label - 10) // k))
    size, written = label + cell * k + 10, cell >= 30
    parts = []
    for i, row in enumerate(counts):
        total = max(1, sum(row))
        y = label + i * cell
        parts.append(f'<text class="name" x="{label - 8}" y="{y + cell / 2 + 4}" text-anchor="end">{escape(names[i][:22])}</text>')
        x = label + i * cell + cell / 2
        turn = f'transform="rotate(-60 {x} {label - 8})"' if label > 40 else 'text-anchor="middle"'
        parts.append(f'<text class="name" {turn} x="{x}" y="{label - 8}">{escape(names[i][:22])}</text>')
        for j, count in enumerate(row):
            kind, share = ("right" if i == j else "wrong"), count / total
            title = f"{names[i]} taken for {names[j]}: {count} of {total}"
            parts.append(
                f'<rect class="{kind}" x="{label + j * cell}" y="{y}" width="{cell - 1}" height="{cell - 1}" '
                f'fill-opacity="{0.06 + 0.94 * share:.3f}"><title>{escape(title)}</title></rect>'
            )
            if written and count:
                ink = "over" if share > 0.55 else "tick"
                text = shown(count) if count < 1e5 else f"{count / 1000:.0f}k"
                parts.append(
                    f'<text class="{ink}" x="{label + j * cell + cell / 2}" y="{y + cell / 2 + 4}" text-anchor="middle">{text}</text>'
                )
    return _svg(parts, "confusion matrix", size, size)
