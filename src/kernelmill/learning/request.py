"""The request: what the user asked for, checked and resolved once.

Below it nobody knows "auto".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import centers as ways
from .. import kernels, solvers
from ..errors import InputError, one_of
from ..kernels import Kernel
from ..planning.arguments import unless_auto, whole
from ..planning.plan import Plan
from ..planning.precision import check_precision
from ..solvers import Solver

# Settings that do not change what is learned.
OF_THIS_MACHINE = (
    "callbacks",
    "verbose",
    "checkpoint",
    "checkpoint_every",
    "resume",
    "device",
    "memory_budget",
    "random_state",
    "ranks",
)
KEPT = ("kernel", "n_centers", "centers")  # by a warm start


@dataclass(frozen=True)
class Request:
    """What a fit is asked for; None leaves a choice to the library."""

    kernel: Kernel | None = None
    n_centers: int | None = None
    solver: Solver | None = None
    plan: Plan | None = None  # of an earlier fit, to do the same again
    epochs: int | None = None
    ridge: float | None = None
    centers: str | Tensor = "uniform"
    device: str = "cpu"
    precision: str | None = None
    memory_budget: int | str | None = None
    early_stopping: bool = False
    seed: int = 0
    # As given: what a resumed run must repeat.
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], *, device: str, early_stopping: bool, seed: int
    ) -> Request:
        """From the arguments of an estimator."""
        given = {name: unless_auto(value) for name, value in settings.items()}
        solver = given["solver"]
        plan = solver if isinstance(solver, Plan) else None
        if plan is not None:
            _refuse_beside_plan(given)
        return cls(
            kernel=resolve_kernel(settings["kernel"]),
            n_centers=whole("n_centers", given["n_centers"], 1),
            solver=solvers.resolve(solver) if plan is None and solver is not None else None,
            plan=plan,
            epochs=whole("epochs", given["epochs"], 1),
            ridge=_check_ridge(given["ridge"]),
            centers=_check_centers(given["centers"]),
            device=device,
            precision=check_precision(given["precision"]),
            memory_budget=given["memory_budget"],
            early_stopping=early_stopping,
            seed=seed if plan is None else plan.seed,
            settings={name: settings[name] for name in settings if name not in OF_THIS_MACHINE},
        )

    @property
    def kept(self) -> dict[str, str]:
        """The settings that a warm start keeps, as text."""
        return {name: repr(self.settings[name]) for name in KEPT if name in self.settings}

    def centers_given(self, d: int, dtype: torch.dtype) -> Tensor | None:
        """The user's own centers, of the model's own memory; None where they are to be chosen."""
        if isinstance(self.centers, str):
            return None
        Z = self.centers
        if Z.ndim != 2 or Z.shape[1] != d or len(Z) == 0:
            shape = tuple(Z.shape)
            raise InputError(
                f"centers of shape {shape} were given, expected (p, {d}): a row per center, a"
                " column per feature."
            )
        Z = Z.to(dtype, copy=True)
        if not torch.isfinite(Z).all():
            raise InputError("centers contain NaN or infinity; give finite rows.")
        if self.n_centers is not None and self.n_centers != len(Z):
            raise InputError(
                f"n_centers={self.n_centers} was given together with {len(Z)} rows of centers;"
                " leave n_centers out."
            )
        return Z


def resolve_kernel(kernel: object) -> Kernel | None:
    """The user's kernel, with settings that nobody else can change; None where one is to be
    chosen.
    """
    return None if unless_auto(kernel) is None else kernels.resolve(kernel).owned()


def _refuse_beside_plan(given: Mapping[str, object]) -> None:
    """A stored plan has its own sizes."""
    twice = [
        name
        for name in ("ridge", "epochs", "precision", "memory_budget")
        if given[name] is not None
    ]
    if twice:
        raise InputError(
            f"a plan was given as solver, which has its own {' and '.join(twice)}; leave them out."
        )


def _check_ridge(ridge: object) -> float | None:
    if ridge is None:
        return None
    if isinstance(ridge, bool) or not isinstance(ridge, Real) or not 0 <= float(ridge) < math.inf:
        raise InputError(
            f"ridge={ridge!r} was given, expected a finite number of 0 or more, or None to have it"
            " chosen."
        )
    return float(ridge)


def _check_centers(centers: object) -> str | Tensor:
    if centers is None:
        return "uniform"
    if isinstance(centers, str):
        if centers not in ways.WAYS:
            raise one_of("centers", centers, ways.WAYS)
        return centers
    return torch.as_tensor(np.asarray(centers.cpu() if isinstance(centers, Tensor) else centers))
