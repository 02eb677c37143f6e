"""How targets lie around the values of a model: a size for each row, and between how many of them a
share of targets lies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from .conformal import Intervals, check_coverage
from .errors import InputError
from .model import KernelModel

ROUNDING = 4  # units in the last place, by which limits may be off


@dataclass(frozen=True)
class ErrorBars(ABC):
    """Those of one model."""

    model: KernelModel

    @abstractmethod
    def sizes(self, features: Tensor, values: Tensor) -> Tensor:
        """(r, c) of rows with these values."""

    @abstractmethod
    def limits(self, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """(c,) sizes below and above a value, between which so large a share of targets lies."""

    @property
    @abstractmethod
    def deviation(self) -> np.ndarray:
        """(c,) sizes in a standard deviation."""

    @abstractmethod
    def draw(self, rows: int, count: int, generator: np.random.RandomState) -> np.ndarray:
        """(rows, c, count) residuals that targets might have, in sizes."""

    def interval(self, beside: Tensor, coverage: float) -> tuple[Tensor, Tensor]:
        """(r, c) limits between which so large a share of targets lies, of what `beside` gives;
        rounded outward, so that targets that are all the same lie inside.
        """
        middle, size = beside.unbind(-1)
        low, high = (size * torch.from_numpy(edge).to(size) for edge in self.limits(coverage))
        digits = ROUNDING * torch.finfo(size.dtype).eps
        wide = digits * (middle.abs() + torch.maximum(low.abs(), high.abs()))
        return middle + low - wide, middle + high + wide

    def beside(self, features: Tensor) -> Tensor:
        """(r, c, 2) values, and sizes."""
        values = self.model(features)
        return torch.stack([values, self.sizes(features, values).to(values)], 2)


@dataclass(frozen=True)
class ConformalBars(ErrorBars):
    """From residuals of rows that the model did not learn from."""

    intervals: Intervals

    def sizes(self, features: Tensor, values: Tensor) -> Tensor:
        return self.intervals.spread(self.model, features, values)

    def limits(self, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        return self.intervals.limits(coverage)

    @property
    def deviation(self) -> np.ndarray:
        return self.intervals.deviation

    def draw(self, rows: int, count: int, generator: np.random.RandomState) -> np.ndarray:
        w = self.intervals.w
        drawn = generator.choice(len(w), size=(rows, count), p=w / w.sum())
        return self.intervals.scores[drawn].transpose(0, 2, 1)


@dataclass(frozen=True)
class NormalBars(ErrorBars):
    """Of a Gaussian process: sizes are standard deviations."""

    def sizes(self, features: Tensor, values: Tensor) -> Tensor:
        return self.model.std(features)

    def limits(self, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        wide = np.array([norm.ppf(0.5 + check_coverage(coverage) / 2)])
        return -wide, wide

    @property
    def deviation(self) -> np.ndarray:
        return np.ones(1)

    def draw(self, rows: int, count: int, generator: np.random.RandomState) -> np.ndarray:
        return generator.standard_normal((rows, self.model.alpha.shape[1], count))


def error_bars(model: KernelModel, intervals: Intervals | None) -> ErrorBars | None:
    """Those that a model has, if it has any."""
    if model.process is not None:
        return NormalBars(model)
    return None if intervals is None else ConformalBars(model, intervals)


def no_error_bars() -> InputError:
    return InputError(
        "this model has no error bars: there were too few rows that it did not learn from; fit it"
        " again with validation_fraction=0.1, or with uncertainty='posterior'."
    )
