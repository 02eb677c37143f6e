"""How good a model is, as a page shows it: sentences, a table of scores, and charts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..estimators.curves import ClassCurves
from ..estimators.evaluation import Evaluation
from ..estimators.intervals import Interval
from . import charts

METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "roc_auc": "area under ROC",
    "average_precision": "average precision",
    "f1": "F1",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "absolute_error": "mean absolute error",
    "squared_error": "mean squared error",
    "largest_error": "largest error",
    "rows_of_unknown_classes": "rows of unknown classes",
    "coverage_50": "inside 50 % intervals",
    "coverage_90": "inside 90 % intervals",
    "coverage_95": "inside 95 % intervals",
    "width_90": "width of 90 % intervals",
    "nll": "negative log likelihood",
}
MEANINGS = {
    "accuracy": "share of rows whose class is predicted correctly",
    "balanced_accuracy": "the same share, with every class counting equally",
    "log_loss": "how wrong the probabilities are; less is better",
    "roc_auc": "how often the right one of two rows has the higher probability; 0.5 is chance",
    "average_precision": "how pure the top of the ranking is; 1 is perfect",
    "f1": "how much is found, and how much of it is right, in one number; 1 is perfect",
    "r2": "share of the target's variance that is explained; 1 is perfect",
    "rmse": "typical error, with large ones counting more; less is better",
    "mae": "average error; less is better",
    "largest_error": "of all rows",
    "coverage_50": "share of targets between their limits; 50 % is right",
    "coverage_90": "share of targets between their limits; 90 % is right",
    "coverage_95": "share of targets between their limits; 95 % is right",
    "width_90": "how far apart the limits are, on average; less is better",
    "nll": "how unlikely targets are under predictions with their deviations; less is better",
    "rows_of_unknown_classes": "which no model could predict; they count as wrong",
}
PERCENT = ("accuracy", "balanced_accuracy", "coverage_50", "coverage_90", "coverage_95")
MOST_CURVES = 8  # classes that have curves, the most frequent ones
MOST_POINTS = 1000  # that are drawn one by one; of more, how many are where
MOST_OUTPUTS = 4  # that are drawn
RESIDUAL_BINS = 41
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
FEW_ROWS = 100  # of which scores say little


class Score(NamedTuple):
    """A row of the table of scores, as it is written."""

    name: str
    meaning: str
    value: str
    interval: str
    guess: str


class ClassLine(NamedTuple):
    """A row of the table of classes; `series` is the number of its line in a chart, or None."""

    name: str
    series: int | None
    rows: str
    found: str
    right: str
    area: str
    average: str


class Output(NamedTuple):
    """The charts of one output: `dense` ones, or a dot for each of few rows."""

    name: str
    dense: bool
    predicted: charts.Plot | charts.Density
    residuals: charts.Plot | charts.Density
    spread: charts.Histogram
    quantiles: list[tuple[str, str]]


# ---- numbers in words


def written(name: str, value: float, interval: Interval | None = None) -> str:
    """A score with the digits that its interval leaves it."""
    if not math.isfinite(value):
        return "—"
    if isinstance(value, int):
        return f"{value:,}"
    scale, unit = (100, "\N{NO-BREAK SPACE}%") if name in PERCENT else (1, "")
    if interval is None:
        return charts.short(float(f"{scale * value:.4g}")) + unit
    return _rounded(scale * value, scale * (interval[1] - interval[0])) + unit


def _rounded(value: float, width: float) -> str:
    """With as many digits as an interval of this width has two of."""
    digits = 1 - math.floor(math.log10(width)) if width > 0 else 4
    if abs(value) >= 1e7 or digits > 8:
        return charts.short(value)
    value = round(value, digits)
    return f"{value:,.{max(0, digits)}f}"


def between(name: str, interval: Interval | None, to: str = " to ") -> str:
    """An interval, or a dash where there is none."""
    if interval is None:
        return "—"
    low, high = (written(name, end, interval) for end in interval)
    return f"{low.removesuffix('%').rstrip()}{to}{high}"


def headline(found: Evaluation) -> list[str]:
    """How good the model is, in sentences for whoever has never seen a metric."""
    said = _said_of_classes(found) if found.task == "classification" else _said_of_numbers(found)
    if found.rows < FEW_ROWS:
        said.append(
            f"There are only {found.rows:,} rows: more of them would give a clearer answer."
        )
    return said


def _said_of_classes(found: Evaluation) -> list[str]:
    value, guess = found.metrics["accuracy"], found.baseline["accuracy"]
    interval = found.intervals["accuracy"]
    said = [
        f"The model predicts {written('accuracy', value, interval)} of {found.rows:,} rows right;"
        f" with 95 % confidence it is between {between('accuracy', interval, ' and ')} of such"
        f" rows.",
        f"Without a model, always answering {found.guess!r} is right for"
        f" {written('accuracy', guess, interval)}: {_compared('accuracy', found.gain)}.",
    ]
    area, limits = found.metrics.get("roc_auc", math.nan), found.intervals.get("roc_auc")
    if len(found.classes) == 2 and math.isfinite(area):
        range_ = f" ({between('', limits)})" if limits else ""
        said.append(
            f"Of a row that is {found.classes[1]!r} and one that is not, it gives the former the"
            f" higher probability in {100 * area:.0f} of 100 cases; guessing does in 50. That is"
            f" the area under the ROC curve, {written('', area, limits)}{range_}."
        )
    if strange := found.metrics.get("rows_of_unknown_classes"):
        said.append(f"{strange:,} rows belong to classes that the model does not know.")
    if found.confusion is not None and np.count_nonzero(found.confusion.sum(1)) == 1:
        said.append(
            "All rows belong to one class: they cannot show how well the model tells classes apart."
        )
    return said


def _compared(name: str, gain: Interval | None) -> str:
    """Whether a model is better than a guess, and by how much, of the same rows."""
    if gain is None or gain[0] <= 0 <= gain[1]:
        return "the model is not clearly better"
    low, high = sorted(map(abs, gain))
    unit = "\N{NO-BREAK SPACE}percentage points" if name in PERCENT else ""
    by = between(name, (low, high)).removesuffix("\N{NO-BREAK SPACE}%") + unit
    return f"the model is better, by {by}" if gain[0] > 0 else f"the model is worse, by {by}"


def _said_of_numbers(found: Evaluation) -> list[str]:
    value, guess = found.metrics["mae"], found.baseline["mae"]
    interval = found.intervals.get("mae")
    on_average = "on average" if len(found.outputs) == 1 else "on average over rows and outputs"
    sure = ""
    if interval is not None:
        sure = f"; with 95 % confidence between {between('mae', interval, ' and ')}"
    said = [
        f"Predictions for {found.rows:,} rows are off by {written('mae', value, interval)}"
        f" {on_average}{sure}.",
        f"Without a model, always answering the mean is off by {written('mae', guess, interval)}:"
        f" {_compared('mae', found.gain)}.",
    ]
    if len(found.outputs) == 1 and found.rows > 1:
        half, most = np.quantile(_errors(found), [0.5, 0.9])
        said.append(
            f"Half of the predictions are off by less than {_few(half)}, nine of ten by less than"
            f" {_few(most)}."
        )
    r2 = found.metrics["r2"]
    if r2 > 0:
        said.append(f"The model explains {100 * r2:.3g} % of the variance of the target.")
    elif r2 <= 0:
        said.append("The model explains nothing of the variance of the target.")
    return said


def _few(value: float) -> str:
    """A number with three digits."""
    return charts.short(float(f"{value:.3g}"))


def _errors(found: Evaluation) -> np.ndarray:
    assert found.true is not None and found.predicted is not None
    return np.abs(found.true - found.predicted).ravel()


# ---- tables


def scores(found: Evaluation) -> list[Score]:
    """Each metric with its interval, and without a model."""
    shown = []
    for name, value in found.metrics.items():
        interval, guess = found.intervals.get(name), found.baseline.get(name)
        shown.append(
            Score(
                METRICS.get(name, name),
                MEANINGS.get(name, ""),
                written(name, value, interval),
                between(name, interval),
                "—" if guess is None else written(name, guess, interval),
            )
        )
    return shown


def class_lines(found: Evaluation) -> list[ClassLine]:
    """How well each class is found."""
    drawn = [curve.name for curve in drawn_curves(found)]
    curves = {curve.name: curve for curve in found.curves}
    counts = found.confusion
    if counts is None:
        return []
    lines = []
    for i, name in enumerate(found.classes):
        rows, taken, right = counts[i].sum(), counts[:, i].sum(), counts[i, i]
        curve = curves.get(name)
        lines.append(
            ClassLine(
                name,
                drawn.index(name) if name in drawn else None,
                f"{rows:,}",
                _share(right, rows),
                _share(right, taken),
                "—" if curve is None else f"{curve.area:.3f}",
                "—" if curve is None else f"{curve.average_precision:.3f}",
            )
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "—"


# ---- charts


def drawn_curves(found: Evaluation) -> list[ClassCurves]:
    """Of the most frequent classes, in the order of classes."""
    frequent = sorted(found.curves, key=lambda curve: -curve.share)[:MOST_CURVES]
    names = {curve.name for curve in frequent}
    return [curve for curve in found.curves if curve.name in names]


def curves(found: Evaluation) -> dict[str, object]:
    """ROC and precision-recall curves, and calibration."""
    shown: dict[str, object] = {"roc": None, "precision": None, "reliability": None}
    if drawn := drawn_curves(found):
        roc, precision = [c.roc.tolist() for c in drawn], [c.precision.tolist() for c in drawn]
        chance = (drawn[0].share,) * 2 if len(found.classes) == 2 else None
        shown["roc"] = charts.rates(roc, "false positive rate", "true positive rate", (0.0, 1.0))
        shown["precision"] = charts.rates(precision, "recall", "precision", chance)
    if bins := found.reliability:
        shown["reliability"] = charts.reliability(
            [(b.low, b.high, b.rows, b.probability, b.share, b.error) for b in bins],
            "predicted probability",
            "share that came true",
        )
        rows = sum(b.rows for b in bins)
        gap = sum(b.rows * abs(b.share - b.probability) for b in bins) / rows
        shown["gap"] = f"{100 * gap:.1f}"
    return shown


def coverage(found: Evaluation) -> charts.Rates | None:
    """How many targets lie inside their intervals, by how many should."""
    if not found.covered:
        return None
    points = [(0.0, 0.0), *sorted(found.covered.items()), (1.0, 1.0)]
    return charts.rates([points], "share asked for", "share of targets inside", (0.0, 1.0))


def outputs(found: Evaluation) -> list[Output]:
    """Residuals of all rows, by output."""
    if found.true is None or found.predicted is None:
        return []
    shown = zip(found.true.T[:MOST_OUTPUTS], found.predicted.T, strict=False)
    names = [f"Output {i + 1}: " if len(found.outputs) > 1 else "" for i in range(MOST_OUTPUTS)]
    return [_output(names[i], true, guess) for i, (true, guess) in enumerate(shown)]


def _output(name: str, true: np.ndarray, guess: np.ndarray) -> Output:
    left = true - guess
    dense = len(true) > MOST_POINTS
    predicted: charts.Plot | charts.Density
    residuals: charts.Plot | charts.Density
    if dense:
        predicted = charts.density(true, guess, "true", "predicted", diagonal=True)
        residuals = charts.density(guess, left, "predicted", "true − predicted")
    else:
        both = list(zip(true.tolist(), guess.tolist(), strict=True))
        apart = list(zip(guess.tolist(), left.tolist(), strict=True))
        predicted = charts.scatter(both, "true", "predicted", diagonal=True)
        residuals = charts.scatter(apart, "predicted", "true − predicted")
    limits = np.quantile(left, QUANTILES)
    quantiles = [(f"{100 * q:.0f} %", _few(v)) for q, v in zip(QUANTILES, limits, strict=True)]
    spread = histogram(left, "true − predicted")
    return Output(name, dense, predicted, residuals, spread, quantiles)


def histogram(values: np.ndarray, name: str) -> charts.Histogram:
    """Values beyond the 99 % in the middle count at its ends."""
    low, high = np.quantile(values, [0.005, 0.995])
    pad = max(0.5, abs(low) * 0.1) if high - low <= 1e-12 * abs(low) else 0.0
    low, high = low - pad, high + pad
    counts, edges = np.histogram(np.clip(values, low, high), RESIDUAL_BINS, (low, high))
    return charts.histogram(edges.tolist(), counts.tolist(), name)


def per_output(found: Evaluation) -> list[list[str]]:
    """R², RMSE and mean absolute error of each output, where there are several."""
    if len(found.outputs) < 2:
        return []
    return [
        [f"{i + 1}", *(written(name, each[name]) for name in ("r2", "rmse", "mae"))]
        for i, each in enumerate(found.outputs)
    ]
