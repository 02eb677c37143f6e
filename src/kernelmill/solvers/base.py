"""What every solver shares: its interface, what it is given, its state, what it reports and why it
ends.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import ClassVar, Generic, NamedTuple, NotRequired, Self, TypedDict, TypeVar

import torch
from torch import Tensor

from .. import losses
from ..data import Source
from ..distributed.team import Communicator
from ..errors import InputError, KernelmillError, OutOfMemory
from ..kernels import Kernel
from ..losses import Loss
from ..params import Settings
from ..planning.machine import Rates
from ..planning.plan import Plan
from ..types import Json


class Ended(Enum):
    """Why a run ended."""

    DONE = "it reached its end"
    STOPPED = "a callback asked for it"
    INTERRUPTED = "it was interrupted"
    DIVERGED = "the residuals grew at every step size"
    # The solver's last report says how far, and what would help.
    SHORT = "it is far from its limit"


@dataclass(frozen=True)
class Event:
    """Something a run reports; callbacks get each of them.

    Parameters
    ----------
    kind : str
        "start", "projection", "epoch", "step_back", "less_memory", "interrupted" or "end".
    epoch : int
        Whole epochs done.
    rows, rows_total : int
        Rows seen so far, and in the whole run.
    seconds : float
        Since the run began.
    loss : float, optional
        Mean weighted loss of the rows since the last event, each before its own step.
    eta : float, optional
        The step size.
    note : str
        What happened, in words.
    alpha : Tensor, optional
        The weights that a model of this moment would have, in the order of its centers.
    state : State, optional
        All that the run could resume from; not to be changed.
    ended : Ended, optional
        Why it ended, for "end".
    score : float, optional
        Of held-out rows, after an epoch: that of a model of this moment, calibrated on them.
    """

    kind: str
    epoch: int  # whole epochs done
    rows: int  # rows seen so far, of rows_total
    rows_total: int
    seconds: float
    # Mean weighted loss of the rows since the last event, each before its own step; squared
    # residuals, mostly.
    loss: float | None = None
    eta: float | None = None
    note: str = ""
    alpha: Tensor | None = field(default=None, repr=False, compare=False)
    # All that the run could go on from; not to be changed.
    state: State | None = field(default=None, repr=False, compare=False)
    ended: Ended | None = None  # of the event "end"
    score: float | None = None  # of held-out rows, after an epoch


# Times the loss of predicting a constant that rows may have before a run steps back.
MAX_GROWTH = 1.5

OnEvent = Callable[[Event], bool]  # True asks the run to stop


class HistoryRow(TypedDict):
    """What a history keeps of an event."""

    kind: str
    epoch: int
    rows: int
    seconds: float
    loss: float | None
    eta: float | None
    note: NotRequired[str]
    validation_score: NotRequired[float]


@dataclass(frozen=True)
class Sparse:
    """What a sparse Gaussian process knows beside its mean: L Lᵀ = K(Z,Z), R Rᵀ = ΦᵀwΦ + λ, and
    the variances of signal and noise, (c,).
    """

    L: Tensor
    R: Tensor
    signal: Tensor
    noise: Tensor
    ridge: float

    def times(self, unit: float) -> Sparse:
        """The same process with a kernel `unit` times as large."""
        return Sparse(
            self.L * unit**0.5,
            self.R * unit**0.5,
            self.signal / unit,
            self.noise,
            self.ridge * unit,
        )

    def in_units(self, scale: Tensor) -> Sparse:
        """Of targets that are `scale` (c,) times as large."""
        return replace(self, signal=self.signal * scale**2, noise=self.noise * scale**2)


@dataclass(frozen=True)
class Problem:
    """What is to be solved: rows of `source` by a sum of `kernel` over the centers Z, of which
    this rank has some rows.
    """

    kernel: Kernel
    source: Source
    Z: Tensor
    comm: Communicator
    generator: torch.Generator


@dataclass
class State:
    """What a run is made of between two rounds, and what a checkpoint stores.

    Tensors hold this rank's rows of Z. Each solver adds its own fields; those of `SHARED` are not
    copied, those of `PASSING` not stored.
    """

    plan: Plan
    alpha: Tensor  # (p, c) weights
    epoch: int = 0
    position: int = 0  # rows of this epoch already seen
    step_scale: float = 1.0  # halved at every step back
    loss: float | None = None  # of the last round

    SHARED: ClassVar[set[str]] = {"plan"}
    PASSING: ClassVar[set[str]] = set()

    @classmethod
    def of(cls, plan: Plan, alpha: Tensor) -> Self:
        """The state of weights that come from elsewhere."""
        return cls(plan, alpha)

    def copy(self) -> Self:
        """A state that later rounds do not touch."""
        own = copy.copy(self)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor) and f.name not in self.SHARED:
                setattr(own, f.name, value.clone())
        return own

    def settled(self) -> Self:
        """What a run ends with: the best weights it has seen, where the last ones are not."""
        return self

    def revert(self) -> None:
        """Undo what later rounds did to fields that copies share."""


@dataclass(frozen=True)
class Report:
    """What a solver says after a round: "projection" or "epoch"; "start" only gives a state to
    begin with.

    `state` is one that later rounds do not touch, or None while there are no weights yet and only
    `rows` were seen. `short` ends the run: why it is far from its limit, and what would help.
    `note` stands in the history.
    """

    kind: str
    state: State | None
    loss: float | None = None
    eta: float | None = None
    rows: int = 0
    short: str = ""
    note: str = ""


class Diverged(Exception):
    """The residuals grew past the targets with steps of this size: the state is spoiled."""

    def __init__(self, eta: float | None = None):
        self.eta = eta


class Setup:
    """What a solver prepares once, beside its state. `plan` has what was measured."""

    plan: Plan

    def leaner(self) -> Self:
        """The same on less memory, after it ran out."""
        raise OutOfMemory(
            f"out of memory in solver={self.plan.solver!r}; use fewer centers or a smaller"
            " memory_budget."
        )


SetupT = TypeVar("SetupT", bound=Setup)

StateT = TypeVar("StateT", bound=State | None)


class Solver(Settings, ABC, Generic[SetupT, StateT]):
    """One method of training, of a Setup and a state of its own.

    Settings are fields under the paper's letters; `plan` decides sizes, `prepare` and `rounds` do
    the work; the rest is what it asks of those who call it.
    """

    name: ClassVar[str]
    state: ClassVar[type[State]] = State
    exact = False  # "auto" offers it as a way to the exact solution
    # Goes so near to its fixed point that a ridge has to be chosen where none is given.
    needs_ridge = False
    # Takes the ridge that is found where the kernel is chosen.
    takes_ridge = False
    every_row = False  # its centers are the rows, in the rows' order
    # Takes its subsample from the first centers, which must then be in random order.
    subsamples = False
    loss: losses.Given = "square"  # what it makes small; of some a setting
    stops_early = False  # stopping at the best score of held-out rows is its regularisation
    # By which bandwidth and ridge are chosen: leave-one-out error, or
    # "elbo", a bound on the evidence.
    criterion = "loo"
    # Its work and memory are shared by all ranks; else rank 0 does it while the others wait.
    rounds_are = "epochs"  # or "iterations": what a report calls them
    sharded = False
    resumable = True  # a run can go on from its state
    # Neither a ridge nor few steps keep it from the noise: what ridge regression would say of rows
    # that are left out tells nothing of it.
    interpolates = False
    patience = 3  # epochs without a better score that early stopping waits for

    def default_centers(self, n: int) -> int:
        """How many centers where nobody said."""
        return n if self.every_row else min(n, 10_000 if n <= 50_000 else 20_000)

    def takes(self, loss: Loss) -> bool:
        """Whether it can minimise this loss."""
        return loss.name == self.loss_name

    @property
    def loss_name(self) -> str:
        return losses.resolve(self.loss).name

    @property
    def for_classes(self) -> bool:
        """Whether it has no use for numbers."""
        return not losses.resolve(self.loss).for_numbers

    def intercept(self, mean: Tensor, source: Source | None = None) -> Tensor:
        """(c,) what the model adds to K(x, Z) α; `mean` was taken off the targets of `source`."""
        return losses.resolve(self.loss).intercept(mean, source)

    def settings(self) -> dict[str, Json]:
        """Its parameters as a plan keeps them: plain data."""
        return {
            name: losses.plain(value) if isinstance(value, Loss) else value
            for name, value in self.get_params().items()
        }

    def start_from(self, plan: Plan, alpha: Tensor) -> State | None:
        """The state to go on from with the weights of a fitted model."""
        return self.state.of(plan, alpha)

    @abstractmethod
    def plan(self, base: Plan) -> Plan: ...

    def seconds(self, plan: Plan, rates: Rates) -> float | None:
        """Predicted from the machine's rates: each term a line of the loop.

        None where no cost is known.
        """
        return None

    @classmethod
    def offers(cls, sizes: Plan) -> list[Offer]:
        """The ways that solver="auto" may take for this problem."""
        return []

    @abstractmethod
    def prepare(self, problem: Problem, plan: Plan, state: StateT | None) -> tuple[SetupT, StateT]:
        """Its Setup, and the state to begin with: the one given, with what it lacks, or a new one.

        None: no weights until the end.
        """

    @abstractmethod
    def rounds(self, problem: Problem, setup: SetupT, state: StateT) -> Iterator[Report]:
        """The method itself, a report after each round.

        Between two of them a run may be stored, stopped and taken up again.
        """


class Offer(NamedTuple):
    """A way to train that solver="auto" considers: its name in the table, the solver, and the
    sizes it is planned for.
    """

    label: str
    solver: Solver
    sizes: Plan


class NotFinite(KernelmillError, ArithmeticError):
    """Numbers left the range of the precision that was used."""


def check_finite(values: Tensor | None, plan: Plan) -> None:
    """Raise unless all are finite. Waits for the device."""
    if values is not None and not torch.isfinite(values).all():
        wider = (
            "use precision='float64', or rescale X and y"
            if plan.precision != "float64"
            else "rescale X and y"
        )
        raise NotFinite(
            f"solver={plan.solver!r} left the range of {plan.precision}: its numbers are no longer"
            f" finite; {wider}."
        )


def check_loss(solver: Solver, base: Plan) -> Loss:
    """The loss of a solver, or the error that says which ones it takes, and of which targets."""
    loss = losses.resolve(solver.loss)
    if not solver.takes(loss):
        taken = ", ".join(
            repr(name) for name, known in losses.NAMED.items() if solver.takes(known())
        )
        raise InputError(
            f"loss={solver.loss!r} was given, but solver={solver.name!r} as set takes {taken}; use"
            " one, or another solver."
        )
    if not loss.for_classes and not base.regression:
        raise InputError(
            f"loss={solver.loss!r} is one of numbers; use KernelRegressor, or loss='logistic' for"
            " classes."
        )
    return loss


def target_energy(source: Source, loss: Loss, like: Tensor) -> float:
    """The mean loss of predicting nothing, from up to 10,000 rows evenly spread over the data.

    `loss` is within the source's units.
    """
    Y, w = (part.to(like) for part in losses.sample(source))
    return (loss.total_of_nothing(Y, w) / w.sum()).item()
