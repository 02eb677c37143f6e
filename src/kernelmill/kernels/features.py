"""Features of columns: how a kernel sees numbers of any scale, with tails, steps and codes.

A feature is one column, shifted and divided, then taken as it is, clipped smoothly, clipped to
0…1, or 1 at one value only. Piecewise linear codes over quantiles count the quantiles between two
rows: the kernel sees order, not scale, and columns of few values become steps, which is what trees
see. A linear map may follow: a metric that was learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import InputError, one_of
from ..params import Settings

TAIL = 3.0  # where smooth clipping ends
# Of a value, or its distance from the median, and of the largest: values nearer than that are one.
NEAR, LEAST = 1e-6, 2e-15
BINS = 16  # of a piecewise linear code, at most
CODES = 32  # values of a column that may be names, at most
FORMS = ("as it is", "smooth", "step", "value")  # by number
ENCODINGS = ("standard", "robust", "quantile", "robust+quantile", "codes")


# By form.
BENDS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t,
    lambda t: t / torch.sqrt(1 + (t / TAIL) ** 2),
    lambda t: t.clamp(0, 1),
    lambda t: 1 - t.abs().clamp(max=1),
)
# Their slopes; where a step or a value begins or ends, the mean of what it is on both sides.
SLOPES: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.ones_like,
    lambda t: (1 + (t / TAIL) ** 2) ** -1.5,
    lambda t: (torch.sign(t) - torch.sign(t - 1)) / 2,
    lambda t: (torch.sign(t + 1) - 2 * torch.sign(t) + torch.sign(t - 1)) / 2,
)


class Feature(NamedTuple):
    """height · bend((x[column] − shift) / width); `form` is the place of its bend in FORMS."""

    column: int
    shift: float
    width: float
    form: int
    height: float = 1.0


@dataclass(eq=False)
class Features(Settings):
    """What a kernel sees of a row: D features, each made of one column, as by `encode_columns`.

    Parameters
    ----------
    column : Tensor
        (D,) the number of the column that each feature is made of.
    shift : Tensor
        (D,) what is subtracted first.
    width : Tensor
        (D,) what is then divided by.
    form : Tensor
        (D,) what becomes of it: 0 as it is, 1 with smoothly clipped tails, 2 a step, 3 one value.
    height : Tensor
        (D,) what the feature is multiplied by.
    map : Tensor, optional
        (D, k) multiplies the features from the right: M = map mapᵀ is the metric of distances.
    """

    column: Tensor
    shift: Tensor
    width: Tensor
    form: Tensor
    height: Tensor
    map: Tensor | None = None
    _there: dict[tuple, Features] = field(default_factory=dict, init=False, repr=False)
    _counts: list[int] = field(default_factory=list, init=False, repr=False)  # of each form

    def __post_init__(self) -> None:
        given = [self.column, self.shift, self.width, self.form, self.height]
        if len({len(part) for part in given}) > 1 or bool((self.form.diff() < 0).any()):
            raise InputError(
                "Features were given in parts of unequal lengths, or not in the order of their"
                " forms; use Features.of([Feature(...), ...])."
            )
        if bool((self.width <= 0).any()) or bool((self.column < 0).any()):
            raise InputError("Features were given with a width of 0 or less, or a column below 0.")
        self._counts = torch.bincount(self.form.cpu(), minlength=len(FORMS)).tolist()

    @classmethod
    def of(cls, features: Iterable[Feature]) -> Features:
        """In the order of their forms, so that each form is one piece."""
        rows = sorted(features, key=lambda feature: feature.form)
        column, shift, width, form, height = zip(*rows, strict=True)
        numbers = (torch.tensor(part, dtype=torch.float64) for part in (shift, width, height))
        shift_, width_, height_ = numbers
        return cls(torch.tensor(column), shift_, width_, torch.tensor(form), height_)

    def get_params(self, deep: bool = True) -> dict[str, Tensor | None]:
        names = ("column", "shift", "width", "form", "height", "map")
        return {name: getattr(self, name) for name in names}

    def __len__(self) -> int:
        """How many numbers a row becomes."""
        return len(self.column) if self.map is None else self.map.shape[1]

    def __repr__(self) -> str:
        learned = "" if self.map is None else f", map to {len(self)}"
        parts = (value for value in self.get_params().values() if value is not None)
        total = sum(value.double().abs().sum().item() for value in parts)  # others have another
        return (
            f"Features({len(self.column)} of {int(self.column.max()) + 1} columns{learned},"
            f" in sum {total:.12g})"
        )

    def same_as(self, other: Features) -> bool:
        """Whether they make the same of every row, before a map."""
        names = ("column", "shift", "width", "form", "height")
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return all(torch.equal(a, b) for a, b in pairs)

    def validate(self, d: int) -> None:
        """Raise unless rows of d columns have what is asked of them."""
        if int(self.column.max()) >= d:
            wanted = int(self.column.max()) + 1
            raise InputError(f"features of {wanted} columns were given, and rows have {d}.")
        if self.map is not None and (self.map.ndim != 2 or len(self.map) != len(self.column)):
            raise InputError(
                f"a map of shape {tuple(self.map.shape)} was given for {len(self.column)} features;"
                " give a row for each."
            )

    def apply(self, X: Tensor) -> Tensor:
        """(r, len) features of rows (r, d), in their precision."""
        own = self._on(X.device, X.dtype)
        made = self.encode(X)
        return made if own.map is None else made @ own.map

    def encode(self, X: Tensor) -> Tensor:
        """(r, D) features before the map."""
        bent = [bend(part) for bend, part in zip(BENDS, self._unbent(X), strict=True)]
        return torch.cat(bent, 1) * self._on(X.device, X.dtype).height

    def unmap(self, G: Tensor) -> Tensor:
        """Gradients (…, D) by features before the map, from those after it."""
        own = self._on(G.device, G.dtype)
        return G if own.map is None else G @ own.map.T

    def chain(self, G: Tensor, X: Tensor) -> Tensor:
        """Gradients (r, …, d) by the columns of rows X, from those (r, …, D) by their features."""
        X = X.to(torch.promote_types(X.dtype, G.dtype))
        own = self._on(X.device, X.dtype)
        slopes = [slope(part) for slope, part in zip(SLOPES, self._unbent(X), strict=True)]
        slope = torch.cat(slopes, 1) * (own.height / own.width)
        slope = slope.view(len(X), *[1] * (G.ndim - 2), -1).to(G)
        out = G.new_zeros(*G.shape[:-1], X.shape[1])
        return out.index_add_(-1, own.column, G * slope)

    def _unbent(self, X: Tensor) -> tuple[Tensor, ...]:
        """Columns shifted and divided, in pieces: a form each."""
        own = self._on(X.device, X.dtype)
        return ((X[:, own.column] - own.shift) / own.width).split(self._counts, 1)

    def with_map(self, map: Tensor) -> Features:
        """The same features, then this map."""
        return Features(self.column, self.shift, self.width, self.form, self.height, map)

    def _on(self, device: torch.device, dtype: torch.dtype) -> Features:
        """The same on a device: copied once, not at every batch."""
        if (device, dtype) not in self._there:
            given = {name: value for name, value in self.get_params().items() if value is not None}
            kinds = {
                name: dtype if value.is_floating_point() else value.dtype
                for name, value in given.items()
            }
            moved = {name: value.to(device, kinds[name]) for name, value in given.items()}
            self._there[device, dtype] = Features(**moved)
        return self._there[device, dtype]


def encode_columns(
    X: ArrayLike | Tensor,
    encoding: str,
    w: Tensor | None = None,
    fixed: Mapping[int, str] | None = None,
) -> Features:
    """Features that let a kernel see columns in another way than as they are.

    A column of two values, or one, is taken as it is, whatever the encoding.

    Parameters
    ----------
    X : array of shape (n, d)
        Rows to learn quantiles and spreads from.
    encoding : str
        "standard", "robust", "quantile", "robust+quantile" or "codes".
    w : Tensor, optional
        Weights of the rows.
    fixed : dict, optional
        Columns, by number, with an encoding of their own.
    """
    fixed = fixed or {}
    for given in (encoding, *fixed.values()):
        if given not in ENCODINGS:
            raise one_of("encoding", given, list(ENCODINGS))
    X = torch.as_tensor(X).double()
    w = X.new_ones(len(X)) if w is None else w
    made: list[Feature] = []
    for j in range(X.shape[1]):
        made += _encode(j, X[:, j], w / w.sum(), fixed.get(j, encoding))
    return Features.of(made)


def _encode(j: int, x: Tensor, w: Tensor, encoding: str) -> list[Feature]:
    mean = (w * x).sum().item()
    spread = (w * (x - mean) ** 2).sum().sqrt().item()
    values = _apart(torch.unique(x))
    if len(values) <= 2 or encoding == "standard":  # of one value, the spread is rounding
        return [Feature(j, mean, (spread or 1.0) if len(values) > 1 else 1.0, 0)]
    if encoding == "codes":
        own = [Feature(j, mean, spread, 0)]
        if len(values) > CODES:
            return own
        gap = (values[1:] - values[:-1]).min().item()
        return own + [Feature(j, value, gap, 3) for value in values.tolist()]
    made: list[Feature] = []
    if "robust" in encoding:
        low, middle, high = _quantiles(x, w, x.new_tensor([0.25, 0.5, 0.75])).tolist()
        made.append(Feature(j, middle, (high - low) or 2 * spread, 1))
    if "quantile" in encoding:
        edges = values
        if len(values) > BINS + 1:
            places = torch.linspace(0, 1, BINS + 1).to(x)
            edges = _apart(torch.unique(_quantiles(x, w, places)))
        made += _steps(j, edges)
    return made


def _apart(values: Tensor) -> Tensor:
    """Of values in order, those that are more than rounding away from the one before."""
    if len(values) < 2:
        return values
    size = torch.minimum(values.abs(), (values - values.median()).abs())
    far = values.diff() > NEAR * size[1:] + LEAST * values.abs().max()
    return values[torch.cat([far.new_ones(1), far])]


def _quantiles(x: Tensor, w: Tensor, places: Tensor) -> Tensor:
    """The least values below or at which so much of the weight lies: a weight of k is k copies."""
    order = torch.argsort(x)
    below = torch.cumsum(w[order], 0)
    at = torch.searchsorted(below, (places * below[-1] - 1e-12).contiguous())
    return x[order][at.clamp(max=len(x) - 1)]


def _steps(j: int, edges: Tensor) -> list[Feature]:
    """A piecewise linear code: a step between each edge and the next."""
    height = 2 / math.sqrt(len(edges) - 1)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [Feature(j, low, high - low, 2, height) for low, high in pairs]
