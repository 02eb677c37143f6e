"""The user's rows at the door: looked through, refused where they cannot be trained on, split and merged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from ..data import Source
from ..errors import InputError, InputTypeError

MERGE_ROWS = 10_000  # up to here rows that coincide are merged into one of their joint weight


class Units(NamedTuple):
    """What is taken off the targets, and what they are then divided by, (c,) each: a solver sees numbers of mean 0 and deviation 1.

    `scatter` is what merging rows of the same X took off Σ w y², in these units; None where nothing was merged.
    """

    mean: Tensor
    scale: Tensor
    scatter: Tensor | None = None

    @classmethod
    def of(cls, mean: Tensor) -> Units:
        """Targets that are used in their own unit: those of classes."""
        return cls(mean, torch.ones_like(mean))


def units_of(Y: Tensor, w: Tensor, keep: Tensor) -> Units:
    """Weighted mean and deviation of each output over these rows, in float64. Every output counts alike in its own unit, and none is so
    large or small that float32 loses it. Twice through the rows: a deviation from sums of squares would lose its digits."""
    total = w[keep].sum()
    mean = sum((w[part, None] * Y[part].double()).sum(0) for part in keep.split(1 << 20)) / total
    largest = torch.stack([(Y[part].double() - mean).abs().amax(0) for part in keep.split(1 << 20)]).amax(0)
    varies = largest > 1e-14 * mean.abs()  # what is left is not only the rounding of the mean
    largest = torch.where(varies & (largest > 0), largest, 1.0)
    parts = ((w[part, None] * ((Y[part].double() - mean) / largest) ** 2).sum(0) for part in keep.split(1 << 20))
    return Units(mean, largest * torch.where(varies, (sum(parts) / total).sqrt(), 1.0))


def split_rows(rows: Tensor, out: np.ndarray | None) -> tuple[Tensor, Tensor | None]:
    """`rows` without those at the places `out`, and those."""
    if out is None:
        return rows, None
    mask = torch.ones(len(rows), dtype=torch.bool)
    mask[out] = False
    return rows[mask], rows[~mask]


def stratified(order: np.ndarray, labels: np.ndarray, fraction: float) -> np.ndarray:
    """This share of the rows of each class, rounded so that the sum is right too; the last row of a class is never among them."""
    counts = np.bincount(labels)
    ends = np.floor(np.cumsum(fraction * counts) + 0.5).astype(np.int64)
    shares = np.minimum(np.diff(ends, prepend=0), np.maximum(counts - 1, 0))
    small = labels.astype(np.int16) if len(counts) < 2**15 else labels  # sorted by counting, not by comparing
    by_class = order[np.argsort(small[order], kind="stable")]
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_class[place < np.repeat(shares, counts)]


def checked_weights(w: Tensor, argument: str) -> Tensor:
    if not torch.isfinite(w).all() or (w < 0).any() or not (w > 0).any():
        raise InputError(f"{argument} must be finite and not negative, and not all zero: a weight of zero leaves its row out.")
    return w


def largest_of(X: Tensor) -> float:
    """The largest |x|; NaN or infinity where there is one. One pass over X, with all cores, and no copy of it."""
    if not X.numel():
        return 0.0
    if X.dtype in (torch.float16, torch.bfloat16) and not X.is_cuda:
        # As whole numbers: without their sign bits, half-precision numbers are in the order of their bits, infinity and NaN last.
        chunks = X.reshape(-1).view(torch.int16).split(1 << 24)
        bits = max(int(torch.bitwise_and(chunk, 0x7FFF).amax()) for chunk in chunks)
        return torch.tensor(bits, dtype=torch.int16).view(X.dtype).item()
    low, high = torch.aminmax(X)
    return max(abs(low.item()), abs(high.item()))


def too_large(largest: float, dtype: np.dtype, argument: str) -> None:
    """Refuse values whose squares overflow: distances and losses would be infinite."""
    if largest > 1e-3 * float(np.finfo(max(dtype, np.dtype(np.float32))).max) ** 0.5:
        raise InputError(f"{argument} has values up to {largest:.1e}, whose squares overflow; rescale it first.")


def constant_features(source: Source, centers: Tensor | None) -> dict[int, float]:
    """The features that are the same in every row, and in the user's own centers, with their values. Nearly always a few rows tell: only
    for features that are alike there all are read."""
    first = source.some(1000).X
    first = first if centers is None else torch.cat([first, centers.to(first)])
    low, high = first.amin(0), first.amax(0)
    for batch in source.sweep(65_536) if not bool((low < high).all()) else ():
        low, high = torch.minimum(low, batch.X.amin(0).to(low)), torch.maximum(high, batch.X.amax(0).to(high))
        if bool((low < high).all()):
            break
    return {i: low[i].item() for i in torch.nonzero(low == high).flatten().tolist()}


def still_constant(known: dict[int, float], rows: Tensor) -> dict[int, float]:
    """Those of these features that do not vary in new rows either."""
    return {i: value for i, value in known.items() if bool((rows[:, i] == value).all())}


def merge(X: Tensor, Y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the same X become one: weights add up, targets are averaged. The least-squares problem is the same, K(X,X) is not
    singular, leaving one out leaves out its copies too, and a weight of k is k copies. Rows come back sorted, zero weights gone."""
    keep = w > 0
    X, Y, w = X[keep], Y[keep], w[keep]
    X = X.cpu().float() if X.dtype == torch.bfloat16 else X.cpu()
    unique, inverse = np.unique(X.numpy(), axis=0, return_inverse=True)
    group = torch.from_numpy(np.asarray(inverse).reshape(-1))
    weight = torch.zeros(len(unique), dtype=torch.float64).index_add_(0, group, w)
    total = torch.zeros(len(unique), Y.shape[1], dtype=torch.float64).index_add_(0, group, w[:, None] * Y.double())
    return torch.from_numpy(unique), total / weight[:, None], weight


def squares(Y: Tensor, w: Tensor, units: Units) -> Tensor:
    """(c,) Σ w y² of targets in their units: merging rows takes off it how much the targets of equal rows differ."""
    return (w[:, None].double() * ((Y.double() - units.mean) / units.scale) ** 2).sum(0)


def refuse_sparse(X: Any) -> None:
    if issparse(X):
        raise InputTypeError(
            "Sparse data was passed for X, but dense data is required: use X.toarray(), or reduce it first, for example with TruncatedSVD."
        )


def texts_of(X: Any) -> list[str]:
    """The columns of a data frame that are not numbers."""
    if not hasattr(X, "iloc"):
        return [str(name) for name, kind in zip(X.columns, X.dtypes, strict=True) if not kind.is_numeric()]
    numeric = [getattr(dtype, "kind", "O") in "biuf" or _all_numbers(X.iloc[:, i]) for i, dtype in enumerate(X.dtypes)]
    return [str(name) for name, good in zip(X.columns, numeric, strict=True) if not good]


def _all_numbers(column: Any) -> bool:
    try:
        np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return getattr(column.dtype, "kind", "O") == "O" and str(column.dtype) != "category"


def on_host(*parts: Any) -> list[Any]:
    """Tensors as numpy arrays, everything else as it is: scikit-learn's scores know no GPU."""
    numbers = [part.float() if isinstance(part, Tensor) and part.dtype == torch.bfloat16 else part for part in parts]
    return [part.detach().cpu().numpy() if isinstance(part, Tensor) else part for part in numbers]
