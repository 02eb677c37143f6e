"""A first look at a data file, in milliseconds and without torch: how many rows, which columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Glance:
    """`rows` may be an estimate; None where only reading would tell. Of a file that cannot
    be opened nothing is known."""

    where: str
    bytes: int | None = None
    rows: int | None = None
    about: bool = False
    columns: int | None = None

    def __str__(self) -> str:
        if self.bytes is None:
            return self.where
        size = (
            f"{self.bytes / 2**30:.1f} GiB"
            if self.bytes >= 2**30
            else f"{max(1, self.bytes >> 10):,} KiB"
        )
        parts = [] if self.rows is None else [f"{'about ' if self.about else ''}{self.rows:,} rows"]
        parts += [] if self.columns is None else [f"{self.columns:,} columns"]
        return f"{self.where}: {' × '.join(parts) + ', ' if parts else ''}{size}"


def glance(path: Path) -> Glance:
    """What can be seen at once. Never fails: errors are said when the file is opened for good."""
    from ..data.formats import peek

    try:
        files = [p for p in sorted(path.rglob("*")) if p.is_file()] if path.is_dir() else [path]
        found = Glance(str(path), sum(os.path.getsize(p) for p in files))
        seen = peek(path)
        found.rows, found.columns, found.about = seen.rows, seen.columns, seen.estimated
        return found
    except Exception:  # whatever is wrong with it
        return Glance(str(path))


def npz_shapes(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the arrays in it."""
    from ..data.formats.npy import npz_shapes

    return npz_shapes(path)
