"""Scores of predictions on test rows."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

from .data import Rows

LEAST = 1e-15  # of a probability, so that its logarithm is finite


def log_loss(y: np.ndarray, P: np.ndarray) -> float:
    """Mean −log of the probability of the class that it was."""
    P = P / P.sum(axis=1, keepdims=True)
    return float(-np.log(P[np.arange(len(y)), y].clip(min=LEAST)).mean())


def rmse(y: np.ndarray, f: np.ndarray) -> float:
    return float(np.sqrt(np.mean((y - f) ** 2)))


def loss(rows: Rows, predicted: np.ndarray) -> float:
    """What validation rows are compared by: log loss, or the root of the mean square."""
    return log_loss(rows.y, predicted) if rows.classes else rmse(rows.y, predicted)


def scores(rows: Rows, predicted: np.ndarray) -> dict:
    """Of probabilities (n, c): error in %, log loss and, of two classes, AUC. Of values: RMSE.

    Rows of a class that no method could know are errors, and are left out of the log loss.
    """
    if not rows.classes:
        return {"rmse_over_deviation": rmse(rows.y, predicted) / float(rows.y.std())}
    known = rows.y >= 0
    found = {
        "error_percent": 100 * float(np.mean(predicted.argmax(axis=1) != rows.y)),
        "log_loss": log_loss(rows.y[known], predicted[known].astype(np.float64)),
        "unknown_class_rows": int((~known).sum()),
    }
    if rows.classes == 2:
        found["auc"] = float(roc_auc_score(rows.y[known], predicted[known, 1]))
    return found
