"""A data format: which files or objects it takes, how they are opened, what is seen of them at
once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import InputError
from ..files import suffix_of
from ..tables import Table, readable

Given: TypeAlias = Any  # a path that exists, or an object of the types that a format takes
Kinds = Mapping[str, str]  # of columns, as they will be wanted; only formats without types use them


@dataclass(frozen=True)
class Peek:
    """The size of a table as far as it is seen without reading it; None for what is not."""

    rows: int | None = None
    columns: int | None = None
    estimated: bool = False


def nothing(X: object) -> bool:
    return False


@dataclass(frozen=True)
class Format:
    """Files of some endings, objects of some types, or both, and the functions that read them.

    `open(X, in_memory, kinds)`: X is a path that exists, or an object. Of data that can only be
    read from front to back, or in large blocks, up to `in_memory` bytes are held; more go to a
    temporary file.
    """

    name: str  # as docs/data.md has it
    open: Callable[[Given, int, Kinds], Table]
    peek: Callable[[Given], Peek]
    suffixes: tuple[str, ...] = ()  # in small letters
    takes: Callable[[object], bool] = nothing
    arrays: bool = False  # whether its objects may also be arrays, which are no tables
    open_shards: Callable[[list[Path], str, int], Table] | None = None  # many files as one table

    def accepts(self, X: object) -> bool:
        """Whether it opens this path, by its ending, or this object."""
        return (isinstance(X, Path) and suffix_of(X) in self.suffixes) or self.takes(X)


def suffixes_of(formats: Sequence[Format]) -> list[str]:
    return [suffix for format in formats for suffix in format.suffixes]


def choose(formats: Sequence[Format], X: object) -> Format:
    """The first format that accepts a path or an object."""
    for format in formats:
        if format.accepts(X):
            return format
    if isinstance(X, Path):
        expected = ", ".join(suffixes_of(formats))
        raise InputError(f"{str(X)!r} has the ending {suffix_of(X)!r}, expected one of {expected}.")
    raise InputError(
        f"a {type(X).__name__} was given as data, expected an array, a table, or the path of a file"
        " or folder."
    )


def open_path(formats: Sequence[Format], path: Path, in_memory: int, kinds: Kinds) -> Table:
    """The table of a file or a folder."""
    with readable(repr(str(path))):
        if not path.exists():
            raise FileNotFoundError
        return choose(formats, path).open(path, in_memory, kinds)


def is_of(X: object, package: str) -> bool:
    """Whether the type of X is one of a package's, which need not be imported for that."""
    return type(X).__module__.split(".")[0] == package
