"""The end of a fit: the error that choosing promised, against the model's own on rows it did
not learn from.

A solver may fail without a sign: float32 runs out of digits, steps are too few, a ridge that
suits a sample does not suit all rows. What was promised is an error on fewer rows, so the model
should do better; where it does clearly worse, it is trained again in another way, and the best
of them is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from .. import solvers
from ..data import Source
from ..distributed.team import Communicator, is_alone
from ..errors import KernelmillError, is_out_of_memory, warn
from ..model import KernelModel
from ..planning.costs import direct_bytes
from ..storage.run_folder import NoRun, Run
from .fitted import Check, Fitted
from .request import Request
from .rows import Rows

log = logging.getLogger("kernelmill")

ROWS = 2000  # on which a model is checked, at most
# Times the promised error, and of the targets' variance, that a model may
# have before it is warned about.
WORSE = 1.25, 0.01
DOUBT = 1.05, 0.001  # the same before it is tried in another way
# Rows times centers up to which a fit is done again: beyond, it is warned about.
MOST_WORK = 4e9
MOST_CENTERS = 20_000  # of an exact solution that is tried instead


def check(model: KernelModel, rows: Rows, source: Source, expected: float) -> Check:
    """On held-out rows; on some of the training rows where there are none: a model can only
    look better there.
    """
    units, held = rows.units, rows.held
    generator = torch.Generator().manual_seed(0)
    if held is None:
        some = source.take(torch.randperm(source.n, generator=generator)[:ROWS])
        X, Y, w = some.X, some.Y, some.w
    else:
        drawn = torch.randperm(len(held.y), generator=generator)[:ROWS].sort().values
        X, y, w = (part[drawn.to(part.device)] for part in held)
        Y = torch.nn.functional.one_hot(y, len(units.mean)).double() if y.ndim == 1 else y.double()
        Y = (Y - units.mean.cpu()) / units.scale.cpu()
    with torch.no_grad():
        f = (model(X).cpu().double() - units.mean.cpu()) / units.scale.cpu()
    errors, w = ((f - Y.cpu()) ** 2).mean(1), w.cpu().double() / w.sum().cpu()
    mean = (w * errors).sum()
    margin = 2 * (w * w * (errors - mean) ** 2).sum().sqrt()
    found = Check(expected, mean.item(), margin.item(), len(w))
    log.info(
        "check on %d rows: error %.4g ± %.2g, %.4g was expected",
        found.rows,
        found.found,
        found.margin,
        expected,
    )
    return found


def verify(request: Request, fitted: Fitted, again: Callable[..., Fitted], repeats: bool) -> Fitted:
    """The best of several ways to train, where the first did worse than promised; warns where
    none did as well.

    `again` trains anew as another request says; `repeats`: whether that may be done.
    """
    found = fitted.check
    if found is None or found.within(DOUBT):
        return fitted
    for other in other_ways(request, fitted) if repeats else ():
        assert other.solver is not None
        log.info(
            "error %.4g where %.4g was expected: trying %s with ridge %.3g",
            found.found,
            found.expected,
            other.solver.name,
            other.ridge,
        )
        try:
            tried = again(other, promised=found.expected)
        except (KernelmillError, MemoryError, RuntimeError) as error:
            expected = isinstance(error, (KernelmillError, torch.linalg.LinAlgError))
            if not expected and not is_out_of_memory(error):
                raise
            log.info("it failed: %s", error)  # the first model is there
            continue
        if tried.check is None:  # it was stopped: so is the fit
            break
        if tried.check.found < found.found or found.found != found.found:
            fitted, found = tried, tried.check
        if found.within(DOUBT):
            return fitted
    if not found.within(WORSE):
        _warn(found, fitted)
    return fitted


def may_repeat(request: Request, store: NoRun, comm: Communicator) -> bool:
    """A stored run is what it is, ranks would have to agree, and a precision that was asked for
    stays.
    """
    return request.precision is None and not isinstance(store, Run) and is_alone(comm)


def other_ways(request: Request, fitted: Fitted) -> Iterator[Request]:
    """The same fit in float64, with a larger ridge, and by an exact solution.

    As far as these are the library's to choose; kernel and ridge are those that were chosen.
    """
    plan, model = fitted.plan, fitted.model
    if request.epochs is not None or plan.n * plan.p > MOST_WORK:
        return
    chosen = isinstance(request.centers, str)
    again = replace(
        request,
        kernel=model.kernel,
        ridge=fitted.ridge,
        solver=fitted.solver,
        plan=None,
        n_centers=model.n_centers if chosen and not plan.every_row else None,
    )
    if plan.precision != "float64":
        yield replace(again, precision="float64")
    if request.solver is not None or request.plan is not None:
        return
    if request.ridge is None and fitted.ridge:
        yield replace(again, ridge=10 * fitted.ridge)
    p = min(model.n_centers, MOST_CENTERS)
    is_exact = again.solver is not None and again.solver.exact and plan.precision == "float64"
    fits = direct_bytes(p, every_row=False) <= plan.budget
    if chosen and not is_exact and fits:
        ridge = max(fitted.ridge, 1e-8)
        yield replace(again, solver=solvers.Falkon(), precision="float64", n_centers=p, ridge=ridge)


def _warn(found: Check, fitted: Fitted) -> None:
    plan = fitted.plan
    digits = "" if plan.precision == "float64" else "precision='float64', "
    warn(
        f"the model's error on {found.rows} rows is {found.found:.3g}, but {found.expected:.3g}"
        f" was expected from a sample (solver {plan.solver!r}, {plan.precision}); try"
        f" {digits}another solver or more epochs."
    )
