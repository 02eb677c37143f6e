"""Going on with a fitted model: a pass over new rows, and more centers. Kernel, centers and what was taken off the targets stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import solvers
from ..data import source_of
from ..distributed import Alone
from ..errors import InputError
from ..model import KernelModel
from ..planning import Plan, parse_bytes, tile_bytes

FADING = 0.5  # with which power of its share of all rows seen the step of a chunk falls (docs/data.md)


def more_plan(model: KernelModel, X: Tensor, w: Tensor, ridge: float, seen: int, seed: int, memory_budget: Any) -> Plan:
    """The plan of one pass over new rows, `seen` rows after the first."""
    device = str(model.alpha.device)
    budget = parse_bytes(memory_budget, device)
    return Plan(
        "eigenpro4",
        len(X),
        X.shape[1],
        model.alpha.shape[1],
        model.n_centers,
        precision=model.precision,
        device=device,
        x_bytes=X.dtype.itemsize,
        seed=seed + seen,
        epochs=1,
        ridge=ridge / w.mean().item() * len(X) / (seen + len(X)),
        tile_bytes=tile_bytes(budget, device),
        budget=budget,
    )


def learned(model: KernelModel, solver: Any, base: Plan, X: Tensor, y: Tensor, w: Tensor, seen: int, on_event: Any) -> KernelModel:
    """The model after one pass of EigenPro 4 over new rows."""
    if model.uncertainty is not None:
        raise InputError("partial_fit cannot go on with a Gaussian process; fit it again with all rows.")
    generator = torch.Generator().manual_seed(base.seed)
    source = source_of(X, y, mean=model.intercept.cpu().double(), w=w / w.mean(), seed=base.seed, device=base.device)
    order = torch.randperm(base.p, generator=generator).to(base.device)  # any first centers must be a random subsample
    plan = solvers.predicted(solver, base)
    alpha = model.alpha[order].to(plan.torch_dtype)
    # As the stream goes on a chunk is a smaller part of all that was seen, and may move the weights less.
    state = solvers.State(plan, alpha, torch.zeros_like(alpha), step_scale=(len(X) / (seen + len(X))) ** FADING)
    state = solver.solve(model.kernel, source, model.Z[order], plan, Alone(), generator, on_event, state)
    alpha = torch.empty_like(state.alpha).index_copy_(0, order, state.alpha)
    return KernelModel(model.kernel, model.Z, alpha, model.intercept, model.tile_bytes, model.precision)


def grown(model: KernelModel, rows: Tensor) -> KernelModel:
    """The model with more centers, of weight zero."""
    if model.uncertainty is not None:
        raise InputError("a Gaussian process cannot take more centers; fit it again.")
    alpha = torch.cat([model.alpha, model.alpha.new_zeros(len(rows), model.alpha.shape[1])])
    return KernelModel(model.kernel, torch.cat([model.Z, rows.to(model.Z)]), alpha, model.intercept, model.tile_bytes, model.precision)
