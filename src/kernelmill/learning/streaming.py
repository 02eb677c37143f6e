"""Rows that come in chunks: what a model remembers of those that are gone, and how it learns from
more.

Up to EXACT centers the equations of all chunks are kept: chunk after chunk ends where all rows at
once would. Rows whose equations nobody has, of a `fit` or of a model from a file, are represented
by the centers: each has the model's own value as its target, and together they weigh as much as
all rows seen. With more centers, or a solver that goes by steps, they stand in at every chunk, and
EigenPro 4 goes on from the weights as they are.

Some of all rows, drawn at random, are kept: intervals are made of their residuals.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import solvers
from ..callbacks.early_stopping import NoEarlyStopping
from ..callbacks.listeners import Listeners
from ..callbacks.validation import NoValidation
from ..data import Source, source_of
from ..distributed.team import Alone, is_alone
from ..errors import InputError, warn
from ..model import ROWS, KernelModel
from ..planning.costs import direct_bytes
from ..planning.memory import parse_bytes, tile_bytes
from ..planning.plan import Plan
from .design import Warm
from .fitted import Fitted
from .flow import Surroundings, learn
from .request import Request
from .rows import Rows, Units, still_constant

EXACT = 5000  # centers: 200 MB of equations, and some seconds of two cores for a chunk as large
# Stand-ins, or as many as a chunk has rows; the other centers keep their weights as well as
# EigenPro 4 does.
MANY = 20_000
KEPT = 2000  # rows


class Chunk(NamedTuple):
    """More rows: features, targets (n, c), weights, and whether the targets are classes."""

    X: Tensor
    Y: Tensor
    w: Tensor
    classes: bool


class Kept(NamedTuple):
    """A random sample of the rows of all chunks, of up to KEPT: features, targets (m, c), weights,
    and the number that was drawn for each. It has the smallest numbers of all, so that each row is
    in it with the same probability, in whatever order rows come.
    """

    X: Tensor
    y: Tensor
    w: Tensor
    drawn: Tensor

    @classmethod
    def checked(cls, stored: list[Tensor], d: int, c: int) -> Kept:
        """Of a stored model: whatever is there may have been tampered with."""
        kept = cls(*stored)
        m = len(kept.w)
        fits = [part.shape for part in kept] == [(m, d), (m, c), (m,), (m,)]
        fine = all(part.is_floating_point() and part.isfinite().all() for part in kept)
        if not (fits and fine and m and (kept.w > 0).all()):
            raise ValueError("rows that were kept do not fit the model")
        return kept

    def joined(self, other: Kept) -> Kept:
        """The sample of the rows of both."""
        every = Kept(*(torch.cat(parts) for parts in zip(self, other, strict=True)))
        return Kept(*(part[_least(every.drawn)] for part in every))


def _least(drawn: Tensor) -> Tensor:
    return drawn.argsort()[:KEPT]


def _draw(n: int, before: int) -> tuple[Tensor, Tensor]:
    """The rows of a chunk that may be kept, `before` rows after the first, and their numbers: the
    same in a model that was loaded.
    """
    drawn = torch.rand(n, generator=torch.Generator().manual_seed(before), dtype=torch.float64)
    at = _least(drawn)
    return at, drawn[at]


def _keep(before: Memory, chunk: Chunk) -> Kept:
    at, drawn = _draw(len(chunk.w), before.rows)
    there = at.to(chunk.X.device)
    new = Kept(chunk.X[there].cpu(), chunk.Y[at].double(), chunk.w[at].double(), drawn)
    return new if before.kept is None else before.kept.joined(new)


def _keep_first(fitted: Fitted) -> Kept:
    """Rows that were merged are told apart."""
    data, each = fitted.data, fitted.data.rows.each
    at, drawn = _draw(data.source.n if each is None else len(each.w), 0)
    batch = data.source.take(at if each is None else each.group[at])
    mean, scale = (part.cpu().double() for part in data.rows.units[:2])
    y, w = batch.Y.cpu().double() * scale + mean, batch.w.cpu().double() * data.weight
    if each is not None:
        y, w = each.y[at].double(), each.w[at].double()
    return Kept(batch.X.cpu(), y, w, drawn)


@dataclass(frozen=True)
class Memory:
    """What a model remembers of its rows: how many there were, their weight, and how many of its
    centers, the first ones, stand for them; or their equations. Of numbers, also some of the rows.
    """

    rows: int
    weight: float
    stands: int
    equations: solvers.DirectState | None = None
    kept: Kept | None = None

    @classmethod
    def of(cls, fitted: Fitted) -> Memory:
        return cls(fitted.rows, fitted.weight, fitted.plan.p)


@dataclass(frozen=True)
class Continued:
    """A model that learns chunk by chunk, the record of its training, and what it remembers of the
    rows.
    """

    model: KernelModel
    plan: Plan
    ridge: float
    epochs: int
    history: list[solvers.HistoryRow]
    memory: Memory
    ended: str = ""  # a sentence, where the last chunk ended otherwise than it should


def remember(request: Request, fitted: Fitted) -> Memory:
    """The memory of a model's first chunk, with its equations where later ones are to join them."""
    memory = Memory.of(fitted)
    if (
        fitted.solver.loss_name != "square" or fitted.model.process is not None
    ):  # later chunks are refused
        return memory
    if fitted.data.rows.regression:
        memory = replace(memory, kept=_keep_first(fitted))
    if not keeps_equations(request, fitted.model, fitted.ridge):
        return memory
    rows = fitted.data.in_own_units()  # later chunks come in the user's units
    found = _equations(request, fitted.model, rows, fitted.ridge, lambda event: False, None)
    return replace(memory, equations=found)


def keeps_equations(request: Request, model: KernelModel, ridge: float) -> bool:
    """Whether equations are kept: few centers, and a ridge or a solver that asks for one.

    Others regularise by few steps.
    """
    solver = request.solver
    by_steps = request.plan is not None or not (solver is None or solver.needs_ridge)
    if (
        model.process is not None
        or by_steps
        or (solver is None and not ridge)
        or model.n_centers > EXACT
    ):
        return False
    free = parse_bytes(request.memory_budget, str(model.alpha.device))
    return direct_bytes(model.n_centers, every_row=False) * 3 // 2 <= free


def extend(request: Request, before: Continued, chunk: Chunk, around: Surroundings) -> Continued:
    """Train a fitted model on more rows: features, targets (n, c), weights.

    Kernel, centers and intercept stay.
    """
    model = copy(before.model)  # a call that fails leaves the other one as it is
    before = replace(before, model=model)
    require_whole(model, "partial_fit")
    if model.process is not None:
        raise InputError(
            "partial_fit cannot continue a Gaussian process; fit it again with all rows."
        )
    _require_square(request, before.plan)
    X, kept = chunk.X, None if chunk.classes else _keep(before.memory, chunk)
    chunk = chunk._replace(Y=chunk.Y.double() - model.intercept.cpu().double())
    model.constants = still_constant(model.constants, X[chunk.w.to(X.device) > 0])
    learn_more = _exactly if keeps_equations(request, model, before.ridge) else _by_steps
    after = learn_more(request, before, chunk, around)
    return replace(after, memory=replace(after.memory, kept=kept))


def _require_square(request: Request, plan: Plan) -> None:
    """Of the model so far, and of the solver that would go on with it."""
    given = [request.solver, plan] if plan.solver in solvers.NAMED else [request.solver]
    for loss in (solvers.loss_of(one).name for one in given):
        if loss != "square":
            raise InputError(
                f"partial_fit needs the square loss, and this model has the {loss} loss; fit"
                " it again."
            )


def require_whole(model: KernelModel, what: str) -> None:
    """Raise where ranks share the model."""
    if not is_alone(model.comm):
        raise InputError(
            f"{what} runs in one process, and this model is shared by {model.comm.size} ranks;"
            " use load(folder, ranks=1)."
        )


def _exactly(request: Request, before: Continued, chunk: Chunk, around: Surroundings) -> Continued:
    """These rows join the equations, which are solved again."""
    model, memory = before.model, before.memory
    ridge = before.ridge if request.ridge is None else request.ridge
    chunks = [chunk] if memory.equations else [_stand_ins(model, memory, memory.stands), chunk]
    listeners = Listeners(
        NoValidation(),
        NoEarlyStopping(),
        around.callbacks,
        lambda alpha: alpha,
        around.store,
        around.ends,
        Alone(),
    )
    state = memory.equations
    for part in chunks:
        mean = torch.zeros_like(part.Y[0])
        source = source_of(part.X, part.Y, mean=mean, w=part.w, device=model.alpha.device)
        listener = listeners if part is chunk else lambda event: False
        state = _equations(request, model, source, ridge, listener, state)
    assert state is not None
    alpha, precision = state.alpha, model.precision
    most = chunk.Y.abs().amax(0)
    digits = torch.finfo(model.alpha.dtype).eps
    if bool((alpha.abs().sum(0).cpu() * digits <= 1e-3 * most).all()):  # of every output
        alpha = alpha.to(model.alpha.dtype)
    else:  # weights so large that they cancel each other would not survive in float32
        precision = "float64"
    intercept = model.intercept.to(alpha.device)
    after = KernelModel(
        model.kernel,
        model.Z,
        alpha,
        intercept,
        model.tile_bytes,
        precision,
        constants=model.constants,
    )
    rows, weight = memory.rows + len(chunk.w), memory.weight + float(chunk.w.sum())
    return Continued(
        after,
        state.plan,
        ridge,
        before.epochs + 1,
        [*before.history, *listeners.history.rows],
        Memory(rows, weight, model.n_centers, state),
    )


def _by_steps(request: Request, before: Continued, chunk: Chunk, around: Surroundings) -> Continued:
    """EigenPro 4 over these rows and the stand-ins."""
    model, memory, X, w = before.model, before.memory, chunk.X, chunk.w
    solver = (
        request.solver if isinstance(request.solver, solvers.EigenPro4) else solvers.EigenPro4()
    )
    others = _stand_ins(model, memory, min(memory.stands, max(MANY, len(X))))
    wide = torch.promote_types(X.dtype, others.X.dtype)
    X = torch.cat([X.to(wide), others.X.to(X.device, wide)])
    Y = torch.cat([chunk.Y, others.Y]).to(model.alpha.dtype)
    codes = Y.argmax(1) if chunk.classes else None
    data = Rows(X, Y, torch.cat([w, others.w]), Units.of(torch.zeros_like(Y[0])), codes)
    fitted = learn(
        replace(request, solver=solver, plan=None), data, around, warm=Warm(model, before.ridge)
    )
    fitted.model.intercept = model.intercept
    share = 0.0  # of the rows, that was learned
    if fitted.history:
        last = fitted.history[-1]
        share = 1.0 if last["epoch"] else min(1.0, last["rows"] / len(X))
    seen, weight = memory.rows + round(share * len(w)), memory.weight + share * float(w.sum())
    return Continued(
        fitted.model,
        fitted.plan,
        fitted.ridge,
        before.epochs + fitted.epochs,
        [*before.history, *fitted.history],
        Memory(seen, weight, model.n_centers),
        fitted.ended,
    )


def _stand_ins(model: KernelModel, memory: Memory, count: int) -> Chunk:
    """Centers, the model's values there less its intercept, and their weights."""
    rows = model.Z[: memory.stands]
    if count < len(rows):
        drawn = torch.Generator().manual_seed(memory.rows)
        rows = rows[torch.randperm(len(rows), generator=drawn)[:count].to(rows.device)]
    K, Z = model.prepared()
    values = [K.matmul(K.points(part), Z, model.alpha).cpu().double() for part in rows.split(ROWS)]
    return Chunk(
        rows,
        torch.cat(values),
        torch.full((count,), memory.weight / count, dtype=torch.float64),
        False,
    )


def _equations(
    request: Request,
    model: KernelModel,
    source: Source,
    ridge: float,
    listener: solvers.OnEvent,
    before: solvers.DirectState | None,
) -> solvers.DirectState:
    """The equations of these rows and of the rows before, and their solution."""
    where = str(model.alpha.device)
    room = parse_bytes(request.memory_budget, where)
    base = Plan("direct", source.n, source.d, source.c, model.n_centers, device=where, budget=room)
    plan = solvers.Direct().plan(replace(base, ridge=ridge, tile_bytes=tile_bytes(room, where)))
    problem = solvers.Problem(model.kernel, source, model.Z, Alone(), torch.Generator())
    found = solvers.drive(solvers.Direct(), problem, plan, listener, before).state
    assert isinstance(found, solvers.DirectState)
    return found


def add_centers(model: KernelModel, rows: Tensor) -> KernelModel:
    """The model with more centers, of weight zero.

    Rows that are centers already would only make K(Z,Z) singular: they are left out.
    """
    require_whole(model, "add_centers")
    if model.process is not None:
        raise InputError("a Gaussian process cannot take more centers; fit it again.")
    rows = rows.to(model.Z)
    known = {row.tobytes() for row in model.Z.cpu().numpy()}
    numbered = reversed(list(enumerate(rows.cpu().numpy())))
    new = {row.tobytes(): i for i, row in numbered if row.tobytes() not in known}
    if len(new) < len(rows):
        warn(
            f"{len(rows) - len(new)} of the {len(rows)} rows given to add_centers are centers"
            " already, and are left out."
        )
        rows = rows[sorted(new.values())]
    alpha = torch.cat([model.alpha, model.alpha.new_zeros(len(rows), model.alpha.shape[1])])
    Z, constants = torch.cat([model.Z, rows]), still_constant(model.constants, rows)
    return KernelModel(
        model.kernel,
        Z,
        alpha,
        model.intercept,
        model.tile_bytes,
        model.precision,
        constants=constants,
    )
