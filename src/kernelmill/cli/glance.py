"""A first look at a data file, in milliseconds and without torch: how many rows, which columns."""

from __future__ import annotations

import gzip
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SAMPLE = 1 << 18  # bytes of a text file from which its rows are estimated
Shape = tuple[int, ...]


@dataclass
class Glance:
    """`rows` may be an estimate; None where only reading would tell."""

    where: str
    bytes: int
    rows: int | None = None
    about: bool = False
    columns: int | None = None

    def __str__(self) -> str:
        size = f"{max(1, self.bytes >> 10):,} KiB"
        if self.bytes >= 2**30:
            size = f"{self.bytes / 2**30:.1f} GiB"
        parts = []
        if self.rows is not None:
            parts.append(f"{'about ' if self.about else ''}{self.rows:,} rows")
        if self.columns is not None:
            parts.append(f"{self.columns:,} columns")
        return f"{self.where}: {' × '.join(parts) + ', ' if parts else ''}{size}"


def glance(path: Path) -> Glance:
    """What can be seen at once. Never fails: errors are said when the file is opened for good."""
    try:
        files = [p for p in sorted(path.rglob("*")) if p.is_file()] if path.is_dir() else [path]
        found = Glance(str(path), sum(os.path.getsize(p) for p in files))
        if len(files) == 1 or all(p.suffix == ".parquet" for p in files):
            for file in files:
                rows, found.columns, about = _shape(file)
                found.rows, found.about = (found.rows or 0) + rows, found.about or about
        return found
    except Exception:  # whatever is wrong with it
        return Glance(str(path), 0)


def _shape(path: Path) -> tuple[int, int, bool]:
    name = path.name.lower()
    if name.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz")):
        return _shape_of_text(path)
    if name.endswith((".parquet", ".pq")):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as parquet:
            return parquet.metadata.num_rows, parquet.metadata.num_columns, False
    if name.endswith((".h5", ".hdf5")):
        import h5py

        with h5py.File(path, "r") as group:
            return _largest([item.shape for item in group.values() if hasattr(item, "shape")])
    if name.endswith(".npz"):
        return _largest([shape for _, shape in npz_shapes(path)])
    if name.endswith(".npy"):
        with open(path, "rb") as file:
            return _largest([_header(file)])
    raise ValueError(name)


def _shape_of_text(path: Path) -> tuple[int, int, bool]:
    packed = path.name.lower().endswith(".gz")
    with (gzip.open if packed else open)(path, "rb") as file:
        text = file.read(SAMPLE)
    rows, whole = text.count(b"\n"), len(text) < SAMPLE
    if not whole:
        rows = round(rows * os.path.getsize(path) / len(text) * (4 if packed else 1))
    elif text.endswith(b"\n"):
        rows = max(0, rows - 1)
    header = text.split(b"\n", 1)[0]
    return rows, 1 + max(header.count(mark) for mark in (b",", b"\t", b";", b"|")), not whole


def _largest(shapes: list[Shape]) -> tuple[int, int, bool]:
    """Rows of the largest array, and columns of all that have as many rows."""
    widths = [shape[1] if len(shape) > 1 else 1 for shape in shapes]
    rows = max(zip(shapes, widths, strict=True), key=lambda pair: pair[0][0] * pair[1])[0][0]
    same = (width for shape, width in zip(shapes, widths, strict=True) if shape[0] == rows)
    return rows, sum(same), False


def npz_shapes(path: Path) -> list[tuple[str, Shape]]:
    """(name, shape) of the arrays in it."""
    with zipfile.ZipFile(path) as archive:
        out = []
        for name in archive.namelist():
            with archive.open(name) as file:
                out.append((name.removesuffix(".npy"), _header(file)))
        return out


def _header(file: IO[bytes]) -> Shape:
    """The shape that an .npy file says it has."""
    from numpy.lib import format as npy

    read = npy.read_array_header_2_0
    if npy.read_magic(file) == (1, 0):
        read = npy.read_array_header_1_0
    return read(file)[0]
