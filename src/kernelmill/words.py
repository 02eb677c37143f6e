"""Words for people, beside the results."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import IO, Any, cast


class _Aside:
    """Standard error, which loses words rather than ends a run: its file's disk may be full, its reader gone."""

    def __init__(self) -> None:
        self._stream = sys.stderr

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def aside() -> IO[str]:
    """Where words for people go."""
    return cast(IO[str], _Aside())
