"""The request: what the user asked for, checked and resolved once.

Below it nobody knows "auto".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import centers as ways
from .. import kernels, solvers
from ..data import within
from ..errors import InputError, one_of
from ..kernels import Kernel
from ..planning.arguments import unless_auto, whole
from ..planning.plan import Plan
from ..planning.precision import check_precision
from ..solvers import Solver
from ..tuning.recipes import Ways
from ..uncertainty import Posterior
from ..uncertainty import resolve as resolve_uncertainty

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
    "time_limit",
)
MEMBERS = 3  # kernels of a sum, at most
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
    time_limit: float | None = None  # seconds
    ways: Ways = field(default_factory=Ways)
    scoring: str | None = None  # of held-out rows
    posterior: Posterior | None = None  # where one is to be learned beside the mean
    seed: int = 0
    # As given: what a resumed run must repeat.
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        *,
        device: str,
        early_stopping: bool,
        scoring: str | None,
        seed: int,
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
            time_limit=_check_seconds(given["time_limit"]),
            ways=_check_ways(given["feature_learning"], given["ensemble"]),
            scoring=scoring,
            posterior=_check_posterior(settings.get("uncertainty")),
            seed=seed if plan is None else plan.seed,
            settings={name: settings[name] for name in settings if name not in OF_THIS_MACHINE},
        )

    @property
    def seconds(self) -> tuple[float, float]:
        """What solving may take, by prediction, where the number of centers is open: usually, and
        at most.
        """
        return solvers.seconds_to_solve(self.device, self.time_limit)

    def after(self, seconds: float) -> Request:
        """With what is left of the time limit, a quarter of it at least."""
        if self.time_limit is None:
            return self
        return replace(self, time_limit=max(self.time_limit - seconds, self.time_limit / 4))

    @property
    def samples(self) -> int:
        """Further outputs, for functions of the posterior."""
        return 0 if self.posterior is None else self.posterior.samples

    def wants_ridge(self, solver: Solver) -> bool:
        """Whether one has to be chosen where none is given: a Gaussian process has noise."""
        return solver.needs_ridge or self.posterior is not None

    @property
    def kept(self) -> dict[str, str]:
        """The settings that a warm start keeps, as text."""
        return {name: repr(self.settings[name]) for name in KEPT if name in self.settings}

    def centers_given(
        self, d: int, dtype: torch.dtype, bounds: np.ndarray | None = None
    ) -> Tensor | None:
        """The user's own centers within (2, d) bounds, of the model's own memory; None where they
        are to be chosen.
        """
        if isinstance(self.centers, str):
            return None
        Z = self.centers
        if Z.ndim != 2 or Z.shape[1] != d or len(Z) == 0:
            shape = tuple(Z.shape)
            raise InputError(
                f"centers of shape {shape} were given, expected (p, {d}): a row per center, a"
                " column per feature."
            )
        Z = within(Z.to(dtype, copy=True), bounds)
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


def _check_seconds(limit: object) -> float | None:
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, Real) or not 0 < float(limit) < math.inf:
        raise InputError(
            f"time_limit={limit!r} was given, expected seconds above 0, or None for no limit."
        )
    return float(limit)


def _check_ways(feature_learning: object, ensemble: object) -> Ways:
    """What a kernel that is chosen may be made of; None leaves it open."""
    truth = (bool, np.bool_)
    if not isinstance(feature_learning, truth) and feature_learning is not None:
        raise InputError(
            f"feature_learning={feature_learning!r} was given, expected 'auto', True or False."
        )
    if isinstance(ensemble, truth):
        ensemble = MEMBERS if ensemble else 1
    members = whole("ensemble", ensemble, 1) or MEMBERS
    return Ways(feature_learning is None or bool(feature_learning), members)


def _check_posterior(uncertainty: object) -> Posterior | None:
    if uncertainty is None:
        return None
    found = resolve_uncertainty(uncertainty)
    return found if isinstance(found, Posterior) else None


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
        if centers not in (*ways.WAYS, ways.MEANS):
            raise one_of("centers", centers, [*ways.WAYS, ways.MEANS])
        return centers
    return torch.as_tensor(np.asarray(centers.cpu() if isinstance(centers, Tensor) else centers))
