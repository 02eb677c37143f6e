"""Files that are whole or not there: written aside, to the disk, then renamed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import writing

WRITING = ".kernelmill-"  # begins the name of a file that is not whole yet


@contextmanager
def aside(path: str | os.PathLike) -> Iterator[Path]:
    """A name beside a file: what is written there takes its place when it is whole.

    A device or a pipe is written to as it is, a link stays one, and a file keeps its mode.
    """
    target = Path(os.path.realpath(path))
    with writing(path):
        if target.exists() and not target.is_file():
            yield target
            return
        beside = new_file(target)
        try:
            yield beside
            keep_mode(beside, target)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)


def new_file(target: Path) -> Path:
    """An empty file beside this one, of a name that nobody has, and no more open to others than it
    is.
    """
    mode = stat.S_IMODE(target.stat().st_mode) | stat.S_IWUSR if target.exists() else 0o666
    # A name as long as the target's may be too long.
    path = target.with_name(f"{WRITING}{secrets.token_hex(8)}{target.suffix[-16:]}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    return path


def keep_mode(path: Path, target: Path) -> None:
    """Give a file the mode of the one that it is to replace."""
    if target.exists():
        os.chmod(path, stat.S_IMODE(target.stat().st_mode))


def write_file(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
