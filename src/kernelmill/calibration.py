"""From a classifier's values to probabilities, fitted on rows it did not learn from."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor

FLOOR = 0.01  # of values whose logarithms are taken
DOUBT = 0.5  # rows that are of any class
BIAS = 0.5  # a bias that is as likely as none, before any row is seen
# Slopes of a quick look: of values in units of their deviation, and of their logarithms.
SLOPES, LOG_SLOPES = (0.0, 1.0, 4.0, 16.0, 64.0), (0.0, 0.5, 1.0)
QUICK_STEPS = 8  # downhill from the best of them
QUICK_ROWS = 6000  # that tell two slopes; the log loss is that of all
# Values that a calibration looks at: of 1,000 classes, those of 1,000 rows; and slopes by those of
# 200.
MOST_NUMBERS, FEWEST = 1_000_000, 1_000
QUICK_NUMBERS, QUICK_FEWEST = 200_000, 200


class Calibration(NamedTuple):
    """Probabilities are the softmax of slope · f + log_slope · log(max(f, floor)) + bias.

    Values f learned by least squares estimate the probabilities themselves, so their logarithms are
    nearly calibrated, of a rare class too; where classes are clean, values spread beyond 0 and 1,
    and are better taken as they are. With both slopes 0 there are the class frequencies alone.
    """

    slope: float
    log_slope: float
    bias: Tensor
    floor: float = FLOOR

    @classmethod
    def none(cls, c: int) -> Calibration:
        return cls(1.0, 0.0, torch.zeros(c, dtype=torch.float64))

    def mix(self, other: Calibration, share: float) -> Calibration:
        """With so much of another one of the same floor."""
        own = 1 - share
        slope = own * self.slope + share * other.slope
        log_slope = own * self.log_slope + share * other.log_slope
        bias = own * self.bias + share * other.bias
        return Calibration(slope, log_slope, bias, self.floor)

    def logits(self, values: Tensor) -> Tensor:
        f = values.double()
        logs = f.clamp(min=self.floor).log()
        return self.slope * f + self.log_slope * logs + self.bias.to(f.device)


def calibrate(
    values: Tensor, targets: Tensor, w: Tensor, shares: Tensor, floor: float = FLOOR
) -> Calibration:
    """The slopes and bias that minimise the log loss of these rows, each class weighed as its
    share of the training rows.

    One fit finds its place between values and logarithms, with a bias for each class or without,
    better than the best of the four by held-out rows (docs/choosing.md). The bias is a multiple of
    the shares' logarithms, and what only the rows can tell, which is held near 0. Half a row's
    worth of doubt, the shares as targets of every row alike, keeps slopes finite where classes are
    separated without an error; a class that is too rare to be among these rows stands there with
    its whole share.

    The shares alone cost no bias and the least doubt that there is: whatever costs less than they
    do, costs less on the rows too. So the log loss of these rows is never above that of the shares.
    """
    c = values.shape[1]
    if not torch.isfinite(values).all():
        return Calibration.none(c)
    values, targets, w = _fewer(values, targets, w)
    f, share = values.double().numpy(), (shares.double() / shares.sum()).numpy()
    W = _weigh(targets, w, share)
    rows = W.sum(1, keepdims=True)
    absent = np.where(W.sum(0) > 0, DOUBT * w.mean().item(), w.sum().item())
    W = W + rows / rows.sum() * absent * share
    logs = np.log(np.maximum(share, 1e-12))
    logs = np.round(logs - logs.mean(), 9)  # of equal shares 0, however their sums were rounded
    parts = [f, np.log(np.maximum(f, floor)), np.broadcast_to(logs, f.shape)]
    parts = [part - part.mean(1, keepdims=True) for part in parts]
    units = [max(np.sqrt((rows * part**2).sum() / rows.sum()), 1e-300) for part in parts]
    scaled = np.stack([part / unit for part, unit in zip(parts, units, strict=True)])
    at = _least_log_loss(scaled, W, w.mean().item() / BIAS**2)
    slope, log_slope, along = at[:3] / units
    bias = torch.from_numpy(along * logs + at[3:])
    return Calibration(float(slope), float(log_slope), bias - bias.mean(), floor)


def quick_log_loss(values: Tensor, targets: Tensor, w: Tensor) -> float:
    """About the log loss that these values have once they are calibrated: of two slopes, without a
    bias.

    Milliseconds, to compare candidates by.
    """
    return quick_calibration(values, targets, w)[1]


def quick_calibration(values: Tensor, targets: Tensor, w: Tensor) -> tuple[Calibration, float]:
    """The best of a few slopes and some steps downhill from there, or the class frequencies
    alone; and its log loss.
    """
    values, targets, w = _fewer(values, targets, w)
    W = (w[:, None] * targets).double().numpy()
    rows, total = W.sum(1), W.sum()
    share = W.sum(0) / total
    logs = np.log(np.maximum(share, 1e-12))
    best, least = Calibration(0.0, 0.0, torch.from_numpy(logs)), -float(share @ logs)
    if not torch.isfinite(values).all():
        return best, least
    f = values.double().numpy()
    g = np.log(np.maximum(f, FLOOR))
    f, g = f - f.max(1, keepdims=True), g - g.max(1, keepdims=True)
    unit = max(np.sqrt((rows @ (f - f.mean(1, keepdims=True)) ** 2).sum() / total), 1e-300)
    few = min(QUICK_ROWS, max(QUICK_FEWEST, QUICK_NUMBERS // f.shape[1]))
    some = np.random.default_rng(0).permutation(len(f))[:few]  # whatever their order
    seen = [part[some] for part in (f / unit, g, W)]
    start = min(itertools.product(SLOPES, LOG_SLOPES), key=lambda at: _log_loss(at, *seen)[0])
    found = minimize(
        _log_loss,
        np.array(start),
        args=tuple(seen),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1e4)] * 2,
        options={"maxiter": QUICK_STEPS},
    )
    now = _log_loss(found.x, f / unit, g, W)[0]
    if now < least:
        zeros = torch.zeros(len(share), dtype=torch.float64)
        return Calibration(float(found.x[0] / unit), float(found.x[1]), zeros), float(now)
    return best, least


def _fewer(values: Tensor, targets: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Some of the rows, where there are many classes: slopes need no more, and a bias for each of a
    thousand classes is held near 0 whatever the rows say.
    """
    rows = max(FEWEST, MOST_NUMBERS // max(1, values.shape[1]))
    if len(values) <= rows:
        return values, targets, w
    some = torch.from_numpy(np.random.default_rng(1).permutation(len(values))[:rows])
    return values[some], targets[some], w[some]


def _log_loss(
    slopes: ArrayLike, f: np.ndarray, g: np.ndarray, W: np.ndarray
) -> tuple[float, np.ndarray]:
    """Of the softmax of f and g times these slopes, with targets of these weights; and its
    derivative by the slopes.
    """
    along_f, along_g = np.asarray(slopes)
    logits = along_f * f + along_g * g
    logits -= logits.max(1, keepdims=True)
    P = np.exp(logits)
    sums = P.sum(1, keepdims=True)
    excess = W.sum(1, keepdims=True) * P / sums - W
    slope = np.array([(excess * f).sum(), (excess * g).sum()])
    total = W.sum()
    return float(-(W * (logits - np.log(sums))).sum() / total), slope / total


def _weigh(targets: Tensor, w: Tensor, share: np.ndarray) -> np.ndarray:
    """(n, c) the targets' weights, each class in its share of the training rows."""
    W = (w[:, None] * targets).double().numpy()
    there = W.sum(0) / W.sum()
    return W * np.divide(share, there, out=np.zeros_like(share), where=there > 0)


def _least_log_loss(parts: np.ndarray, W: np.ndarray, stiffness: float) -> np.ndarray:
    """The slopes along parts (k, n, c), and the bias of each class, that minimise the log loss with
    targets of these weights and ½ stiffness ‖bias‖².

    In numpy: a hundred steps over so few numbers would wait for torch's threads more than they
    compute.
    """
    rows, total, k = W.sum(1, keepdims=True), W.sum(), len(parts)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        logs = log_softmax(np.tensordot(at[:k], parts, 1) + at[k:], axis=1)
        excess = rows * np.exp(logs) - W
        along = np.tensordot(parts, excess, 2)
        value = -(W * logs).sum() + stiffness / 2 * at[k:] @ at[k:]
        slope = np.concatenate([along, excess.sum(0) + stiffness * at[k:]])
        return value / total, slope / total

    start = np.concatenate([np.full(k, 0.5), np.zeros(W.shape[1])])
    bounds = [(0.0, 1e4)] * k + [(None, None)] * W.shape[1]
    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-7}
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
