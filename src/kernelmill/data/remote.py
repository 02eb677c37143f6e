"""Data behind a URL: fetched once through fsspec, into a temporary folder that goes with its last
table.

A fit reads its data several times and in random windows; from a copy it does so like any file's.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ..errors import DataFileError, InputError, OutputError, require_package
from .files import room

URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/{1,2}(?=[^/])")  # a Path has one slash of the two


class Copy:
    """A temporary folder with what a URL named. It is removed with this object, at the latest when
    the process ends."""

    def __init__(self, url: str, name: str):
        self.url = url
        folder = Path(tempfile.mkdtemp(prefix="kernelmill-"))
        self.path = folder / name
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


def is_url(X: str | os.PathLike) -> bool:
    return "://" in str(X) or (URL.match(str(X)) is not None and not os.path.exists(X))


def fetch(X: str | os.PathLike) -> Copy:
    """A file, or a folder with all in it."""
    url = str(X) if "://" in str(X) else URL.sub(r"\1://", str(X), count=1)
    fsspec = require_package("fsspec", "remote")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(
            f"{url!r} needs another package ({error}); install it: for https and s3, pip install"
            " 'kernelmill[remote]'."
        ) from None
    except ValueError as error:
        raise InputError(f"{url!r} cannot be opened ({error}); check how it begins.") from None
    try:
        copy = Copy(url, PurePosixPath(urlsplit(path).path).name or "data")
        with room():
            system.get(path, str(copy.path), recursive=system.isdir(path))
    except (OutputError, MemoryError):
        raise
    except FileNotFoundError:
        raise DataFileError(f"{url!r} does not exist; check the address.") from None
    except Exception as error:  # whatever the server, or the package that speaks to it, says
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataFileError(
            f"{url!r} cannot be fetched ({said}); check the address and your permissions."
        ) from None
    return copy
