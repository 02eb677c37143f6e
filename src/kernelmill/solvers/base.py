"""What every solver shares: its interface, its state and the events it reports."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..errors import InputError, KernelmillError
from ..kernels import Kernel
from ..planning import Plan
from ..settings import Settings


@dataclass(frozen=True)
class Event:
    """Something a run reports: "start", "projection", "epoch", "step_back", "less_memory", "interrupted" or "end"."""

    kind: str
    epoch: int  # whole epochs done
    rows: int  # rows seen so far, of rows_total
    rows_total: int
    seconds: float
    loss: float | None = None  # mean weighted squared residual of the rows since the last event, each before its own step
    eta: float | None = None
    note: str = ""
    alpha: Tensor | None = field(default=None, repr=False, compare=False)
    state: State | None = field(default=None, repr=False, compare=False)  # all that the run could go on from; not to be changed


SMALLEST_SCALE = 2.0**-12  # a run that has halved its step this far gives up, and returns the last good weights
MAX_GROWTH = 1.5  # residuals may be this many times as large as the targets (predicting 0 gives 1) before a run steps back

OnEvent = Callable[[Event], bool]  # True asks the solver to stop at its last projection


@dataclass(frozen=True)
class Uncertainty:
    """What a Gaussian process knows beside its mean: L Lᵀ = K(Z,Z), R Rᵀ = ΦᵀwΦ + λ, and the variances of signal and noise, (c,)."""

    L: Tensor
    R: Tensor
    signal: Tensor
    noise: Tensor
    ridge: float

    def times(self, unit: float) -> Uncertainty:
        """The same process with a kernel `unit` times as large."""
        return Uncertainty(self.L * unit**0.5, self.R * unit**0.5, self.signal / unit, self.noise, self.ridge * unit)


@dataclass
class State:
    """What a run is made of between two cycles; exactly what a checkpoint stores. Tensors hold this rank's rows of Z."""

    plan: Plan
    alpha: Tensor  # (p, c) weights
    r: Tensor  # (p, c) what K(Z,Z) α still lacks on Z; of other solvers, their residual or sum of gradients
    energy: float = 0.0  # mean weighted squared target, the loss of predicting nothing; of Falkon, the preconditioned right-hand side's
    epoch: int = 0
    position: int = 0  # rows of this epoch already seen
    step_scale: float = 1.0  # halved at every step back
    loss: float | None = None  # of the last cycle
    epoch_loss: float = 0.0  # of this epoch so far: a weighted sum, and the weight
    epoch_weight: float = 0.0
    f_s: Tensor | None = None  # (s, c) values on the subsample; only with a ridge
    D: Tensor | None = None  # (p, c) mean gradient of the last epoch, on Z; only with the control variate
    D_next: Tensor | None = None  # the same of this epoch, so far
    g_last: Tensor | None = None  # (n, c) residual of each row when last seen
    value: float = float("inf")  # of the objective, where the solver watches it
    direction: Tensor | None = None  # (p, c) where conjugate gradients go next; of ASkotch, its second sequence v
    normal: Tensor | None = None  # (p, p) normal equations of the rows so far, whose right-hand side is r; of Direct
    triangle: Tensor | None = None  # (p, p + c) [R | Qᵀy] of the same rows, where the normal equations have too few digits
    uncertainty: Uncertainty | None = None  # of a Gaussian process
    stopped: str = ""  # why the run ended before its last epoch, if it did

    def copy(self) -> State:
        """A state that later steps do not touch. g_last is shared: a step back may reread rows, which is harmless."""
        shared = {"plan", "g_last"}
        return State(
            **{f.name: getattr(self, f.name) if f.name in shared else copy.copy(_clone(getattr(self, f.name))) for f in fields(self)}
        )


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class Solver(Settings, ABC):
    """One method of training. Settings are fields under the paper's letters; `plan` decides sizes, `solve` does the work; the rest is what
    it asks of those who call it."""

    name: ClassVar[str]
    needs_ridge = False  # goes so near to its fixed point that a ridge has to be chosen where none is given
    every_row = False  # its centers are the rows, in the rows' order
    subsamples = False  # takes its subsample from the first centers, which must then be in random order
    loss_name = "square"
    stops_early = False  # stopping at the best score of held-out rows is its regularisation
    criterion = "loo"  # by which bandwidth and ridge are chosen: leave-one-out error, or "elbo", a bound on the evidence
    sharded = False  # its work and memory are shared by all ranks; else rank 0 does it while the others wait
    patience = 3  # epochs without a better score that early stopping waits for

    def default_centers(self, n: int) -> int:
        """How many centers where nobody said."""
        return n if self.every_row else min(n, 10_000 if n <= 50_000 else 20_000)

    @property
    def for_classes(self) -> bool:
        return self.loss_name != "square"

    def intercept(self, mean: Tensor) -> Tensor:
        """(c,) what the model adds to K(x, Z) α; `mean` was taken off the targets."""
        return mean

    @abstractmethod
    def plan(self, base: Plan) -> Plan: ...

    @abstractmethod
    def solve(
        self,
        kernel: Kernel,
        source: Source,
        Z: Tensor,
        plan: Plan,
        comm: Communicator,
        generator: torch.Generator,
        on_event: OnEvent,
        state: State | None = None,
    ) -> State: ...


class NotFinite(KernelmillError, ArithmeticError):
    """Numbers left the range of the precision that was used."""


def check_finite(values: Tensor | None, plan: Plan) -> None:
    """Raise unless all are finite. Waits for the device."""
    if values is not None and not torch.isfinite(values).all():
        wider = "use precision='float64', or rescale X and y" if plan.precision != "float64" else "rescale X and y"
        raise NotFinite(f"solver={plan.solver!r} left the range of {plan.precision}: its numbers are no longer finite; {wider}.")


class Reporter:
    """Turns progress into events with a clock of its own. No solver gets past the last one with weights that are not finite."""

    def __init__(self, plan: Plan, on_event: OnEvent):
        self._plan, self._on_event, self._start = plan, on_event, time.perf_counter()

    def __call__(self, kind: str, epoch: int, position: int, **values: Any) -> bool:
        if kind == "end":
            check_finite(values.get("alpha"), self._plan)
        total = self._plan.n * self._plan.epochs
        rows = min(total, epoch * self._plan.n + position)
        return bool(self._on_event(Event(kind, epoch, rows, total, time.perf_counter() - self._start, **values)))


def target_energy(source: Source) -> float:
    """Mean weighted squared target, from up to 10,000 rows evenly spread over the data."""
    Y, w = source.targets(torch.linspace(0, source.n - 1, min(source.n, 10_000), dtype=torch.float64).round().long())
    return ((w[:, None] * Y * Y).sum() / w.sum()).item()


def alone(comm: Communicator, solver: str) -> None:
    if comm.size > 1:
        raise InputError(f"solver={solver!r} runs on one rank, {comm.size} were given; use EigenPro4, EigenPro3, EigenPro2 or EigenPro1.")
