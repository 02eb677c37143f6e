"""Every solver by its name: a new one is its file, and an entry here."""

from __future__ import annotations

from .. import losses
from ..errors import InputError, one_of
from ..losses import Loss
from ..planning.arguments import unless_auto
from ..planning.plan import Plan
from .askotch import ASkotch
from .base import Solver
from .direct import Direct
from .eigenpro2 import EigenPro1, EigenPro2
from .eigenpro3 import EigenPro3
from .eigenpro4 import EigenPro4
from .eigenpro4_exact import EigenPro4Exact
from .falkon import Falkon
from .nytro import NYTRO
from .pcg import PCG
from .pegasos import Pegasos
from .sgpr import SGPR

NAMED: dict[str, type[Solver]] = {
    solver.name: solver
    for solver in (
        Direct,
        PCG,
        Falkon,
        EigenPro2,
        EigenPro4,
        EigenPro3,
        EigenPro1,
        EigenPro4Exact,
        ASkotch,
        NYTRO,
        Pegasos,
        SGPR,
    )
}


def resolve(solver: object) -> Solver:
    """A solver object from a name or a solver object. "auto" is decided before, by the plan."""
    if isinstance(solver, str):
        if solver not in NAMED:
            raise one_of("solver", solver, [*NAMED, "auto"])
        return NAMED[solver]()
    if not isinstance(solver, Solver):
        raise InputError(
            f"solver={solver!r} was given, expected a name or a solver object such as"
            " EigenPro4(q=100)."
        )
    return solver


def loss_of(solver: object) -> Loss:
    """The loss of what an estimator takes as its solver; "auto" chooses among those of the square
    loss.
    """
    if isinstance(solver, Plan):
        solver = NAMED[solver.solver](**(solver.settings or {}))
    made = unless_auto(solver)
    return losses.resolve("square" if made is None else resolve(made).loss)
