"""The errors a user can meet. Each message is one sentence: what was given, what was expected, what to do."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent)


class KernelmillError(Exception):
    """Base of every error raised on purpose by this library."""


class InputError(KernelmillError, ValueError):
    """An argument or the data cannot be used as given."""


class InputTypeError(KernelmillError, TypeError):
    """An argument is of a kind that is not taken at all (a sparse matrix, say)."""


class DataFileError(KernelmillError, ValueError):
    """A data file is missing, damaged, or holds what cannot be trained on."""


class CheckpointError(KernelmillError, ValueError):
    """A checkpoint cannot be gone on from: damaged, of other data, or of other settings."""


class RankError(KernelmillError, RuntimeError):
    """Another process of the same job is gone, or cannot be reached."""


class ModelFileError(KernelmillError, ValueError):
    """A model folder is missing, damaged, foreign or newer than this library."""


def one_of(argument: str, given: object, allowed: list[str]) -> InputError:
    """The message for an unknown name, with the nearest known one first."""
    from difflib import get_close_matches

    near = get_close_matches(str(given), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"{argument}={given!r} is not known: expected one of {', '.join(map(repr, allowed))}.{hint}")


def needed(package: str, extra: str) -> Any:
    """An optional package, or the error that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise InputError(f"this needs {package.split('.')[0]}: pip install 'kernelmill[{extra}]'.") from None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning that points at the user's own line, however deep in this library it is raised."""
    level = 1
    while (frame := sys._getframe(level)).f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)
