"""Where words for people go, standard error, beside the results; and what a terminal is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters, overrides of the direction of writing, and surrogates: a terminal would obey
# them instead of showing them.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


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


def visible(text: str) -> str:
    """The text with control characters written out, as \\x1b; line breaks and tabs stay."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that shows control characters instead of obeying them: names in data and models
    are written by others."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)
