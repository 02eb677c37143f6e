"""Where (X, y) comes from: arrays in memory, and tables in files that are streamed, encoded and
prefetched."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import dates, kinds
    from .columns import Columns
    from .encoder import Encoder, matrix
    from .fitting import learn
    from .formats import is_table, opened
    from .formats.torch import shuffled
    from .prints import Account, checksum
    from .source import ArraySource, Batch, Source, StreamSource, copy_ahead, source_of, within
    from .stream import Stream
    from .tables import Table

# Where each name lives. They are imported when they are first used: a first look at a file is to
# come before torch, which takes seconds.
_HOMES = {
    "Account": "prints",
    "ArraySource": "source",
    "Batch": "source",
    "Columns": "columns",
    "Encoder": "encoder",
    "Source": "source",
    "Stream": "stream",
    "StreamSource": "source",
    "Table": "tables",
    "checksum": "prints",
    "copy_ahead": "source",
    "is_table": "formats",
    "learn": "fitting",
    "matrix": "encoder",
    "opened": "formats",
    "shuffled": "formats.torch",
    "source_of": "source",
    "within": "source",
}

__all__ = [
    "Account",
    "ArraySource",
    "Batch",
    "Columns",
    "Encoder",
    "Source",
    "Stream",
    "StreamSource",
    "Table",
    "checksum",
    "copy_ahead",
    "dates",
    "is_table",
    "kinds",
    "learn",
    "matrix",
    "opened",
    "shuffled",
    "source_of",
    "within",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
