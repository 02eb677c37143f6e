"""Arguments of the user: those that leave a choice to the library, and whole numbers."""

from __future__ import annotations

from numbers import Integral
from typing import Literal, TypeVar

from ..errors import InputError

T = TypeVar("T")


def unless_auto(value: T | Literal["auto"]) -> T | None:
    """An argument, or None where it leaves the choice to the library."""
    return None if isinstance(value, str) and value == "auto" else value


def whole(name: str, value: object, least: int) -> int | None:
    """A whole number of at least `least`, as Python's own, or None; raises for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(
            f"{name}={value!r} was given, expected a whole number of {least} or more, or None to"
            " have it chosen."
        )
    return int(value)
