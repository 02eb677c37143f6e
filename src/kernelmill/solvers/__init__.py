"""One method per file. A solver turns (kernel, source, Z, plan) into weights and knows nothing of estimators."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, one_of
from .askotch import ASkotch
from .auto import EXACT, Candidate, Forecast, affordable, forecast, plan, predicted, seconds
from .base import Ended, Event, NotFinite, OnEvent, Problem, Solver, State, Uncertainty
from .direct import Direct, DirectState
from .drive import Solution, drive
from .eigenpro2 import EigenPro1, EigenPro2
from .eigenpro3 import EigenPro3
from .eigenpro4 import EigenPro4
from .eigenpro4_exact import EigenPro4Exact
from .falkon import Falkon
from .nytro import NYTRO
from .pegasos import Pegasos
from .sgpr import SGPR

NAMED: dict[str, Any] = {
    solver.name: solver
    for solver in (Direct, EigenPro4, EigenPro3, EigenPro2, EigenPro1, EigenPro4Exact, Falkon, ASkotch, NYTRO, Pegasos, SGPR)
}


def resolve(solver: Any) -> Any:
    """A solver object from a name or a solver object. "auto" is decided before, by the plan."""
    if isinstance(solver, str):
        if solver not in NAMED:
            raise one_of("solver", solver, [*NAMED, "auto"])
        return NAMED[solver]()
    if not isinstance(solver, Solver):
        raise InputError(f"solver={solver!r} was given, expected a name or a solver object such as EigenPro4(q=100).")
    return solver


__all__ = [
    "ASkotch",
    "EXACT",
    "EigenPro1",
    "NYTRO",
    "Pegasos",
    "SGPR",
    "Uncertainty",
    "Candidate",
    "Forecast",
    "affordable",
    "forecast",
    "plan",
    "predicted",
    "Direct",
    "DirectState",
    "Ended",
    "Problem",
    "Solution",
    "drive",
    "EigenPro2",
    "EigenPro3",
    "EigenPro4",
    "EigenPro4Exact",
    "Event",
    "Falkon",
    "NAMED",
    "NotFinite",
    "OnEvent",
    "Solver",
    "State",
    "resolve",
    "seconds",
]
