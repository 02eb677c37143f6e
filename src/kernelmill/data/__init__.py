"""Where (X, y) comes from: arrays in memory, and tables in files that are streamed, encoded and prefetched."""

from . import dates, kinds
from .columns import Columns, Encoder, learn, matrix
from .files import is_table, opened, shuffled
from .prints import Account, checksum
from .source import ArraySource, Batch, Source, StreamSource, copied_ahead, source_of
from .stream import Stream
from .tables import Table

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
    "copied_ahead",
    "dates",
    "is_table",
    "kinds",
    "learn",
    "matrix",
    "opened",
    "shuffled",
    "source_of",
]
