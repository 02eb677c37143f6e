"""Going on with a fitted model: new rows without the old ones, and more centers.

Up to EXACT centers the normal equations of all chunks are kept: chunk after chunk ends where all rows at once would. What came before them,
a fit or a model from a file, is known only by its centers: a random sample of the rows seen, they stand in for them. Each has the model's
own value as its target, and together they weigh as much as all rows seen. With more centers they stand in at every chunk, and EigenPro 4
goes on from the weights as they are.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import solvers
from ..data import source_of
from ..distributed import Alone
from ..errors import InputError
from ..model import KernelModel
from ..planning import Plan, direct_bytes, parse_bytes, tile_bytes
from .training import train
from .watch import Watch

if TYPE_CHECKING:
    from .base import KernelEstimator

EXACT = 5000  # centers: 200 MB of equations, and some seconds of two cores for a chunk as large
MANY = 20_000  # stand-ins, or as many as a chunk has rows; the other centers keep their weights as well as EigenPro 4 does


def go_on(estimator: KernelEstimator, X: Tensor, y: Tensor, w: Tensor, labels: bool) -> None:
    """Train a fitted estimator on new rows. Kernel, centers and what was taken off the targets stay."""
    model = estimator.model_
    if model.uncertainty is not None:
        raise InputError("partial_fit cannot go on with a Gaussian process; fit it again with all rows.")
    before = estimator.plan_.solver
    loss = solvers.NAMED[before](**(estimator.plan_.settings or {})).loss_name if before in solvers.NAMED else "square"
    if loss != "square":
        raise InputError(f"partial_fit goes on with the square loss, and this model was fitted with the {loss} loss; fit it anew.")
    Y = torch.nn.functional.one_hot(y, model.alpha.shape[1]) if y.ndim == 1 else y
    Y = Y.to(torch.float64 if X.dtype == torch.float64 else torch.float32)
    room = parse_bytes(estimator.memory_budget, str(model.alpha.device))
    asked = isinstance(estimator.solver, solvers.EigenPro4) or estimator.solver == "eigenpro4"
    if not asked and model.n_centers <= EXACT and direct_bytes(0, model.n_centers) <= room:
        _exactly(estimator, X, Y, w, room)
    else:
        _by_steps(estimator, X, Y, w, labels)
    estimator.rows_seen_ += len(w)
    estimator._weight_seen += float(w.sum())
    estimator._stands = model.n_centers


def _exactly(estimator: KernelEstimator, X: Tensor, Y: Tensor, w: Tensor, room: int) -> None:
    """These rows are added to the normal equations, which are solved again."""
    model, where = estimator.model_, str(estimator.model_.alpha.device)
    base = Plan("direct", len(X), X.shape[1], Y.shape[1], model.n_centers, device=where, x_bytes=X.dtype.itemsize, seed=0, budget=room)
    plan = solvers.Direct().plan(replace(base, ridge=estimator.ridge_, tile_bytes=tile_bytes(room, where)))
    watch = Watch(estimator, solvers.Direct(), model.kernel, model.Z, model.intercept, None, plan)

    def solved(rows: Tensor, targets: Tensor, weights: Tensor, listener: Any, before: solvers.State | None) -> solvers.State:
        source = source_of(rows, targets, mean=model.intercept.cpu(), w=weights, device=where)
        sized = replace(plan, n=len(rows))
        return solvers.Direct().solve(model.kernel, source, model.Z, sized, Alone(), torch.Generator(), listener, before)

    before = estimator._equations
    if before is None:
        before = solved(*_stand_ins(estimator, estimator._stands), lambda event: False, None)
    state = estimator._equations = solved(X, Y, w, watch, before)
    estimator.model_ = KernelModel(
        model.kernel, model.Z, state.alpha, model.intercept.to(state.alpha), model.tile_bytes, state.plan.precision
    )
    estimator.plan_, estimator.history_, estimator.n_iter_ = state.plan, [*estimator.history_, *watch.history], estimator.n_iter_ + 1


def _by_steps(estimator: KernelEstimator, X: Tensor, Y: Tensor, w: Tensor, labels: bool) -> None:
    """EigenPro 4 over these rows and the stand-ins."""
    trained = copy(estimator)  # where this fails, the estimator is what it was
    trained.solver = estimator.solver if isinstance(estimator.solver, solvers.EigenPro4) else solvers.EigenPro4()
    trained.warm_start, trained.checkpoint, trained._fitted_with, trained._learned = True, None, {}, None
    rows, targets, weights = _stand_ins(estimator, min(estimator._stands, max(MANY, len(X))))
    X, Y, w = torch.cat([X, rows.to(X)]), torch.cat([Y, targets.to(Y)]), torch.cat([w, weights])
    train(trained, X, Y, w, estimator.model_.intercept.cpu(), Y.argmax(1) if labels else None, None)
    estimator.model_, estimator.plan_, estimator._equations = trained.model_, trained.plan_, None
    estimator.history_, estimator.n_iter_ = [*estimator.history_, *trained.history_], estimator.n_iter_ + trained.n_iter_


def _stand_ins(estimator: KernelEstimator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centers, the model's values there, and their weights."""
    model = estimator.model_
    rows = model.Z[: estimator._stands]
    if count < len(rows):
        drawn = torch.Generator().manual_seed(estimator.rows_seen_)
        rows = rows[torch.randperm(len(rows), generator=drawn)[:count].to(rows.device)]
    with torch.no_grad():
        return rows, model(rows).cpu(), torch.full((count,), estimator._weight_seen / count, dtype=torch.float64)


def grown(model: KernelModel, rows: Tensor) -> KernelModel:
    """The model with more centers, of weight zero."""
    if model.uncertainty is not None:
        raise InputError("a Gaussian process cannot take more centers; fit it again.")
    alpha = torch.cat([model.alpha, model.alpha.new_zeros(len(rows), model.alpha.shape[1])])
    return KernelModel(model.kernel, torch.cat([model.Z, rows.to(model.Z)]), alpha, model.intercept, model.tile_bytes, model.precision)
