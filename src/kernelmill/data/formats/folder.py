"""Folders of data files: shards of one table, one below the other in the order of their names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...errors import DataFileError
from ..files import suffix_of
from ..joined import Joined
from ..tables import Table
from .base import Format, Kinds, Peek, choose, open_path, suffixes_of

log = logging.getLogger("kernelmill")


def folders_of(formats: Sequence[Format]) -> Format:
    """The format of folders with files of these formats."""
    return Format("folders", partial(_open, formats), partial(_peek, formats), takes=_is_folder)


def _is_folder(X: object) -> bool:
    return isinstance(X, Path) and X.is_dir()


def _open(formats: Sequence[Format], folder: Path, limit: int, kinds: Kinds) -> Table:
    where, files = repr(str(folder)), _files(folder)
    expected = suffixes_of(formats)
    known = [path for path in files if suffix_of(path) in expected]
    if not known:
        raise DataFileError(
            f"{where} is an empty folder, or has no data files; expected some of"
            f" {', '.join(expected)}."
        )
    if len(known) < len(files):
        log.warning("%s: %d files are not data, and are left out", where, len(files) - len(known))
    format = _only(formats, known)
    if format is not None and format.open_shards is not None:
        return format.open_shards(known, where, limit)
    return Joined([open_path(formats, path, limit // len(known), kinds) for path in known], where)


def _files(folder: Path) -> list[Path]:
    """All in it, but those that are hidden, or in a hidden folder."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def _only(formats: Sequence[Format], files: list[Path]) -> Format | None:
    """The format that all files are of."""
    found = {format.name: format for format in (choose(formats, path) for path in files)}
    return next(iter(found.values())) if len(found) == 1 else None


def _peek(formats: Sequence[Format], folder: Path) -> Peek:
    """Only of formats that join their shards: it is written in each how many rows it has."""
    files = [path for path in _files(folder) if suffix_of(path) in suffixes_of(formats)]
    format = _only(formats, files)
    if format is None or (len(files) > 1 and format.open_shards is None):
        return Peek()
    seen = [format.peek(path) for path in files]
    rows = [each.rows for each in seen if each.rows is not None]
    return Peek(sum(rows), seen[-1].columns, any(each.estimated for each in seen))
