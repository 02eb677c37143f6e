"""Judging at the size of the run itself, where its exact solution is a matter of seconds.

What a metric is worth depends on the rows that it is learned from: of 89,512 rows of hotel the
gradients of a model of 22,378 bring next to nothing, those of a model of all of them 1 to 2 % of
the log loss (docs/choosing.md). So the chosen kernel is fitted to all rows but a few thousand,
which judge it; then in the metric of that model, as long as that is better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernel_system import solve
from ..kernels import Kernel
from ..model import KernelModel
from ..ops import bind
from ..projection import NotPositiveDefinite
from .judge import STEP, Fold, Judge, Verdict, is_ridge
from .metric import POWERS, Gradients, in_own_metric
from .sample import Sample
from .search import Choice

HELD = 4000  # rows that judge
ROUNDS = 4  # of metrics
SECONDS = 18.0  # that all solutions together may take
CHANCES = 2.0  # standard errors by which another must be better: several are tried
# Relative residuals at which a solution ends, and above which it judges nothing; most iterations;
# and rows whose error ends it where it is level.
TOLERANCE, FAR, MOST, WATCHED = 1e-3, 1e-2, 100, 1000
LONGEST = 9.0  # seconds, predicted, of a solution that is tried at all


@dataclass(frozen=True)
class Attempt:
    """A kernel, what the rows that were kept out say of it, and its weights."""

    kernel: Kernel
    verdict: Verdict
    alpha: Tensor
    label: str


class Whole(Judge):
    """All rows of a sample, which are in random order: the last ones judge what the others
    learned.
    """

    def __init__(self, sample: Sample, tile_bytes: int, budget: int, most: int | None = None):
        """`most`: iterations of a solution."""
        self.X, self.Y, self.w = sample.X, sample.Y, sample.w
        self._sample, self._tile_bytes, self._budget = sample, tile_bytes, budget
        self._most = most or MOST
        number = torch.arange(len(sample.X), device=sample.X.device)
        fitted = len(number) - min(HELD, len(number) // 5)
        self.folds = [Fold(number[:fitted], number[fitted:])]

    def attempt(self, kernel: Kernel, ridge: float, label: str) -> Attempt | None:
        """The exact solution; None where there is none."""
        fold = self.folds[0]
        n, X = len(fold.fitted), self.X
        try:
            solved = solve(
                kernel,
                X[:n],
                self.Y[:n],
                self.w[:n],
                ridge,
                tolerance=TOLERANCE,
                iterations=self._most,
                held=(X[n:][:WATCHED], self.Y[n:][:WATCHED], self.w[n:][:WATCHED]),
                tile_bytes=self._tile_bytes,
                budget=self._budget,
            )
        except NotPositiveDefinite:
            return None
        if solved.step == self._most and not solved.residual <= FAR:
            return None
        K = bind(kernel, X[:n].mean(0), "float64", X.device, self._tile_bytes)
        values = torch.zeros_like(self.Y)
        values[n:] = K.matmul(K.points(X[n:]), K.points(X[:n]), solved.alpha)
        verdict = Verdict(self.score(values), self.error(values), ridge, values)
        return Attempt(kernel, verdict, solved.alpha, label)

    def gradients(self, attempt: Attempt) -> list[Gradients]:
        mean = attempt.alpha.new_zeros(attempt.alpha.shape[1])
        Z = self.X[: len(attempt.alpha)]
        return Gradients.of_model(KernelModel(attempt.kernel, Z, attempt.alpha, mean))


def improve(
    choice: Choice,
    judge: Whole,
    free: bool,
    report: Callable[[str, float], None],
    time_is_left: Callable[[float], bool],
    expected: float = 0.0,
) -> Choice:
    """The choice in metrics of its own models, and with another ridge where that is `free`, as
    long as rows that were kept out prefer it and there is time: `expected` seconds for the first
    solution, and for others as many as the last one took.
    """
    tries = _Tries(judge, report, time_is_left, expected)
    best = tries.attempt(choice.kernel, choice.ridge, f"{choice.label}, on {len(judge.X)} rows")
    if best is None:
        return choice
    best = tries.learn_metrics(best)
    if free:
        best = tries.change_ridge(best)
    found = best.verdict
    return replace(
        choice, kernel=best.kernel, ridge=found.ridge, error=found.error, label=best.label
    )


class _Tries:
    """Attempts for as long as there is time, which are told of."""

    def __init__(
        self,
        judge: Whole,
        report: Callable[[str, float], None],
        time_is_left: Callable[[float], bool],
        expected: float,
    ):
        self._judge, self._report, self._time_is_left = judge, report, time_is_left
        self._start, self._last = time.perf_counter(), expected

    @property
    def is_time(self) -> bool:
        used = time.perf_counter() - self._start
        return used + self._last <= SECONDS and self._time_is_left(self._last)

    def attempt(self, kernel: Kernel, ridge: float, label: str) -> Attempt | None:
        if not self.is_time:
            return None
        begun = time.perf_counter()
        found = self._judge.attempt(kernel, ridge, label)
        self._last = time.perf_counter() - begun
        if found is not None:
            self._report(label, found.verdict.score)
        return found

    def learn_metrics(self, best: Attempt) -> Attempt:
        """Rounds of metrics, each of the model in the one before."""
        for _ in range(ROUNDS):
            if not self.is_time:
                break
            learned, before = self._judge.gradients(best), best
            for power in POWERS:
                label = f"{before.label}, gradient metric {power:g}"
                kernel = in_own_metric(before.kernel, learned, power)
                best = self._better(best, self.attempt(kernel, before.verdict.ridge, label))
            if best is before:
                break
        return best

    def change_ridge(self, first: Attempt) -> Attempt:
        """Downhill to one side or, where that is none, to the other."""
        best = first
        for factor in (1 / STEP, STEP):
            while is_ridge(ridge := best.verdict.ridge * factor):
                before, label = best, f"{first.label}, ridge {ridge:.2g}"
                best = self._better(best, self.attempt(best.kernel, ridge, label))
                if best is before:
                    break
            if best is not first:
                break
        return best

    def _better(self, best: Attempt, other: Attempt | None) -> Attempt:
        if other is None or not self._judge.prefers(other.verdict, best.verdict, CHANCES):
            return best
        return other
