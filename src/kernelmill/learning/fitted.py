"""What a fit gives: the model, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..distributed.team import Communicator
from ..kernels import Kernel
from ..model import KernelModel
from ..planning.plan import Plan
from ..solvers import HistoryRow, State
from .design import Design, Judged, Task
from .rows import Data, Units


@dataclass(frozen=True)
class Check:
    """Mean squared errors, over the targets' variance for numbers; `margin` is two standard errors
    of the one found.
    """

    expected: float
    found: float
    margin: float
    rows: int

    def within(self, limit: tuple[float, float]) -> bool:
        factor, more = limit
        return self.found - self.margin <= factor * self.expected + more  # false of NaN


@dataclass(frozen=True)
class Blueprint:
    """What weights become a model with: kernel, centers, units of the targets.

    `units.mean` is the model's intercept.
    """

    kernel: Kernel
    Z: Tensor
    units: Units
    plan: Plan
    comm: Communicator
    constants: dict[int, float]

    @classmethod
    def of(cls, task: Task, design: Design) -> Blueprint:
        given = task.data.rows.units
        units = Units(task.solver.intercept(given.mean, task.data.source), given.scale)
        return cls(design.kernel, design.centers.Z, units, design.plan, task.team, design.constants)

    def weights(self, alpha: Tensor) -> Tensor:
        """A solver's weights in the units of the targets; in float64 where float32 has no room for
        them.
        """
        scale = self.units.scale.to(alpha.device)
        if bool((scale == 1).all()):
            return alpha
        room = bool(((scale > 1e-25) & (scale < 1e25)).all())
        return (alpha.double() * scale.double()).to(alpha.dtype if room else torch.float64)

    def model(
        self,
        alpha: Tensor,
        precision: str | None = None,
        state: State | None = None,
        unit: float = 1.0,
    ) -> KernelModel:
        """The model of weights in the units of the targets.

        What it adds stays float64 for numbers: of 1.7e9 ± 10, float32 would keep nothing. Its
        kernel is `unit` times the one that was trained with.
        """
        scale = self.units.scale.to(alpha.device)
        known = getattr(state, "uncertainty", None)
        if known is not None:
            known = known.times(unit)
            known = replace(known, signal=known.signal * scale**2, noise=known.noise * scale**2)
        precision = precision or self.plan.precision
        if unit != 1:  # back to the user's own units, which only float64 has room for
            alpha, precision = alpha.double() / unit, "float64"
        return KernelModel(
            self.kernel,
            self.Z.to(alpha.device),
            alpha,
            self.units.mean.to(alpha.device),
            self.plan.tile_bytes,
            precision,
            known,
            self.comm,
            self.plan.p,
            self.constants,
        )


@dataclass(frozen=True)
class Fitted:
    """A trained model, every size that was used, and how the run went.

    `ended` is a sentence where it ended otherwise than it should. `check` compares the model with
    what choosing promised, where that is known.
    """

    model: KernelModel
    plan: Plan
    ridge: float
    loss: str
    epochs: int
    history: list[HistoryRow]
    timings: dict[str, float]
    data: Data
    interrupted: bool = False
    ended: str = ""
    check: Check | None = None
    judged: Judged | None = None

    @property
    def rows(self) -> int:
        return self.data.source.n

    @property
    def weight(self) -> float:
        """Of all rows that were trained on."""
        return self.rows * self.data.weight
