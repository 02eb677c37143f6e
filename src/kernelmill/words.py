"""Where words for people go: standard error, beside the results."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import IO, cast


class _Aside:
    """Standard error that drops what cannot be written: a full disk under its file, or a reader
    that is gone, must not end a run."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def aside() -> IO[str]:
    """Standard error for words that may be lost."""
    return cast(IO[str], _Aside())
