"""The end of a fit: the error that tuning promised, on a sample, against the final model's own on rows it did not learn from.

A solver may fail without a sign: float32 runs out of digits, steps are too few, a ridge that suits a sample does not suit all rows. What
was promised is an error on fewer rows, so the model should do better; where it does clearly worse, it is trained again in another way, and
the best of them is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import solvers
from ..data import Source
from ..errors import warn
from ..model import KernelModel
from ..planning.arguments import is_auto
from ..planning.costs import direct_bytes
from ..planning.memory import parse_bytes
from .rows import Units

if TYPE_CHECKING:
    from .base import KernelEstimator

log = logging.getLogger("kernelmill")

ROWS = 2000  # on which a model is checked, at most
WORSE = 1.25, 0.01  # times the promised error, and of the targets' variance, that a model may have before it is warned about
DOUBT = 1.05, 0.001  # the same before it is tried in another way
MOST_WORK = 4e9  # rows times centers up to which a fit is done again: beyond, it is warned about
MOST_CENTERS = 20_000  # of an exact solution that is tried instead


@dataclass(frozen=True)
class Check:
    """Mean squared errors, over the targets' variance for numbers. `margin` is two standard errors of the one that was found."""

    expected: float
    found: float
    margin: float
    rows: int

    def within(self, limit: tuple[float, float]) -> bool:
        factor, more = limit
        return self.found - self.margin <= factor * self.expected + more  # false of NaN


def check(model: KernelModel, units: Units, expected: float, held: tuple[Tensor, Tensor, Tensor] | None, source: Source) -> Check:
    """On held-out rows; on some of the training rows where there are none: a model can only look better there."""
    if held is None:
        rows = source.take(torch.randperm(source.n, generator=torch.Generator().manual_seed(0))[:ROWS])
        X, Y, w = rows.X, rows.Y, rows.w
    else:
        some = torch.randperm(len(held[1]), generator=torch.Generator().manual_seed(0))[:ROWS].sort().values
        X, y, w = (part[some.to(part.device)] for part in held)
        Y = torch.nn.functional.one_hot(y, len(units.mean)).double() if y.ndim == 1 else y.double()
        Y = (Y - units.mean.cpu()) / units.scale.cpu()
    with torch.no_grad():
        f = (model(X).cpu().double() - units.mean.cpu()) / units.scale.cpu()
    errors, w = ((f - Y.cpu()) ** 2).mean(1), w.cpu().double() / w.sum().cpu()
    mean = (w * errors).sum()
    margin = 2 * (w * w * (errors - mean) ** 2).sum().sqrt()
    found = Check(expected, mean.item(), margin.item(), len(w))
    log.info("check on %d rows: error %.4g ± %.2g, %.4g was expected", found.rows, found.found, found.margin, expected)
    return found


def other_ways(estimator: KernelEstimator) -> Iterator[KernelEstimator]:
    """The same fit in float64, with a larger ridge, and by an exact solution, as far as these are the library's to choose. Kernel and
    ridge are those that were chosen."""
    if not is_auto(estimator.epochs) or not _may_repeat(estimator) or estimator.plan_.n * estimator.plan_.p > MOST_WORK:
        return
    plan, model = estimator.plan_, estimator.model_
    again = copy(estimator)
    again.kernel, again.warm_start, again.ridge = model.kernel, False, estimator.ridge_
    again.solver = solvers.NAMED[plan.solver](**(plan.settings or {}))
    again.n_centers = None if plan.every_row or not isinstance(estimator.centers, str) else model.n_centers
    if plan.precision != "float64":
        wide = copy(again)
        wide.precision = "float64"
        yield wide
    if not is_auto(estimator.solver):
        return
    if is_auto(estimator.ridge) and estimator.ridge_:
        larger = copy(again)
        larger.ridge = 10 * estimator.ridge_
        yield larger
    p, budget = min(model.n_centers, MOST_CENTERS), parse_bytes(estimator.memory_budget, plan.device)
    exactly = plan.solver in solvers.EXACT and plan.precision == "float64"
    if isinstance(estimator.centers, str) and not exactly and direct_bytes(plan.n, p) <= budget:
        exact = copy(again)
        exact.solver, exact.precision, exact.n_centers, exact.ridge = solvers.Falkon(), "float64", p, max(again.ridge, 1e-8)
        yield exact


def in_float64(estimator: KernelEstimator) -> KernelEstimator | None:
    """The same fit where numbers cannot leave the range of float32, if the precision is the library's to choose."""
    if not _may_repeat(estimator):
        return None
    wide = copy(estimator)
    wide.precision = "float64"
    return wide


def _may_repeat(estimator: KernelEstimator) -> bool:
    """A stored run is what it is, and ranks would have to agree."""
    return is_auto(estimator.precision) and estimator.checkpoint is None and estimator._comm.size == 1


def adopt(estimator: KernelEstimator, other: KernelEstimator) -> None:
    """Take over what another fit of the same rows learned."""
    own = {*estimator.get_params(deep=False), "_fitted_with"}  # settings, and what a warm start compares them with
    estimator.__dict__.update({name: value for name, value in vars(other).items() if name not in own})


def warn_of(found: Check, estimator: Any) -> None:
    warn(
        f"the model's error on {found.rows} rows is {found.found:.3g}, and {found.expected:.3g} was expected from a sample "
        f"(solver {estimator.plan_.solver!r}, {estimator.plan_.precision}); try precision='float64', another solver or more epochs."
    )
