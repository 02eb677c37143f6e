"""Judging candidates: what each says of rows it was not fitted to, in a few folds.

Every candidate meets the same rows and folds, so that their values may be compared, and mixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import Kernel
from ..ridge import solve_ridge
from ..scoring import ERRORS, score
from .descent import RIDGES
from .loo import loo_residuals
from .sample import Sample, scale_of

FOLDS, MORE_FOLDS = 3, 5  # of many rows, and of few
STEP = 3.0  # between two ridges
FLAT = 2e-3  # of a score, what another ridge has to gain for the one beyond it to be tried
MOST_STEPS = 5  # ridges that are tried
SQUARES = ("r2", "rmse", "squared_error")  # scores that one error orders alike


@dataclass(frozen=True)
class Fold:
    """Rows to fit, and rows to judge by, as numbers."""

    fitted: Tensor
    held: Tensor


@dataclass(frozen=True)
class Verdict:
    """What a kernel is worth with its best ridge: `score` (less is better), squared error, and
    values of the judged rows from models that did not see them.
    """

    score: float
    error: float
    ridge: float
    values: Tensor


Grams = Sequence[tuple[Tensor, ...]]  # of each fold: K of the fitted rows, and K(held, fitted)


class Judge:
    """The first `rows` of a sample, in folds."""

    flat = FLAT

    def __init__(self, sample: Sample, rows: int, few: int = 0):
        """In more folds where there are at most `few` rows: each is then nearer to all of them."""
        self.X, self.Y, self.w = sample.X[:rows], sample.Y[:rows], sample.w[:rows]
        self._sample = sample
        count = MORE_FOLDS if len(self.X) <= few else FOLDS
        fold = self._places() % count
        number = torch.arange(len(self.X), device=self.X.device)
        self.folds = [Fold(number[fold != i], number[fold == i]) for i in range(count)]

    def _places(self) -> Tensor:
        """Where each row stands in the order of targets, and among equal ones of its columns' sum:
        folds are alike, and the order of rows, columns and classes does not matter.
        """
        classes = self._sample.frequencies is not None
        target = self.Y.square().sum(1) if classes else self.Y.sum(1)
        columns = ((self.X - self.X.mean(0)) / scale_of(self.X)).sum(1)
        order = torch.argsort(columns.round(decimals=9), stable=True)
        order = order[torch.argsort(target[order].round(decimals=9), stable=True)]
        return torch.argsort(order)

    @property
    def parts(self) -> list[Tensor]:
        """Rows that kernels are learned from: those fitted in each fold, then all."""
        return [*(fold.fitted for fold in self.folds), torch.arange(len(self.X)).to(self.X.device)]

    def grams(self, kernel: Kernel) -> Grams:
        """Of a kernel that no row of a fold was used for."""
        K = kernel(self.X)
        return [
            (K[fold.fitted][:, fold.fitted], K[fold.held][:, fold.fitted]) for fold in self.folds
        ]

    def grams_of_each(self, kernels: Sequence[Kernel]) -> Grams:
        """Of kernels that were learned from the fitted rows of each fold."""
        made = []
        for kernel, fold in zip(kernels, self.folds, strict=True):
            fitted = self.X[fold.fitted]
            made.append((kernel(fitted), kernel(self.X[fold.held], fitted)))
        return made

    def values(self, grams: Grams, ridge: float) -> Tensor | None:
        """(rows, c) of each row without its own fold, 0 of rows in none; None where a factor
        fails.
        """
        out = torch.zeros_like(self.Y)
        for (K, K_held), fold in zip(grams, self.folds, strict=True):
            w, Y = self.w[fold.fitted], self.Y[fold.fitted]
            alpha = solve_ridge(K, ridge / w + 1e-10 * len(w), Y)
            if alpha is None:
                return None
            out[fold.held] = K_held @ alpha
        return out

    def verdict(
        self, grams: Grams, ridge: float | None, start: float, hopeless: float = math.inf
    ) -> Verdict:
        """With the ridge that is given, or the best one near `start`; with `start` itself where its
        score is `hopeless`.
        """
        if ridge is not None:
            return self._try(grams, ridge)
        return min(self._near(grams, start, hopeless), key=lambda verdict: verdict.score)

    def _near(self, grams: Grams, start: float, hopeless: float = math.inf) -> list[Verdict]:
        """Of ridges around the best one near `start`, the least first: upwards as long as that is
        better by more than `flat`, and downwards where it is not better at once.
        """
        found = {0: self._try(grams, start)}
        for step in (1, -1) if found[0].score <= hopeless else ():
            k = step
            while is_ridge(start * STEP**k) and len(found) < MOST_STEPS:
                found[k] = self._try(grams, start * STEP**k)
                if not found[k].score < (1 - self.flat) * found[k - step].score:
                    break
                k += step
            if found.get(step, found[0]).score < found[0].score:
                break
        return [found[k] for k in sorted(found)]

    def _try(self, grams: Grams, ridge: float) -> Verdict:
        values = self.values(grams, ridge)
        if values is None or not bool(torch.isfinite(values).all()):
            return Verdict(math.inf, math.inf, ridge, torch.zeros_like(self.Y))
        return Verdict(self.score(values), self.error(values), ridge, values)

    def prefers(self, other: Verdict, first: Verdict, chances: float = 1.0) -> bool:
        """Whether another is better by more than so many standard errors: its score, and row by
        row its squared errors, of which a few may decide the mean where tails are heavy.
        """
        rows = self.held
        errors = [((each.values[rows] - self.Y[rows]) ** 2).mean(1) for each in (first, other)]
        gain = self.w[rows] * (errors[0] - errors[1])
        chance = gain.std() / len(gain) ** 0.5
        return other.score < first.score and bool(gain.mean() > chances * chance)

    @property
    def held(self) -> Tensor:
        """The rows that are judged by."""
        return torch.cat([fold.held for fold in self.folds])

    def error(self, values: Tensor) -> float:
        """The mean squared error."""
        rows = self.held
        w = self.w[rows]
        squares = (w[:, None] * (values[rows] - self.Y[rows]) ** 2).sum()
        return (squares / (w.sum() * self.Y.shape[1])).item()

    def score(self, values: Tensor) -> float:
        """Less is better: the squared error of numbers and the log loss of classes, or what is
        left of the score that was asked for.
        """
        mean, name = self._sample.frequencies, self._sample.scoring
        if mean is None and name in (None, *SQUARES):
            return self.error(values)
        shift = 0.0 if mean is None else mean
        rows = self.held
        parts = (values[rows] + shift, self.Y[rows] + shift, self.w[rows])
        found = score(name or "log_loss", *(part.cpu() for part in parts))
        return -found if name in (None, *ERRORS) else 1 - found


class EachRow(Judge):
    """Every row of a sample, each left out by itself: one factor tells what the model of all other
    rows says of it.
    """

    def __init__(self, sample: Sample):
        super().__init__(sample, len(sample.X))
        rows = torch.arange(len(sample.X), device=sample.X.device)
        self.folds = [Fold(rows, rows)]

    def grams(self, kernel: Kernel) -> Grams:
        K = kernel(self.X)
        return [(K, K)]

    def values(self, grams: Grams, ridge: float) -> Tensor | None:
        ((K, _),) = grams
        try:
            return self.Y - loo_residuals(K, self.Y, ridge / self.w)
        except torch.linalg.LinAlgError:
            return None


def is_ridge(value: float) -> bool:
    """Whether it is one that may be chosen."""
    return RIDGES[0] <= value <= RIDGES[1]
