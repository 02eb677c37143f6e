"""Losses: what a fit makes small, Σ w·loss + λ‖f‖², and what the values f(x) of the model then are.

All are on the scale of the square loss ‖f − y‖². `gradient` is half the derivative, so that the
square loss has f − y, and `curvature` half the second derivative, so that it has 1; the other half
of the ridge's derivative is λf. A solver sees targets less their mean and over their deviation, of
classes one-hot rows less the shares of the classes: `within` gives the loss of those.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from numbers import Real
from typing import ClassVar, Self

import torch
from torch import Tensor

from .data import Source
from .errors import InputError, one_of

DELTA = 0.5  # of the Huber loss, and
WIDTH = 0.1  # of the quantile loss where none is given, in units of the targets' spread
SAMPLE = 10_000  # targets of which spread and best constant are taken, at most


class Values(Enum):
    """What the values of a model are."""

    NUMBERS = "estimates of the targets"
    LOGITS = "logarithms of the classes' probabilities, but for a constant of each row"
    MARGINS = "one for each class, the larger the likelier, and no probabilities"


@dataclass(frozen=True)
class Loss(ABC):
    """A convex loss of values f and targets y, (m, c) each. Settings are fields, in the units of
    the user's targets."""

    name: ClassVar[str]
    values: ClassVar[Values]
    for_numbers: ClassVar[bool] = False
    for_classes: ClassVar[bool] = False
    averages: ClassVar[bool] = True
    """Whether rows of the same x count as one of their mean target, but for a constant."""

    @abstractmethod
    def value(self, f: Tensor, y: Tensor) -> Tensor:
        """(m,) the loss of each row."""

    @abstractmethod
    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """(m, c) half the derivative by f."""

    @abstractmethod
    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """(m, c) half the second derivative by f, times v: how the gradient changes along v."""

    @property
    @abstractmethod
    def largest_curvature(self) -> float:
        """Its upper bound, at any f and y and along any v: steps are divided by it."""

    @abstractmethod
    def usual_curvature(self, source: Source) -> float:
        """The mean curvature where a model predicts a constant: what preconditioners assume."""

    @property
    def is_smooth(self) -> bool:
        return self.largest_curvature < math.inf

    def intercept(self, mean: Tensor, source: Source | None = None) -> Tensor:
        """(c,) what a model adds to K(x, Z) α. `mean` was taken off the targets of `source`."""
        return mean

    def within(self, source: Source, like: Tensor) -> Loss:
        """The same loss of a source's targets and of K(x, Z) α, on the device of `like`."""
        mean = source.mean.double()
        return Shifted(self, self.intercept(mean).to(like), mean.to(like))

    def total(self, f: Tensor, y: Tensor, w: Tensor, e: Tensor, g: Tensor) -> Tensor:
        """Σ w·value, where e, the gradient, and g = w·e are at hand; w is (m, 1)."""
        return torch.sum(w[:, 0] * self.value(f, y))

    def total_of_nothing(self, y: Tensor, w: Tensor) -> Tensor:
        """Σ w·value at f = 0: what a model is worth must be seen beside it."""
        return torch.sum(w[:, 0] * self.value(torch.zeros_like(y), y))


@dataclass(frozen=True)
class Shifted(Loss):
    """A loss whose values and targets are told less a constant of each output."""

    loss: Loss
    f_0: Tensor  # (c,) to be added to the values
    y_0: Tensor  # (c,) to be added to the targets

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return self.loss.value(f + self.f_0, y + self.y_0)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return self.loss.gradient(f + self.f_0, y + self.y_0)

    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.loss.curvature(f + self.f_0, y + self.y_0, v)

    @property
    def largest_curvature(self) -> float:
        return self.loss.largest_curvature

    def usual_curvature(self, source: Source) -> float:
        return self.loss.usual_curvature(source)


# ---- of numbers and of classes


@dataclass(frozen=True)
class Square(Loss):
    """‖f − y‖²: the mean of numbers; of classes, their shares."""

    name = "square"
    values = Values.NUMBERS
    for_numbers = True
    for_classes = True
    largest_curvature = 1.0

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return ((f - y) ** 2).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return f - y

    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v

    def usual_curvature(self, source: Source) -> float:
        return 1.0

    def within(self, source: Source, like: Tensor) -> Loss:
        return self  # the mean falls out of f − y, and a unit of both is the same as one of λ

    def total(self, f: Tensor, y: Tensor, w: Tensor, e: Tensor, g: Tensor) -> Tensor:
        return torch.sum(e * g)

    def total_of_nothing(self, y: Tensor, w: Tensor) -> Tensor:
        return torch.sum(w * y * y)


# ---- of classes


@dataclass(frozen=True)
class Logistic(Loss):
    """−Σ y log softmax(f), the cross-entropy of the classes: f are logarithms of probabilities."""

    name = "logistic"
    values = Values.LOGITS
    for_classes = True
    largest_curvature = 0.25  # (diag p − ppᵀ)/2 has at most 1/4, at two classes of 1/2

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y * torch.log_softmax(f, 1)).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return (torch.softmax(f, 1) - y) / 2

    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(f, 1)
        pv = p * v
        return (pv - p * pv.sum(1, keepdim=True)) / 2

    def usual_curvature(self, source: Source) -> float:
        """Of one output, where all rows have the shares of the classes."""
        p = source.mean
        return max((p * (1 - p)).mean().item(), 1e-3) / 2

    def intercept(self, mean: Tensor, source: Source | None = None) -> Tensor:
        """The logarithms of the shares of the classes, of mean 0."""
        logs = mean.clamp(min=1e-12).log()
        return logs - logs.mean()


@dataclass(frozen=True)
class Hinge(Loss):
    """Σ (1 ∓ f)₊, the sign that of the class: a support vector machine for each class against the
    rest. It is not smooth: `gradient` is a sub-gradient."""

    name = "hinge"
    values = Values.MARGINS
    for_classes = True
    largest_curvature = math.inf

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return (y * (1 - f).clamp(min=0) + (1 - y) * (1 + f).clamp(min=0)).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return ((1 - y) * (f > -1) - y * (f < 1)) / 2

    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(v)

    def usual_curvature(self, source: Source) -> float:
        return math.inf

    def intercept(self, mean: Tensor, source: Source | None = None) -> Tensor:
        return torch.zeros_like(mean)


# ---- of numbers


@dataclass(frozen=True)
class Residual(Loss):
    """A function of u = f − y, of each output by itself. In units of the targets' deviation: so λ
    means the same whatever the unit of y, as it does for the square loss."""

    values = Values.NUMBERS
    for_numbers = True
    averages = False

    @abstractmethod
    def of(self, u: Tensor) -> Tensor:
        """The loss of each residual."""

    @abstractmethod
    def slope(self, u: Tensor) -> Tensor:
        """Half its derivative."""

    @abstractmethod
    def bend(self, u: Tensor) -> Tensor:
        """Half its second derivative."""

    @abstractmethod
    def sized(self, scale: Tensor, spread: Tensor) -> Self:
        """The same for targets that were divided by `scale`, and then have this spread."""

    def value(self, f: Tensor, y: Tensor) -> Tensor:
        return self.of(f - y).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return self.slope(f - y)

    def curvature(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.bend(f - y) * v

    def usual_curvature(self, source: Source) -> float:
        (Y, w), (loss, constant) = sample(source), self._fitted(source)
        mean = (w * loss.bend(constant - Y)).mean().item()
        return max(mean, 1e-3 * loss.largest_curvature)

    def intercept(self, mean: Tensor, source: Source | None = None) -> Tensor:
        """The constant with the least loss."""
        if source is None:
            raise InputError(f"the intercept of the {self.name} loss needs targets; give a source.")
        return mean + (source.scale * self._fitted(source)[1]).to(mean)

    def within(self, source: Source, like: Tensor) -> Loss:
        loss, constant = self._fitted(source)
        moved = {field.name: getattr(loss, field.name) for field in fields(loss)}
        moved = {name: v.to(like) if isinstance(v, Tensor) else v for name, v in moved.items()}
        return Shifted(type(self)(**moved), constant.to(like), torch.zeros_like(constant).to(like))

    def _fitted(self, source: Source) -> tuple[Self, Tensor]:
        """In the source's units, and the constant with the least loss, (c,)."""
        Y, w = sample(source)
        middle = balance(torch.sign, Y, w)
        # The median distance from the median, as a deviation: outliers do not move it.
        spread = 1.4826 * balance(torch.sign, (Y - middle).abs(), w)
        spread = torch.where(spread > 0, spread, (w * (Y - middle) ** 2).mean(0).sqrt())
        loss = self.sized(source.scale.to(Y), torch.where(spread > 0, spread, 1.0))
        return loss, balance(loss.slope, Y, w)


@dataclass(frozen=True)
class Huber(Residual):
    """u² up to |u| = delta, 2·delta·|u| − delta² beyond: nearly the mean, and outliers do not move
    it.

    Parameters
    ----------
    delta : float, optional
        In the units of y. None: half the spread of the targets.
    """

    delta: float | Tensor | None = None
    name = "huber"
    largest_curvature = 1.0

    def __post_init__(self) -> None:
        check_positive("delta", self.delta)

    def of(self, u: Tensor) -> Tensor:
        a = self.slope(u)
        return a * (2 * u - a)

    def slope(self, u: Tensor) -> Tensor:
        delta = known(self.delta, DELTA, u)
        return u.clamp(-delta, delta)

    def bend(self, u: Tensor) -> Tensor:
        return (u.abs() <= known(self.delta, DELTA, u)).to(u)

    def sized(self, scale: Tensor, spread: Tensor) -> Huber:
        return Huber(DELTA * spread if self.delta is None else self.delta / scale)


@dataclass(frozen=True)
class Quantile(Residual):
    """The pinball loss −quantile·u for u < 0, (1 − quantile)·u above, made smooth: its kink is a
    parabola for |u| ≤ width. So f is a quantile of the targets with an error of ±width added.

    Parameters
    ----------
    quantile : float
        Between 0 and 1: 0.9 is the value that nine of ten targets stay below.
    width : float, optional
        In the units of y. None: a tenth of the spread of the targets. The narrower, the shorter are
        the steps: the largest curvature is 1/(4·width).
    """

    quantile: float = 0.5
    width: float | Tensor | None = None
    name = "quantile"

    def __post_init__(self) -> None:
        q = self.quantile
        if isinstance(q, bool) or not isinstance(q, Real) or not 0 < q < 1:
            raise InputError(f"quantile={q!r} was given, expected a number between 0 and 1.")
        check_positive("width", self.width)

    def of(self, u: Tensor) -> Tensor:
        h = known(self.width, WIDTH, u)
        a = u.clamp(-h, h)
        return (a + h) ** 2 / (4 * h) + (u - a).clamp(min=0) - self.quantile * u

    def slope(self, u: Tensor) -> Tensor:
        h = known(self.width, WIDTH, u)
        return ((u.clamp(-h, h) + h) / (2 * h) - self.quantile) / 2

    def bend(self, u: Tensor) -> Tensor:
        h = known(self.width, WIDTH, u)
        return (u.abs() <= h) / (4 * h)

    @property
    def largest_curvature(self) -> float:
        if isinstance(self.width, Tensor):
            return 1 / (4 * self.width.min().item())
        return 1 / (4 * (self.width or WIDTH))

    def sized(self, scale: Tensor, spread: Tensor) -> Quantile:
        width = WIDTH * spread if self.width is None else self.width / scale
        return replace(self, width=width)


def known(value: float | Tensor | None, default: float, like: Tensor) -> Tensor:
    """A setting, or its default for targets of spread 1."""
    used = default if value is None else value
    return torch.as_tensor(used, dtype=like.dtype, device=like.device)


def check_positive(name: str, value: object) -> None:
    if value is None or isinstance(value, Tensor):
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        expected = "a number above 0, or None to have it chosen"
        raise InputError(f"{name}={value!r} was given, expected {expected}.")


def sample_rows(source: Source) -> Tensor:
    """Numbers of rows from all over the data."""
    rows = torch.linspace(0, source.n - 1, min(source.n, SAMPLE), dtype=torch.float64)
    return rows.round().long()


def sample(source: Source) -> tuple[Tensor, Tensor]:
    """Targets of rows from all over the data, in float64, and their weights, (r, 1) of mean 1."""
    Y, w = source.targets(sample_rows(source))
    return Y.double(), (w.double() / w.double().mean())[:, None]


def balance(slope: Callable[[Tensor], Tensor], Y: Tensor, w: Tensor) -> Tensor:
    """(c,) the constant a with Σ w·slope(a − Y) = 0, by bisection; `slope` rises."""
    low, high = Y.amin(0), Y.amax(0)
    for _ in range(60):
        middle = (low + high) / 2
        above = (w * slope(middle - Y)).sum(0) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


# ---- by name

EVERY: tuple[type[Loss], ...] = (Square, Logistic, Hinge, Huber, Quantile)
NAMED = {loss.name: loss for loss in EVERY}

Given = Loss | str | dict[str, object]
"""A loss as it is given to a solver: an object, a name, or a table such as {name = "huber"}."""


def resolve(loss: Given) -> Loss:
    """A loss object from a name, an object, or a table with a name and settings."""
    if isinstance(loss, Loss):
        return loss
    table = {"name": loss} if isinstance(loss, str) else loss
    if not isinstance(table, Mapping) or "name" not in table:
        expected = "a name, or an object such as losses.Huber(delta=1.0)"
        raise InputError(f"loss={loss!r} was given, expected {expected}.")
    settings = dict(table)
    name = str(settings.pop("name"))
    if name not in NAMED:
        raise one_of("loss", name, [*NAMED])
    allowed = [field.name for field in fields(NAMED[name])]
    for setting in settings:
        if setting not in allowed:
            raise one_of(f"{name} setting", setting, allowed)
    return NAMED[name](**settings)


def plain(loss: Given) -> str | dict[str, object]:
    """The same as JSON has it, from which `resolve` makes it again."""
    if not isinstance(loss, Loss):
        return loss
    return {"name": loss.name, **asdict(loss)}
