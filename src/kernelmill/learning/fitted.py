"""What a fit gives: the model, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.source import Batch
from ..distributed.team import Communicator
from ..kernels import Kernel
from ..model import KernelModel
from ..planning.plan import Plan
from ..processes import SampledProcess, SparseProcess
from ..solvers import HistoryRow, Solver, State
from ..tuning.left_out import SOME_CENTERS, Leverage, leverages
from .design import Design, Judged, Task
from .draws import Draws, NoDraws
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
    draws: NoDraws

    @classmethod
    def of(cls, task: Task, design: Design, draws: NoDraws) -> Blueprint:
        given = task.data.rows.units
        units = Units(task.solver.intercept(given.mean, task.data.source), given.scale)
        Z, team = design.centers.Z, task.team
        return cls(design.kernel, Z, units, design.plan, team, design.constants, draws)

    def weights(self, alpha: Tensor) -> Tensor:
        """A solver's weights in the units of the targets; in float64 where float32 has no room for
        them. Those of drawn functions, beside them, have a unit of their own.
        """
        scale = self.units.scale.to(alpha.device)
        scale = torch.cat([scale, scale.new_ones(alpha.shape[1] - len(scale))])
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
        scale, c = self.units.scale.to(alpha.device), len(self.units.scale)
        precision = precision or self.plan.precision
        if unit != 1:  # back to the user's own units, which only float64 has room for
            alpha, precision = alpha.double() / unit, "float64"
        known = getattr(state, "known", None)
        process: SparseProcess | SampledProcess | None = None
        if known is not None:
            process = SparseProcess(known.times(unit).in_units(scale))
        elif isinstance(self.draws, Draws):
            process = self.draws.process(alpha[:, c:], scale)
        return KernelModel(
            self.kernel,
            self.Z.to(alpha.device),
            alpha[:, :c],
            self.units.mean.to(alpha.device),
            self.plan.tile_bytes,
            precision,
            process,
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
    solver: Solver
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

    def leverages(self, wanted: Tensor | None = None) -> tuple[Leverage, Batch] | None:
        """Training rows with their leverages: those `wanted` by number, or some. None where the
        model interpolates, or a factor fails.
        """
        plan, data, model = self.plan, self.data, self.model
        if self.solver.interpolates or data.source.n < 2:
            return None
        ridge = self.ridge / data.weight
        Z = None if plan.every_row else model.some_centers(SOME_CENTERS)
        found = model.comm.same(
            lambda: leverages(model.kernel, ridge, data.source, Z, plan.p, data.budget, wanted)
        )
        return None if found is None else (found, data.source.take(found.rows))

    @property
    def weight(self) -> float:
        """Of all rows that were trained on."""
        return self.rows * self.data.weight
