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
    name = getattr(solver, "name", None)
    if not isinstance(name, str) or NAMED.get(name, type(solver)) is not type(solver):
        said = f"the name {name!r} of another one" if isinstance(name, str) else "no name"
        raise InputError(
            f"solver={solver!r} has {said}; give the class {type(solver).__name__} a `name` of its"
            " own."
        )
    return solver


def of_plan(plan: Plan) -> Solver:
    """The solver that a plan was made for, with its settings."""
    if plan.solver not in NAMED:
        raise InputError(
            f"solver was given as a plan of {plan.solver!r}, expected one of {[*NAMED]}; give the"
            " solver object itself."
        )
    return NAMED[plan.solver](**(plan.settings or {}))


def loss_of(solver: object) -> Loss:
    """The loss of what an estimator takes as its solver; "auto" chooses among those of the square
    loss.
    """
    if isinstance(solver, Plan):
        solver = of_plan(solver)
    made = unless_auto(solver)
    return losses.resolve("square" if made is None else resolve(made).loss)
