"""The design of a model: what is decided before the first step, and where a run starts from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..distributed.team import Alone, Communicator, as_many, is_alone, shard
from ..errors import InputError, warn
from ..kernels import Kernel
from ..model import KernelModel
from ..planning.plan import Plan
from ..solvers import Ended, Solution, Solver, State
from ..storage.run_folder import Choices, Saved
from .request import Request
from .rows import Data

log = logging.getLogger("kernelmill")


class Judged(NamedTuple):
    """Values that models said of rows they were not fitted to, (r, c), the targets, and weights."""

    values: Tensor
    targets: Tensor
    w: Tensor


@dataclass(frozen=True)
class Choice:
    """A kernel, the ridge over the mean weight, and the squared error that they promise, if
    known.

    `chosen` says which of those that were `tried` it is; `judged` is what it said of rows that it
    was not fitted to.
    """

    kernel: Kernel
    ridge: float
    expected: float | None = None
    chosen: str = ""
    tried: list[tuple[str, float, float]] | None = None
    judged: Judged | None = None
    signal: Tensor | None = None  # (c,) of a Gaussian process, the variance of its function
    solver: Solver | None = None  # that they are for, and the sizes of the run
    base: Plan | None = None


@dataclass(frozen=True)
class Centers:
    """This rank's centers.

    `order` is the permutation they were put in, None where they are as given; `every_row`: they
    are the rows, in the rows' order.
    """

    Z: Tensor
    order: Tensor | None = None
    every_row: bool = False

    def permute(self, alpha: Tensor) -> Tensor:
        """Weights of the centers as they were given, in the order of the run."""
        return alpha if self.order is None else alpha[self.order.to(alpha.device)]

    def restore(self, alpha: Tensor, comm: Communicator) -> tuple[Tensor, Tensor]:
        """Weights and centers in the order they were given in; a job leaves them as they are."""
        if self.order is None or not is_alone(comm):
            return alpha, self.Z
        back = torch.argsort(self.order)
        return alpha[back.to(alpha.device)], self.Z[back.to(self.Z.device)]


@dataclass(frozen=True)
class Design:
    """What is decided before the first step, and what a run folder calls choices.

    `own` is the kernel as the user wrote it, `choice.kernel` the one that is trained with: the
    same but for a factor. `constants` are the features that never varied, with their values.
    """

    choice: Choice
    own: Kernel
    centers: Centers
    constants: dict[int, float]
    plan: Plan
    generator: torch.Generator

    @property
    def kernel(self) -> Kernel:
        return self.choice.kernel

    @property
    def unit(self) -> float:
        """K of the user's kernel is this times K of the one that is trained with."""
        return kernels.magnification(self.own, self.kernel) ** (2 * (self.kernel.homogeneity or 0))

    @property
    def own_kernel(self) -> Kernel:
        """The model's kernel."""
        return self.kernel if kernels.magnification(self.own, self.kernel) == 1 else self.own

    def to_choices(self) -> Choices:
        return {
            "kernel": self.kernel,
            "ridge": self.choice.ridge,
            "plan": self.plan,
            "dealt": {"Z": self.centers.Z},
            "order": self.centers.order,
            "every_row": self.centers.every_row,
            "expected": self.choice.expected,
            "judged": None if self.choice.judged is None else self.choice.judged._asdict(),
            "signal": self.choice.signal,
            "constants": self.constants,
            "generator": self.generator.get_state(),
        }


@dataclass(frozen=True)
class Warm:
    """A fitted model to go on from, its ridge, and the settings it was fitted with, as text."""

    model: KernelModel
    ridge: float
    kept: dict[str, str] = field(default_factory=dict)

    def check(self, request: Request, data: Data) -> None:
        """Refuse data of another shape, and settings that a warm start cannot change."""
        d, c = data.source.d, data.source.c
        model = self.model
        if model.Z.shape[1] != d or model.alpha.shape[1] != c:
            raise InputError(
                f"warm_start=True, but the fitted model has {model.Z.shape[1]} features and "
                f"{model.alpha.shape[1]} outputs, the new data {d} and {c}; set warm_start=False."
            )
        now = request.kept
        changed = [name for name, text in now.items() if self.kept.get(name, text) != text]
        if changed:
            raise InputError(
                f"warm_start=True keeps kernel and centers, but {', '.join(changed)} changed"
                " since the last fit; set warm_start=False."
            )

    @property
    def sharded(self) -> bool:
        return not is_alone(self.model.comm)

    def check_team(self, team: Communicator) -> None:
        if self.sharded and not as_many(self.model.comm, team):
            raise InputError(
                f"warm_start=True, but {self.model.comm.size} ranks share the model and"
                f" {team.size} would continue it; load it again."
            )

    def weights(self, design: Design, data: Data, team: Communicator) -> Tensor:
        """This rank's weights of the model, in the run's order and units."""
        alpha = design.centers.permute(self.model.alpha * design.unit)
        alpha = alpha if self.sharded else alpha[shard(team)]
        scale = data.rows.units.scale.to(data.device)
        return (alpha.to(data.device) / scale).to(design.plan.torch_dtype)


@dataclass(frozen=True)
class Start:
    """Where a fit starts: from nothing, from a stored plan, from a fitted model, or from a
    run's folder.

    A plan is used as it is, and so are the choices of a run; `saved` is the run's last state.
    """

    plan: Plan | None = None
    warm: Warm | None = None
    own: Tensor | None = None  # the user's own centers
    choices: Choices | None = None
    saved: Saved | None = None

    @property
    def given(self) -> Tensor | None:
        """Centers that are not to be chosen; of a sharded model this rank's."""
        return self.own if self.warm is None else self.warm.model.Z

    def count_centers(self, request: Request, n: int) -> int | None:
        """How many centers there are; None where that is to be decided."""
        if self.warm is not None:
            return self.warm.model.n_centers
        if self.own is not None:
            return len(self.own)
        if request.n_centers is not None and request.n_centers > n:
            warn(
                f"n_centers={request.n_centers} is more than the {n} rows to train on: each of"
                " them becomes a center."
            )
        return None if request.n_centers is None else min(n, request.n_centers)

    def finished(self, state: State | None) -> Solution | None:
        """What a run that had come to its end had found."""
        if state is None or self.saved is None or not self.saved["finished"]:
            return None
        return Solution(state, Ended.DONE)

    def design(self, request: Request, plan: Plan) -> Design | None:
        """What the run had decided, if there is one."""
        before = self.choices
        if before is None:
            return None
        kernel = before["kernel"] or request.kernel or kernels.Laplacian()
        own = (request.kernel or kernel) if self.warm is None else self.warm.model.kernel
        Z = before["dealt"]["Z"].to(plan.device)
        generator = torch.Generator()
        generator.set_state(before["generator"])
        return Design(
            Choice(
                kernel,
                before["ridge"],
                before["expected"],
                judged=None if before["judged"] is None else Judged(**before["judged"]),
                signal=before["signal"],
            ),
            own,
            Centers(Z, before["order"], before["every_row"]),
            before["constants"],
            plan,
            generator,
        )


# Who is told of a recipe that was tried: what it is, its score, the best so far, and the seconds
# that are left.
Choosing = Callable[[str, float, float, float], None]


def log_choice(label: str, score: float, best: float, left: float) -> None:
    log.info("tuning: %s: %.4g", label, score)


@dataclass(frozen=True)
class Task:
    """A problem with its solver: what was asked for, the rows, where it starts, and the sizes
    so far.
    """

    request: Request
    data: Data
    start: Start
    solver: Solver
    base: Plan
    comm: Communicator
    more: Plan | None = None  # every row a center, if choosing finds that it is worth the time
    choosing: Choosing = log_choice

    @property
    def team(self) -> Communicator:
        """The ranks that share the centers: all of them, or this one alone where the solver is
        not sharded.
        """
        return self.comm if self.solver.sharded else Alone()

    @property
    def covers_all_ranks(self) -> bool:
        return self.solver.sharded or is_alone(self.comm)
