"""The equations of all rows of a stream: p² numbers, to which each chunk of `partial_fit` adds its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .. import solvers
from ..data import Source
from ..distributed.team import Alone
from ..planning.arguments import is_auto
from ..planning.costs import direct_bytes
from ..planning.memory import parse_bytes, tile_bytes
from ..planning.plan import Plan

if TYPE_CHECKING:
    from .base import KernelEstimator

EXACT = 5000  # centers: 200 MB of equations, and some seconds of two cores for a chunk as large


def exact(estimator: KernelEstimator) -> bool:
    """Whether equations are kept: few centers, and a ridge or a solver that asks for one. Others regularise by few steps."""
    model, own = estimator.model_, estimator.solver
    steps = isinstance(own, Plan) or not (is_auto(own) or solvers.resolve(own).needs_ridge)
    if model.uncertainty is not None or steps or (is_auto(own) and not estimator.ridge_) or model.n_centers > EXACT:
        return False
    return direct_bytes(0, model.n_centers) * 3 // 2 <= parse_bytes(estimator.memory_budget, str(model.alpha.device))


def equations(
    estimator: KernelEstimator, source: Source, ridge: float, listener: solvers.OnEvent, before: solvers.DirectState | None
) -> solvers.DirectState:
    """Those of these rows and of the rows before, and their solution."""
    model, where = estimator.model_, str(estimator.model_.alpha.device)
    room = parse_bytes(estimator.memory_budget, where)
    base = Plan("direct", source.n, source.d, source.c, model.n_centers, device=where, budget=room)
    plan = solvers.Direct().plan(replace(base, ridge=ridge, tile_bytes=tile_bytes(room, where)))
    problem = solvers.Problem(model.kernel, source, model.Z, Alone(), torch.Generator())
    found = solvers.drive(solvers.Direct(), problem, plan, listener, before).state
    assert isinstance(found, solvers.DirectState)
    return found
