"""Going on with a fitted model: new rows without the old ones, and more centers.

Up to EXACT centers the equations of all chunks are kept: chunk after chunk ends where all rows at once would. Rows whose equations nobody
has, of a `fit` or of a model from a file, are represented by the centers: each has the model's own value as its target, and together they
weigh as much as all rows seen. With more centers, or a solver that goes by steps, they stand in at every chunk, and EigenPro 4 goes on from
the weights as they are.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import solvers
from ..data import source_of
from ..errors import InputError, warn
from ..model import ROWS, KernelModel
from ..planning.arguments import is_auto
from .equations import equations, exact
from .rows import Units, still_constant
from .training import train
from .watch import Watch

if TYPE_CHECKING:
    from .base import KernelEstimator

MANY = 20_000  # stand-ins, or as many as a chunk has rows; the other centers keep their weights as well as EigenPro 4 does


def go_on(estimator: KernelEstimator, X: Tensor, y: Tensor, w: Tensor, labels: bool) -> None:
    """Train a fitted estimator on new rows. Kernel, centers and what was taken off the targets stay."""
    model = estimator.model_
    whole_only(model, "partial_fit")
    if model.uncertainty is not None:
        raise InputError("partial_fit cannot go on with a Gaussian process; fit it again with all rows.")
    before = estimator.plan_.solver
    loss = solvers.NAMED[before](**(estimator.plan_.settings or {})).loss_name if before in solvers.NAMED else "square"
    if loss != "square":
        raise InputError(f"partial_fit goes on with the square loss, and this model was fitted with the {loss} loss; fit it anew.")
    Y = torch.nn.functional.one_hot(y, model.alpha.shape[1]) if y.ndim == 1 else y
    Y = Y.double() - model.intercept.cpu().double()
    model.constants = still_constant(model.constants, X[w.to(X.device) > 0])
    share = _exactly(estimator, X, Y, w) if exact(estimator) else _by_steps(estimator, X, Y, w, labels)
    estimator.rows_seen_ += round(share * len(w))
    estimator._weight_seen += share * float(w.sum())
    estimator._stands = model.n_centers


def whole_only(model: KernelModel, what: str) -> None:
    """Raise where ranks share the model."""
    if model.comm.size > 1:
        raise InputError(f"{what} goes on in one process, and this model is shared by {model.comm.size} ranks; use load(folder, ranks=1).")


def _exactly(estimator: KernelEstimator, X: Tensor, Y: Tensor, w: Tensor) -> float:
    """These rows join the equations, which are solved again."""
    model, device = estimator.model_, estimator.model_.alpha.device
    ridge = estimator.ridge_ if is_auto(estimator.ridge) else float(estimator.ridge)  # type: ignore[arg-type]
    sources = [
        source_of(rows, targets, mean=torch.zeros_like(targets[0]), w=weights, device=device)
        for rows, targets, weights in ([] if estimator._equations else [_stand_ins(estimator, estimator._stands)]) + [(X, Y, w)]
    ]
    watch = Watch(estimator, solvers.Direct(), model.kernel, model.Z, Units.of(model.intercept), None, estimator.plan_)
    state = estimator._equations
    for source in sources:
        state = equations(estimator, source, ridge, watch if source is sources[-1] else lambda event: False, state)
    assert state is not None
    alpha, precision = state.alpha, model.precision
    if bool((alpha.abs().sum(0).cpu() * torch.finfo(model.alpha.dtype).eps <= 1e-3 * Y.abs().amax(0)).all()):  # of every output
        alpha = alpha.to(model.alpha.dtype)
    else:  # weights so large that they cancel each other would not survive in float32
        precision = "float64"
    intercept = model.intercept.to(alpha.device)
    estimator.model_ = KernelModel(model.kernel, model.Z, alpha, intercept, model.tile_bytes, precision, constants=model.constants)
    estimator._equations, estimator.plan_, estimator.ridge_ = state, state.plan, ridge
    estimator.history_, estimator.n_iter_ = [*estimator.history_, *watch.history], estimator.n_iter_ + 1
    return 1.0


def _by_steps(estimator: KernelEstimator, X: Tensor, Y: Tensor, w: Tensor, labels: bool) -> float:
    """EigenPro 4 over these rows and the stand-ins. Returns which part of them was learned."""
    trained = copy(estimator)  # where this fails, the estimator is what it was
    trained.solver = estimator.solver if isinstance(estimator.solver, solvers.EigenPro4) else solvers.EigenPro4()
    trained.warm_start, trained.checkpoint, trained._fitted_with, trained._learned = True, None, {}, None
    rows, targets, weights = _stand_ins(estimator, min(estimator._stands, max(MANY, len(X))))
    wide = torch.promote_types(X.dtype, rows.dtype)
    X = torch.cat([X.to(wide), rows.to(X.device, wide)])
    Y, w = torch.cat([Y, targets]).to(estimator.model_.alpha.dtype), torch.cat([w, weights])
    train(trained, X, Y, w, Units.of(torch.zeros_like(Y[0])), Y.argmax(1) if labels else None, None)
    trained.model_.intercept = estimator.model_.intercept
    estimator.model_, estimator.plan_, estimator.ridge_, estimator._equations = trained.model_, trained.plan_, trained.ridge_, None
    estimator.history_, estimator.n_iter_ = [*estimator.history_, *trained.history_], estimator.n_iter_ + trained.n_iter_
    last = trained.history_[-1] if trained.history_ else {}
    return 1.0 if last.get("epoch", 0) else min(1.0, last.get("rows", 0) / len(X))


def _stand_ins(estimator: KernelEstimator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centers, the model's values there less its intercept, and their weights."""
    model = estimator.model_
    rows = model.Z[: estimator._stands]
    if count < len(rows):
        drawn = torch.Generator().manual_seed(estimator.rows_seen_)
        rows = rows[torch.randperm(len(rows), generator=drawn)[:count].to(rows.device)]
    K, Z = model.prepared()
    values = [K.matmul(K.points(part), Z, model.alpha).cpu().double() for part in rows.split(ROWS)]
    return rows, torch.cat(values), torch.full((count,), estimator._weight_seen / count, dtype=torch.float64)


def grown(model: KernelModel, rows: Tensor) -> KernelModel:
    """The model with more centers, of weight zero. Rows that are centers already would only make K(Z,Z) singular: they are left out."""
    whole_only(model, "add_centers")
    if model.uncertainty is not None:
        raise InputError("a Gaussian process cannot take more centers; fit it again.")
    rows = rows.to(model.Z)
    known = {row.tobytes() for row in model.Z.cpu().numpy()}
    new = {row.tobytes(): i for i, row in reversed(list(enumerate(rows.cpu().numpy()))) if row.tobytes() not in known}
    if len(new) < len(rows):
        warn(f"{len(rows) - len(new)} of the {len(rows)} rows given to add_centers are centers already, and are left out.")
        rows = rows[sorted(new.values())]
    alpha = torch.cat([model.alpha, model.alpha.new_zeros(len(rows), model.alpha.shape[1])])
    Z, constants = torch.cat([model.Z, rows]), still_constant(model.constants, rows)
    return KernelModel(model.kernel, Z, alpha, model.intercept, model.tile_bytes, model.precision, constants=constants)
