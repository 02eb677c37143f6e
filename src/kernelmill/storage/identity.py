"""What makes two runs the same: settings, sizes and checksums of the data, as short texts."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

# All that runs had before they had fingerprints of all data.
OLD = ("targets of checksum", "weights of checksum", "rows of checksum")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Settings that older runs do not name, as they were then: of solvers and kernels, and of fits.
SINCE = (", loss='square'", ", features=None", ", how=None")
DEFAULTS = {
    "feature_learning": "'auto'",
    "ensemble": "'auto'",
    "scoring": "None",
    "uncertainty": "'conformal'",
}


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def identity(values: Mapping[str, object], y: Tensor, w: Tensor, X: Tensor) -> dict[str, str]:
    """What must be the same for a run to go on: settings as they are written, and checksums of
    the targets and of some rows.
    """
    found = {name: describe(value) for name, value in values.items()}
    return found | dict(zip(OLD, (_sum(y), _sum(w), _sum(X)), strict=True))


def describe(value: object) -> str:
    """A setting, the same text in every process."""
    array = getattr(value, "shape", None) and hasattr(value, "__array__")
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if array:
        return f"an array of checksum {_sum(torch.as_tensor(value))}"
    text = ADDRESS.sub("", repr(value))
    for setting in SINCE:
        text = text.replace(setting, "")
    return text


def _sum(values: Tensor) -> str:
    flat = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{zlib.crc32(flat.numpy().tobytes()):08x}"
