"""One method per file.

A solver turns (kernel, source, Z, plan) into weights and knows nothing of estimators.
"""

from __future__ import annotations

from .askotch import ASkotch
from .auto import (
    Candidate,
    Forecast,
    affordable,
    forecast,
    plan,
    predict_plan,
    seconds_to_solve,
    with_every_row,
)
from .base import (
    Ended,
    Event,
    HistoryRow,
    NotFinite,
    OnEvent,
    Problem,
    Solver,
    Sparse,
    State,
)
from .direct import Direct, DirectState
from .drive import Solution, drive
from .eigenpro2 import EigenPro1, EigenPro2
from .eigenpro3 import EigenPro3
from .eigenpro4 import EigenPro4
from .eigenpro4_exact import EigenPro4Exact
from .falkon import Falkon
from .nytro import NYTRO
from .pcg import PCG, PCGState, expected_iterations
from .pegasos import Pegasos
from .registry import NAMED, loss_of, of_plan, resolve
from .sgpr import SGPR

__all__ = [
    "ASkotch",
    "EigenPro1",
    "NYTRO",
    "PCG",
    "PCGState",
    "Pegasos",
    "SGPR",
    "Sparse",
    "Candidate",
    "Forecast",
    "affordable",
    "expected_iterations",
    "seconds_to_solve",
    "with_every_row",
    "loss_of",
    "of_plan",
    "forecast",
    "plan",
    "predict_plan",
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
    "HistoryRow",
    "Falkon",
    "NAMED",
    "NotFinite",
    "OnEvent",
    "Solver",
    "State",
    "resolve",
]
