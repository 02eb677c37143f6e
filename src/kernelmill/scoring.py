"""How well held-out rows are predicted: one number, by name, greater is better.

Of classes, values are whatever the model gives before its probabilities are calibrated, or
probabilities; scores that depend on a calibration or on a decision are those of a quick one, to
choose by, or in `score_calibrated` of the one that an estimator makes of held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .calibration import calibrate, quick_calibration, quick_log_loss
from .errors import one_of

Score = Callable[[Tensor, Tensor, Tensor], float]  # of values, targets (n, c) and weights

# scikit-learn's spellings, and short ones.
ALIASES = {
    "mae": "absolute_error",
    "mse": "squared_error",
    "neg_log_loss": "log_loss",
    "neg_mean_absolute_error": "absolute_error",
    "neg_mean_squared_error": "squared_error",
    "neg_root_mean_squared_error": "rmse",
    "roc_auc_ovr": "roc_auc",
}
# Log-odds that a threshold between two classes may have, and powers of the shares that may be
# divided out where there are more.
LOG_ODDS = torch.linspace(-10, 10, 201, dtype=torch.float64)
POWERS = torch.linspace(0, 1.5, 31, dtype=torch.float64)


def resolve_scoring(given: object, allowed: Sequence[str]) -> str | None:
    """The score that was asked for, None for the default; another name than these is refused."""
    if given is None:
        return None
    name = ALIASES.get(str(given), given)
    if name not in allowed:
        raise one_of("scoring", given, list(allowed))
    return str(name)


def score(name: str, values: Tensor, targets: Tensor, w: Tensor) -> float:
    """A score of rows: errors, such as log_loss and rmse, are negative.

    targets: class codes (n,), classes (n, c) of which a row may have a share each, or numbers.
    """
    scores = {**CLASSES, **NUMBERS}
    if name in CLASSES and targets.ndim == 1:
        targets = torch.nn.functional.one_hot(targets, values.shape[1])
    return scores[name](values.double(), targets.double(), w.double())


def score_calibrated(
    name: str, values: Tensor, targets: Tensor, w: Tensor, shares: Tensor
) -> float:
    """A score of classes, calibrated and decided on these rows as an estimator does on those held
    out; `shares` (c,) are the classes' in training, targets as in `score`.
    """
    if targets.ndim == 1:
        targets = torch.nn.functional.one_hot(targets, values.shape[1])
    values, targets, w = values.double(), targets.double(), w.double()
    logits = calibrate(values, targets, w, shares.double()).logits(values)
    return _score_logs(name, torch.log_softmax(logits, 1), targets, w)


def _score_logs(name: str, logs: Tensor, targets: Tensor, w: Tensor) -> float:
    """By logarithms of probabilities."""
    if name == "log_loss":
        return (w * (targets * logs).sum(1)).sum().item() / w.sum().item()
    if name in DECIDED:
        sums = logs + decision_bias(name, logs, targets, w)
        return DECIDED[name](_confusion(sums, targets, w))
    return CLASSES[name](logs, targets, w)


def decision_bias(name: str | None, logs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    """(c,) what is added to the logarithms of calibrated probabilities, so that the class with the
    largest sum is the one to predict for this score; 0 where that is the likeliest class.

    Chosen by the score that the probabilities themselves promise, which is smoother than counts,
    and kept where the counts agree.
    """
    none = torch.zeros(logs.shape[1], dtype=torch.float64)
    if name not in DECIDED or len(none) < 2:
        return none
    counted, P = DECIDED[name], logs.exp()

    def promised(bias: Tensor) -> float:
        return counted(_confusion(logs + bias, P, w))

    def found(bias: Tensor) -> float:
        return counted(_confusion(logs + bias, targets, w))

    best = max(_biases(P, w), key=promised)
    return max((none, best), key=found)


def _biases(P: Tensor, w: Tensor) -> Tensor:
    """(k, c) thresholds to choose from."""
    if P.shape[1] == 2:
        return LOG_ODDS[:, None] * torch.tensor([0.5, -0.5], dtype=torch.float64)
    shares = (w[:, None] * P).sum(0) / w.sum()
    return -POWERS[:, None] * shares.clamp(min=1e-12).log()


def _confusion(sums: Tensor, targets: Tensor, w: Tensor) -> Tensor:
    """(c, c) weights of true classes, in rows, by the class that has the largest sum."""
    c = sums.shape[1]
    taken = torch.zeros(c, c, dtype=torch.float64)
    return taken.index_add_(0, sums.argmax(1), w[:, None] * targets).T


def _balanced(counts: Tensor) -> float:
    """The mean over classes of how many of their rows are found."""
    all_of = counts.sum(1)
    there = all_of > 0
    return (counts.diagonal()[there] / all_of[there]).mean().item()


def _f1(counts: Tensor) -> float:
    """Of the second of two classes; the mean over classes where there are more."""
    both = counts.sum(0) + counts.sum(1)
    found = torch.where(both > 0, 2 * counts.diagonal() / both.clamp(min=1e-300), 0.0)
    if len(found) == 2:
        return found[1].item()
    return found[both > 0].mean().item()


def _accuracy(values: Tensor, targets: Tensor, w: Tensor) -> float:
    right = targets.gather(1, values.argmax(1, keepdim=True))[:, 0]
    return (w * right).sum().item() / w.sum().item()


def _log_loss(values: Tensor, targets: Tensor, w: Tensor) -> float:
    return -quick_log_loss(values, targets, w)


def _decided(name: str) -> Score:
    """A score of decisions, with the best thresholds for these rows."""

    def score_decided(values: Tensor, targets: Tensor, w: Tensor) -> float:
        calibration, _ = quick_calibration(values, targets, w)
        return _score_logs(name, torch.log_softmax(calibration.logits(values), 1), targets, w)

    return score_decided


def _roc_auc(values: Tensor, targets: Tensor, w: Tensor) -> float:
    """Area under the ROC curve; of more than two classes, the mean of each against the others."""
    if values.shape[1] == 2:
        return _area(values[:, 1] - values[:, 0], w * targets[:, 1], w * targets[:, 0])
    areas = [_area(f, w * y, w * (1 - y)) for f, y in zip(values.T, targets.T, strict=True)]
    there = (w[:, None] * targets).sum(0) > 0
    return float(np.mean([area for area, known in zip(areas, there, strict=True) if known]))


def _area(values: Tensor, positive: Tensor, negative: Tensor) -> float:
    """How often a positive row has the larger value of a pair, ties by half; ½ without pairs."""
    pairs = (positive.sum() * negative.sum()).item()
    if pairs <= 0:
        return 0.5
    levels, level = np.unique(values.numpy(), return_inverse=True)
    above = np.bincount(level, positive.numpy(), len(levels))
    below = np.bincount(level, negative.numpy(), len(levels))
    return float(above @ (below.cumsum() - below / 2)) / pairs


def _r2(values: Tensor, Y: Tensor, w: Tensor) -> float:
    """R², averaged over outputs."""
    w = w[:, None]
    mean = (w * Y).sum(0) / w.sum()
    unit = (Y - mean).abs().amax(0).clamp(min=1e-300)  # squares of tiny targets would vanish
    left, total = (w * ((values - Y) / unit) ** 2).sum(0), (w * ((Y - mean) / unit) ** 2).sum(0)
    return (1 - left / total.clamp(min=1e-300)).mean().item()


def _squared_error(values: Tensor, Y: Tensor, w: Tensor) -> float:
    return -_squares(values, Y, w).mean().item()


def _rmse(values: Tensor, Y: Tensor, w: Tensor) -> float:
    return -_squares(values, Y, w).sqrt().mean().item()


def _squares(values: Tensor, Y: Tensor, w: Tensor) -> Tensor:
    """(c,) mean squared errors."""
    return (w[:, None] * (values - Y) ** 2).sum(0) / w.sum()


def _absolute_error(values: Tensor, Y: Tensor, w: Tensor) -> float:
    return -((w[:, None] * (values - Y).abs()).sum(0) / w.sum()).mean().item()


# Scores that are counted from decisions.
DECIDED: dict[str | None, Callable[[Tensor], float]] = {
    "balanced_accuracy": _balanced,
    "f1": _f1,
}
CLASSES: dict[str, Score] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _decided("balanced_accuracy"),
    "f1": _decided("f1"),
    "log_loss": _log_loss,
    "roc_auc": _roc_auc,
}
NUMBERS: dict[str, Score] = {
    "absolute_error": _absolute_error,
    "r2": _r2,
    "rmse": _rmse,
    "squared_error": _squared_error,
}
USUAL = {True: "r2", False: "accuracy"}  # of numbers, and of classes
ERRORS = ("absolute_error", "log_loss", "rmse", "squared_error")  # shown without their sign
