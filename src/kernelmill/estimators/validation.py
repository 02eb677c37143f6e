"""The user's rows at the door: looked through, refused where they cannot be trained on, split and
merged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..data.bounds import INSTEAD, find_bounds, sampled
from ..errors import InputError
from ..types import DataLike


def split_rows(rows: Tensor, out: np.ndarray | None) -> tuple[Tensor, Tensor | None]:
    """`rows` without those at the places `out`, and those."""
    if out is None:
        return rows, None
    mask = torch.ones(len(rows), dtype=torch.bool)
    mask[out] = False
    return rows[mask], rows[~mask]


def draw_stratified(order: np.ndarray, labels: np.ndarray, fraction: float) -> np.ndarray:
    """This share of the rows of each class, rounded so that the sum is right too; the last row of
    a class is never among them.
    """
    counts = np.bincount(labels)
    ends = np.floor(np.cumsum(fraction * counts) + 0.5).astype(np.int64)
    shares = np.minimum(np.diff(ends, prepend=0), np.maximum(counts - 1, 0))
    # Sorted by counting, not by comparing.
    small = labels.astype(np.int16) if len(counts) < 2**15 else labels
    by_class = order[np.argsort(small[order], kind="stable")]
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return by_class[place < np.repeat(shares, counts)]


def check_weights(sample_weight: DataLike, n: int) -> Tensor:
    """(n,) float64 weights; ones where none were given."""
    if sample_weight is None:
        return torch.ones(n, dtype=torch.float64)
    if isinstance(sample_weight, Tensor):
        sample_weight = sample_weight.detach().cpu().double().numpy()
    try:
        w = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "sample_weight holds something that is not a number, expected a weight of 0 or more for"
            " each row."
        ) from None
    w = np.full(n, w) if w.ndim == 0 else w
    if w.shape != (n,):
        raise InputError(
            f"sample_weight of shape {w.shape} was given, expected ({n},): one weight per row."
        )
    return require_positive_weights(torch.from_numpy(w.copy()), "sample_weight")


def require_positive_weights(w: Tensor, argument: str) -> Tensor:
    if not torch.isfinite(w).all() or (w < 0).any() or not (w > 0).any():
        raise InputError(
            f"{argument} must be finite and not negative, and not all zero: a weight of zero leaves"
            " its row out."
        )
    return w


def largest_of(X: Tensor) -> float:
    """The largest |x|; NaN or infinity where there is one.

    One pass over X, with all cores, and no copy of it.
    """
    if not X.numel():
        return 0.0
    if X.dtype in (torch.float16, torch.bfloat16) and not X.is_cuda:
        # As whole numbers: without their sign bits, half-precision numbers are in the order of
        # their bits, infinity and NaN last.
        chunks = X.reshape(-1).view(torch.int16).split(1 << 24)
        bits = max(int(torch.bitwise_and(chunk, 0x7FFF).amax()) for chunk in chunks)
        return torch.tensor(bits, dtype=torch.int16).view(X.dtype).item()
    low, high = torch.aminmax(X)
    return max(abs(low.item()), abs(high.item()))


def bounds_of(X: Tensor, keep: Tensor) -> np.ndarray | None:
    """(2, d) bounds of the columns, where these rows have fill values: see find_bounds."""
    keep = keep.to(X.device)
    sample = X[keep[:: sampled(len(keep), X.shape[1])]].double().cpu().numpy()

    def blocks(some: np.ndarray) -> Iterator[np.ndarray]:
        columns = torch.from_numpy(some).to(X.device)
        for part in keep.split(1 << 16):
            yield X[part[:, None], columns].double().cpu().numpy()

    names = [f"column {j}" for j in range(X.shape[1])]
    return find_bounds(sample, largest_of(X), blocks, names, "X", INSTEAD)


def refuse_too_large(largest: float, dtype: np.dtype, argument: str) -> None:
    """Refuse values whose squares overflow: distances and losses would be infinite."""
    if largest > 1e-3 * float(np.finfo(max(dtype, np.dtype(np.float32))).max) ** 0.5:
        raise InputError(
            f"{argument} has values up to {largest:.1e}, whose squares overflow; rescale it first."
        )


def not_numbers(X: DataLike) -> list[str]:
    """The columns of a data frame that are not numbers, or not in every row."""
    if not hasattr(X, "iloc"):
        return [
            str(name)
            for name, kind in zip(X.columns, X.dtypes, strict=True)
            if not kind.is_numeric()
        ]
    numeric = [
        _all_numbers(X.iloc[:, i], getattr(dtype, "kind", "O") in "biuf")
        for i, dtype in enumerate(X.dtypes)
    ]
    return [str(name) for name, good in zip(X.columns, numeric, strict=True) if not good]


def _all_numbers(column: DataLike, declared: bool) -> bool:
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    as_they_are = declared or column.dtype == object
    return as_they_are and not np.isnan(values).any()


def to_host(*parts: DataLike) -> list[DataLike]:
    """Tensors as numpy arrays, everything else as it is: scikit-learn's scores know no GPU."""
    numbers = [
        part.float() if isinstance(part, Tensor) and part.dtype == torch.bfloat16 else part
        for part in parts
    ]
    return [part.detach().cpu().numpy() if isinstance(part, Tensor) else part for part in numbers]
