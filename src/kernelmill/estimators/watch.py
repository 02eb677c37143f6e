"""What listens to a running fit on the estimator's behalf."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..callbacks.progress import ProgressBar
from ..distributed.team import Alone, Communicator
from ..errors import InputError
from ..kernels import Kernel
from ..model import KernelModel
from ..planning.plan import Plan
from ..signals import Ends
from ..solvers import Event, Solver, State
from ..storage.run_folder import Run
from .rows import Units

if TYPE_CHECKING:
    from .base import KernelEstimator


class Watch:
    """Listens to the solver: keeps the history, scores held-out rows after each epoch, keeps the best weights, calls the callbacks."""

    def __init__(
        self,
        estimator: KernelEstimator,
        solver: Solver,
        kernel: Kernel,
        Z: Tensor,
        units: Units,
        held: Any,
        plan: Plan,
        run: Run | None = None,
        comm: Communicator | None = None,
        ends: Ends | None = None,
    ):
        self.history: list[dict[str, Any]] = []
        self.best: Tensor | None = None
        self.stopped, self.interrupted, self._run = False, False, run
        self.constants: dict[int, float] = {}
        self._comm, self._ends = comm or Alone(), ends
        self._best_score, self._waited, self._plan, self._patience = -np.inf, 0, plan, solver.patience
        self._estimator, self._held, self._kernel, self._Z, self._units = estimator, held, kernel, Z, units
        given = estimator.callbacks
        self._callbacks = list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []
        if not all(callable(callback) for callback in self._callbacks):
            raise InputError(f"callbacks={given!r} was given, expected a callable that takes an Event, or a list of them.")
        if estimator.verbose:
            self._callbacks.append(ProgressBar())
        if self._comm.rank > 0:
            self._callbacks = []  # rank 0 speaks for all

    def __call__(self, event: Event) -> bool:
        row = {name: getattr(event, name) for name in ("kind", "epoch", "rows", "seconds", "loss", "eta")}
        if event.note:
            row["note"] = event.note
        stop, self.interrupted = False, self.interrupted or event.kind == "interrupted"
        if event.kind == "epoch" and self._held is not None and event.alpha is not None:
            row["validation_score"] = score = self._score(event.alpha)
            if self._estimator._stops_early():
                better = score > self._best_score
                self._waited = 0 if better else self._waited + 1
                if better:
                    self._best_score, self.best = score, event.alpha.clone()
                stop = self.stopped = self._waited >= self._patience
        if event.kind not in ("start", "end"):
            self.history.append(row)
        if self._callbacks and event.alpha is not None:
            event = replace(event, alpha=self.in_units(event.alpha))
        for callback in self._callbacks:
            stop = bool(callback(event)) or stop
        ending, due = self._ends is not None and self._ends.wanted, self._run is not None and self._run.due(event)
        if self._comm.size > 1 and event.kind != "start":  # all ranks do the same: what any of them wants, and rank 0 finds due
            wishes = torch.tensor([stop, ending, due and self._comm.rank == 0], dtype=torch.float64)
            stop, ending, due = (bool(wish) for wish in self._comm.all_sum(wishes).tolist())
        if self._run and due:
            self._run.note(event, self.kept(), self.stopped)
        self.interrupted = self.interrupted or ending
        return stop or ending

    def kept(self) -> dict[str, Any]:
        """What has to be known where the run goes on."""
        return {"history": self.history, "best": self.best, "best_score": float(self._best_score), "waited": self._waited}

    def restore(self, kept: dict[str, Any], dealt: dict[str, Any], device: Any) -> None:
        best = (dealt or kept).get("best")
        self.history, self.best = list(kept["history"]), None if best is None else best.to(device)
        self._best_score, self._waited = kept["best_score"], kept["waited"]

    def in_units(self, alpha: Tensor) -> Tensor:
        """A solver's weights as the model's: in the units of the targets. In float64 where float32 has no room for these."""
        scale = self._units.scale.to(alpha.device)
        if bool((scale == 1).all()):
            return alpha
        room = bool(((scale > 1e-25) & (scale < 1e25)).all())
        return (alpha.double() * scale.double()).to(alpha.dtype if room else torch.float64)

    def model(self, alpha: Tensor, Z: Tensor, state: State | None = None, kernel: Kernel | None = None, unit: float = 1.0) -> KernelModel:
        """The model of these weights. What it adds stays float64 for numbers: of 1.7e9 ± 10, float32 would keep nothing.

        `kernel`, where it is not the one that was trained with, is `unit` times that one.
        """
        plan, known, scale = self._plan if state is None else state.plan, None, self._units.scale.to(alpha.device)
        if (process := getattr(state, "uncertainty", None)) is not None:
            known = process.times(unit)
            known = replace(known, signal=known.signal * scale**2, noise=known.noise * scale**2)
        precision = plan.precision
        if unit != 1:  # back to the user's own units, which only float64 has room for
            alpha, precision = alpha.double() / unit, "float64"
        sizes = self._plan.tile_bytes, precision, known
        mean = self._units.mean.to(alpha.device)
        return KernelModel(kernel or self._kernel, Z, alpha, mean, *sizes, self._comm, self._plan.p, self.constants)

    def _score(self, alpha: Tensor) -> float:
        X, y, w = self._held
        model = self.model(self.in_units(alpha), self._Z.to(alpha.device))
        with torch.no_grad():
            values = model(X).cpu()
        return self._comm.same(lambda: self._estimator._score_values(values, y, w))  # all ranks decide by one score
