"""Whether numbers can be trained on: there, finite, and not so large that their squares
overflow."""

from __future__ import annotations

import numpy as np

from ..errors import DataFileError


def _largest(values: np.ndarray) -> float:
    return 1e-3 * float(np.finfo(max(values.dtype, np.dtype(np.float32))).max) ** 0.5


def is_clean(values: np.ndarray) -> bool:
    """Whether every value is there, finite and of a usable size: two passes, and no copy. Where
    not, `check_finite` says what is wrong."""
    if not values.size:
        return True
    if values.dtype == np.float16:  # any finite one; numpy would convert each for each comparison
        return bool(((values.view(np.uint16) & 0x7FFF) < 0x7C00).all())
    limit = _largest(values)
    return float(values.max()) <= limit and float(values.min()) >= -limit


def check_finite(values: np.ndarray, names: list[str], where: str) -> None:
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values).all(0))
        what = "infinite values" if not np.isnan(values).any() else "missing or infinite values"
        raise DataFileError(f"{where} has {what} in {_listed(names, bad)}; fix or drop them.")
    limit = _largest(values)
    if values.size and np.abs(values).max() > limit:
        bad = np.flatnonzero(np.abs(values).max(0) > limit)
        raise DataFileError(
            f"{where} has values above {limit:.0e} in {_listed(names, bad)}, whose squares"
            " overflow; rescale them first."
        )


def refuse(lost: np.ndarray, names: list[str], where: str) -> None:
    bad = np.flatnonzero(lost)
    raise DataFileError(
        f"{where} has {int(lost.sum())} missing values, in {_listed(names, bad)}; fill them in, or"
        " set columns=Columns(missing='impute')."
    )


def _listed(names: list[str], places: np.ndarray) -> str:
    return ", ".join(repr(names[i]) for i in places[:5]) + (", …" if len(places) > 5 else "")
