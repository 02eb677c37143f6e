"""Arguments that leave a choice to the plan."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..errors import InputError


def is_auto(value: Any) -> bool:
    """Whether an argument leaves the choice to the plan."""
    return value is None or (isinstance(value, str) and value == "auto")


def whole(name: str, value: Any, least: int) -> None:
    """Raise unless `value` is None or a whole number of at least `least`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
        raise InputError(f"{name}={value!r} was given, expected a whole number of {least} or more, or None to have it chosen.")
