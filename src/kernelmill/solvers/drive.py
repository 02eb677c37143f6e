"""The loop around every solver: events, steps back, memory, interrupts.

It knows no mathematics.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..distributed.team import is_alone
from ..errors import InputError, is_out_of_memory
from ..planning.plan import Plan
from .base import (
    Diverged,
    Ended,
    Event,
    OnEvent,
    Problem,
    Report,
    Setup,
    Solver,
    State,
    check_finite,
)

# A run that has halved its step this far gives up, and returns the last good weights.
SMALLEST_SCALE = 2.0**-12


@dataclass(frozen=True)
class Solution:
    """The last good state of a run, and why it ended."""

    state: State
    ended: Ended
    why: str = ""

    @property
    def worth_a_word(self) -> bool:
        """Whether it ended otherwise than it should, and no callback asked for it."""
        return self.ended not in (Ended.DONE, Ended.STOPPED)


def drive(
    solver: Solver,
    problem: Problem,
    plan: Plan,
    listen: OnEvent = lambda event: False,
    state: State | None = None,
) -> Solution:
    """Train: from zero, or on from a state.

    Ctrl-C gives the last good weights, where there are any.
    """
    if not solver.sharded and not is_alone(problem.comm):
        ranks = f"{problem.comm.size} were given; use EigenPro4, EigenPro3, EigenPro2 or EigenPro1"
        raise InputError(f"solver={solver.name!r} runs on one rank, {ranks}.")
    report = Reporter(plan, listen, solver.resumable)
    setup, state = solver.prepare(problem, plan, state)
    trail = Trail(state)
    report("start", trail.last)
    try:
        ended, why = _run(solver, problem, setup, trail, report)
    except KeyboardInterrupt:
        # Other ranks do not know; or there is nothing to keep.
        if trail.last is None or not is_alone(problem.comm):
            raise
        trail.last.revert()
        ended, why = Ended.INTERRUPTED, Ended.INTERRUPTED.value
        report("interrupted", trail.last, stored=True)
    state = trail.last
    assert state is not None  # the last round gave one
    if ended in (Ended.DONE, Ended.DIVERGED):
        state = state.settled()
    report("end", state, loss=state.loss, stored=True, ended=ended)
    return Solution(state, ended, why)


def _run(
    solver: Solver, problem: Problem, setup: Setup, trail: Trail, report: Reporter
) -> tuple[Ended, str]:
    """Round after round, until there are no more or one asks for an end."""
    while True:
        failed, eta, stop = False, None, False
        try:
            for done in solver.rounds(problem, setup, trail.last):
                stop = _note(done, trail, report) or stop
                if done.short:
                    return Ended.SHORT, done.short
                # Else the epoch's own report follows.
                if stop and trail.last is not None and trail.last.position < problem.source.n:
                    return Ended.STOPPED, Ended.STOPPED.value
            return Ended.DONE, ""
        except Diverged as diverged:
            failed, eta = True, diverged.eta
        except (MemoryError, RuntimeError) as error:
            # Other ranks are in the middle of this round, and could not be told.
            if not is_out_of_memory(error) or not is_alone(problem.comm):
                raise
        # Here what the round held is free again.
        if not failed:
            setup = setup.leaner()
            trail.use(setup.plan)
            report(
                "less_memory", trail.last, note="out of memory: this round again, with less of it"
            )
            continue
        trail.step_back()
        note = "residuals grew: back to earlier weights, with half the step"
        report("step_back", trail.last, eta=None if eta is None else eta / 2, note=note)
        if trail.scale < SMALLEST_SCALE:
            return Ended.DIVERGED, Ended.DIVERGED.value


def _note(done: Report, trail: Trail, report: Reporter) -> bool:
    """Keep what a round has done, and report it. True: the run is asked to stop."""
    if done.state is None:
        report.rows(done.rows)
        return False
    trail.keep(done.state)
    if done.kind == "start" or done.short:
        return False
    return report(done.kind, done.state, loss=done.loss, eta=done.eta, note=done.note, stored=True)


class Trail:
    """The state that a run is in, and those it could go back to: the last good one first.

    Damage may show late: each further failure goes one state further back, at last to the start.
    """

    def __init__(self, start: State | None):
        self._states, self.last, self.scale = (
            [start],
            start,
            1.0 if start is None else start.step_scale,
        )

    def keep(self, state: State) -> None:
        former = self._states[-1]
        if (
            len(self._states) > 1
            and former is not None
            and former.position >= state.plan.n
            and state.epoch == former.epoch + 1
        ):
            self._states.pop()  # the end of an epoch is the moment of its last projection
        self._states, self.last = [self._states[0], *self._states[1:][-1:], state], state

    def use(self, plan: Plan) -> None:
        """Go on from the last state with other sizes."""
        assert self.last is not None
        self.last = replace(self.last, plan=plan)
        self.last.revert()

    def step_back(self) -> None:
        good = self._states.pop() if len(self._states) > 1 else self._states[0]
        assert good is not None
        self.scale /= 2
        self.last = replace(good, step_scale=self.scale)


class Reporter:
    """Turns progress into events with a clock of its own.

    No run gets past the last one with weights that are not finite.
    """

    def __init__(self, plan: Plan, listen: OnEvent, resumable: bool):
        self._plan, self._listen, self._resumable, self._start = (
            plan,
            listen,
            resumable,
            time.perf_counter(),
        )

    def __call__(
        self,
        kind: str,
        state: State | None,
        *,
        stored: bool = False,
        loss: float | None = None,
        eta: float | None = None,
        note: str = "",
        ended: Ended | None = None,
    ) -> bool:
        """`stored`: this is a moment from which the run could go on."""
        epoch, position, alpha = (
            (0, 0, None) if state is None else (state.epoch, state.position, state.alpha)
        )
        if kind == "end":
            check_finite(alpha, self._plan)
        if state is not None and alpha is not None and kind == "epoch":
            alpha = alpha.to(state.plan.torch_dtype)
        kept = state if stored and self._resumable else None
        shown = None if kind in ("step_back", "less_memory") else alpha
        event = self._event(kind, epoch, position)
        event = replace(event, loss=loss, eta=eta, note=note, alpha=shown, state=kept, ended=ended)
        return bool(self._listen(event))

    def rows(self, seen: int) -> None:
        """Rows that were read before there are weights."""
        self._listen(self._event("projection", 0, seen))

    def _event(self, kind: str, epoch: int, position: int) -> Event:
        total = self._plan.n * self._plan.epochs
        rows = min(total, epoch * self._plan.n + position)
        return Event(kind, epoch, rows, total, time.perf_counter() - self._start)
