"""EigenPro 1 (Ma, Belkin, 2017): the preconditioner of all rows, s = n. For small n, where the eigensystem of K(X,X) is affordable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InputError
from ..planning import Plan, eigenpro_sizes, every_row_needed, whole
from .base import Problem, Report, Solver
from .eigenpro2 import Passes, PassState, epochs, prepare_passes


@dataclass(eq=False)
class EigenPro1(Solver):
    """q: eigenvectors of K(X,X) that are brought down; m: batch. Takes n² memory and n³ operations once. With the
    default epochs as near to the direct solution as EigenPro2."""

    q: int | None = None
    m: int | None = None
    name = "eigenpro1"
    state = PassState
    needs_ridge = True
    every_row = True
    sharded = True
    subsamples = True  # each batch is one of all rows: rows that come sorted would need a smaller step

    def plan(self, base: Plan) -> Plan:
        every_row_needed(base)
        whole("m", self.m, 1)
        whole("q", self.q, 0)
        if self.q is not None and self.q >= base.n:
            raise InputError(f"q={self.q} was given for {base.n} rows: expected q below the number of rows.")
        plan = eigenpro_sizes(base, s=base.n, q=self.q, projection="carried", control_variate=False)
        if plan.bytes > plan.budget:
            raise InputError(
                f"solver='eigenpro1' needs {plan.bytes / 2**30:.1f} GiB for the eigensystem of {plan.n} rows, {plan.budget / 2**30:.1f} "
                "may be used; use solver='eigenpro2', which takes that of a subsample."
            )
        return plan

    def prepare(self, problem: Problem, plan: Plan, state: PassState | None) -> tuple[Passes, PassState]:
        return prepare_passes(problem, plan, state, self.m)

    def rounds(self, problem: Problem, setup: Passes, state: PassState) -> Iterator[Report]:
        return epochs(problem, setup, state)
