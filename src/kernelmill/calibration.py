"""From a classifier's values to probabilities, fitted on rows it did not learn from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

# Of values whose logarithms are calibrated; 0: the values themselves.
FLOORS = (0.0, 1e-3, 1e-2, 0.05)


class Calibration(NamedTuple):
    """Probabilities are the softmax of (g + bias) / temperature, g the values or the logarithms of
    those above the floor.

    Values learned by least squares estimate the probabilities themselves, so their logarithms are
    nearly calibrated, of a rare class too; where classes are clean, values spread beyond 0 and 1,
    and are better taken as they are.
    """

    temperature: float
    bias: Tensor
    floor: float = 0.0

    @classmethod
    def none(cls, c: int) -> Calibration:
        return cls(1.0, torch.zeros(c, dtype=torch.float64))

    def logits(self, values: Tensor) -> Tensor:
        g = values.double().clamp(min=self.floor).log() if self.floor else values.double()
        return (g + self.bias.to(g.device)) / self.temperature


def calibrate(values: Tensor, targets: Tensor, w: Tensor, shares: Tensor) -> Calibration:
    """The form that predicts each half of these rows best from the other, then fitted to all of
    them.
    """
    if not torch.isfinite(values).all():
        return Calibration.none(values.shape[1])
    # Every other row in the order of what it says of its own class: the order of rows, columns and
    # classes must not matter.
    halves = torch.argsort(torch.argsort((values * targets).sum(1), stable=True)) % 2 == 0

    def loss(floor: float) -> float:
        total = 0.0
        for half in (halves, ~halves):
            found = fit_calibration(values[half], targets[half], w[half], shares, floor)
            logs = torch.log_softmax(found.logits(values[~half]), 1)
            total -= (w[~half, None] * targets[~half] * logs).sum().item()
        return total

    few = len(values) < 20
    return fit_calibration(values, targets, w, shares, 0.0 if few else min(FLOORS, key=loss))


def fit_calibration(
    values: Tensor, targets: Tensor, w: Tensor, shares: Tensor, floor: float
) -> Calibration:
    """The temperature and bias that minimise the log loss of these rows, each class weighed as its
    share of the training rows.

    Where the slope along the bias vanishes, the mean probability of every class is that share. One
    row's worth of doubt, the mean values with the shares as targets, keeps the bias finite where
    classes are separated without an error; a class that is too rare to be among these rows stands
    there with its whole share.
    """
    g = values.clamp(min=floor).log() if floor else values
    shares, there = shares.double() / shares.sum(), (w[:, None] * targets).sum(0) / w.sum()
    W = w[:, None] * targets * torch.where(there > 0, shares / there, 0.0)
    middle = (W.sum(1, keepdim=True) * g).sum(0) / W.sum()
    doubt = torch.where(there > 0, w.mean(), w.sum()) * shares
    v, W = torch.cat([g - middle, torch.zeros_like(middle)[None]]), torch.cat([W, doubt[None]])
    unit = ((W.sum(1, keepdim=True) * v * v).sum() / W.sum()).sqrt().clamp(min=1e-300)
    start = np.concatenate([[1.0], shares.clamp(min=1e-12).log().numpy()])
    at = _least_log_loss((v / unit).numpy(), W.numpy(), start)
    t = unit.item() / at[0]
    bias = t * torch.from_numpy(at[1:]) - middle
    return Calibration(t, bias - bias.mean(), floor)


def _least_log_loss(v: np.ndarray, W: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The slope along v and the bias of each class that minimise the log loss with targets of these
    weights.

    In numpy: a hundred steps over so few numbers would wait for torch's threads more than they
    compute (5.6 s with two busy cores, .8 s so).
    """
    rows, total = W.sum(1, keepdims=True), W.sum()

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        logs = log_softmax(at[0] * v + at[1:], axis=1)
        slope = rows * np.exp(logs) - W
        along = np.concatenate([[(slope * v).sum()], slope.sum(0)])
        return -(W * logs).sum() / total, along / total

    bounds = [(1e-3, 1e4)] + [(None, None)] * W.shape[1]
    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-7}
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
