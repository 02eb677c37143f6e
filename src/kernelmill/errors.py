"""The errors a user can meet.

Each message is one sentence: what was given, what was expected, what to do.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType

from .words import visible

PACKAGE = str(Path(__file__).parent)
BETWEEN = ("contextlib", "functools", "torch", "sklearn", "joblib")  # that may call this library


class KernelmillError(Exception):
    """Base of every error raised on purpose by this library."""

    def __str__(self) -> str:
        # It may name columns and labels, which others have written.
        return visible(super().__str__())


class InputError(KernelmillError, ValueError):
    """An argument or the data cannot be used as given."""


class DataFileError(KernelmillError, ValueError):
    """A data file is missing, damaged, or holds what cannot be trained on."""


class CheckpointError(KernelmillError, ValueError):
    """A checkpoint cannot be resumed: it is damaged, or of other data or settings."""


class OutputError(KernelmillError, OSError):
    """A file or folder cannot be written: no space, no permission, a name that is too long."""

    def __str__(self) -> str:
        # The sentence alone, without the number of the error.
        return visible(self.strerror) if self.strerror else super().__str__()


class NoFolderError(OutputError, FileNotFoundError):
    """There is no folder to write to."""


class NoPermissionError(OutputError, PermissionError):
    """This user may not write there."""


class OutOfMemory(KernelmillError, MemoryError):
    """Memory ran out, and less of it would not do."""


class RankError(KernelmillError, RuntimeError):
    """Another process of the same job is gone, or cannot be reached."""


class ModelFileError(KernelmillError, ValueError):
    """A model folder is missing, damaged, foreign or newer than this library."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch on a GPU or torch on the CPU ran out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "DefaultCPUAllocator" in str(error)


def one_of(argument: str, given: object, allowed: list[str]) -> InputError:
    """The message for an unknown name, with the nearest known one first."""
    from difflib import get_close_matches

    near = get_close_matches(str(given), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(
        f"{argument}={given!r} is not known: expected one of {', '.join(map(repr, allowed))}.{hint}"
    )


def no_column(flag: str, name: str, where: str, names: list[str]) -> InputError:
    """The message for a column that a table does not have, with the nearest one last."""
    from difflib import get_close_matches

    lower = {other.lower(): other for other in names}
    near = get_close_matches(name.lower(), lower, n=1)
    hint = f" Did you mean {lower[near[0]]!r}?" if near else ""
    listed = ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" * (len(names) > 12))
    return InputError(f"{flag} {name!r} is not a column of {where}, which has {listed}.{hint}")


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def unwritable(error: OSError, path: object = None) -> OutputError:
    """What kept a file or folder from being written, as one sentence."""
    where = path or error.filename
    what = "the output" if where is None else repr(str(where))
    why = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    todo = (
        "free some space or choose another place"
        if error.errno in NO_SPACE
        else "choose another place"
    )
    kind = (
        NoFolderError
        if isinstance(error, FileNotFoundError)
        else NoPermissionError
        if isinstance(error, PermissionError)
        else OutputError
    )
    return kind(error.errno, f"{what} cannot be written ({why}); {todo}.")


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Whatever the system says against writing to this path becomes one sentence about it."""
    try:
        yield
    except KernelmillError:
        raise
    except OSError as error:
        raise unwritable(error, path) from None


def require_package(package: str, extra: str) -> ModuleType:
    """An optional package, or the error that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(
            f"this needs {package.split('.')[0]}: pip install 'kernelmill[{extra}]'."
        ) from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning that points at the user's own line, however deep in this library it is raised."""
    level = 1
    while (frame := sys._getframe(level)).f_back is not None and _is_inside(frame):
        level += 1
    warnings.warn(visible(message), category, stacklevel=level + 1)


def _is_inside(frame: FrameType) -> bool:
    """Whether a frame is of this library, or of one between it and the user, as a grid search."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in BETWEEN or frame.f_code.co_filename.startswith(PACKAGE)
