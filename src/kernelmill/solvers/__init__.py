"""One method per file. A solver turns (kernel, source, Z, plan) into weights and knows nothing of estimators."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, one_of
from .base import Event, OnEvent, Solver, State
from .direct import Direct
from .eigenpro2 import EigenPro2
from .eigenpro3 import EigenPro3
from .eigenpro4 import EigenPro4
from .eigenpro4_exact import EigenPro4Exact

NAMED: dict[str, Any] = {solver.name: solver for solver in (Direct, EigenPro4, EigenPro3, EigenPro2, EigenPro4Exact)}


def resolve(solver: Any) -> Solver:
    """A solver object from a name or a solver object. "auto" is decided before, by the plan."""
    if isinstance(solver, str):
        if solver not in NAMED:
            raise one_of("solver", solver, [*NAMED, "auto"])
        return NAMED[solver]()
    if not hasattr(solver, "solve"):
        raise InputError(f"solver={solver!r} was given, expected a name or a solver object such as EigenPro4(q=100).")
    return solver


__all__ = [
    "Direct",
    "EigenPro2",
    "EigenPro3",
    "EigenPro4",
    "EigenPro4Exact",
    "Event",
    "NAMED",
    "OnEvent",
    "Solver",
    "State",
    "resolve",
]
