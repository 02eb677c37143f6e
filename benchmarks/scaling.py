"""Time and peak memory of one epoch on a GPU against the number of centers and of rows.

    python -m benchmarks scaling [--rows 2000000] [--largest 1048576]

One projection method (carried), and from 65,536 centers on one preconditioner (s = 8,000, q =
800), so that only p changes. The fixed cost (labels, set-up, launches) is the intercept of the
straight line in p that fits the seconds best, in relative error; beside it stands the free fit of
fixed + b·p^exponent, and the steepest doubling. `--again` fits the stored rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelmill.solvers import EigenPro4

from .gpu import measured_fit
from .measure import line, slope
from .tasks import teacher

CENTERS = (16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)


def cases(rows: int = 2_000_000, largest: int = CENTERS[-1]) -> Iterator[dict]:
    X, y = teacher(rows, 0, "cuda")
    test = teacher(20_000, 99, "cuda")
    for p in (16_384, 131_072):
        measured_fit(X[:300_000], y[:300_000], *test, n_centers=p, bandwidth=10.0)  # compiles
    sizes = [(rows, p) for p in CENTERS if p <= largest]
    for n, p in [*sizes, *((n, 131_072) for n in (250_000, 500_000, 1_000_000))]:
        solver = EigenPro4(projection="carried", s=8000, q=800) if p >= 65_536 else None
        yield measured_fit(X[:n], y[:n], *test, n_centers=p, bandwidth=10.0, solver=solver)[0]


def free_fit(x: Sequence[float], y: Sequence[float]) -> float:
    """The intercept of fixed + b·x^exponent that fits y best in relative error."""

    def misfit(fixed: float) -> float:
        exponent, log_b = np.polyfit(np.log(x), np.log(np.subtract(y, fixed)), 1)
        return float((((fixed + np.exp(log_b) * np.power(x, exponent)) / y - 1) ** 2).sum())

    return float(min(np.linspace(0, 0.95 * min(y), 200), key=misfit))


def summary(rows: list[dict]) -> dict:
    large = [row for row in rows if row["p"] >= 65_536 and row["n"] == rows[0]["n"]]
    by_rows = [row for row in rows if row["p"] == 131_072]
    p, seconds = [row["p"] for row in large], [row["fit_seconds"] for row in large]
    fixed, free = line(p, seconds), free_fit(p, seconds)
    return {
        "seconds_exponent_in_p": slope(p, seconds),
        "fixed_seconds": fixed,
        "seconds_above_fixed_exponent_in_p": slope(p, np.subtract(seconds, fixed)),
        "steepest_doubling_exponent_in_p": float(np.diff(np.log2(seconds)).max()),
        "free_fit_fixed_seconds": free,
        "free_fit_exponent_in_p": slope(p, np.subtract(seconds, free)),
        "memory_exponent_in_p": slope(p, [row["peak_gib"] for row in large]),
        "seconds_exponent_in_n": slope(
            [row["n"] for row in by_rows], [row["fit_seconds"] for row in by_rows]
        ),
    }
