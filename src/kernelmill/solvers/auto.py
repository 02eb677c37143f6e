"""solver="auto": the fastest of the candidates that fit, by predicted seconds.

`forecast` needs sizes and rates, no data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import kernels
from ..errors import InputError
from ..planning.arguments import unless_auto, whole
from ..planning.device import device_of
from ..planning.machine import Network, measure
from ..planning.memory import parse_bytes, tile_bytes
from ..planning.plan import Plan
from ..planning.precision import check_precision, fine_precision, precision_of
from .base import Solver
from .eigenpro2 import EigenPro2
from .registry import NAMED

SIZES = [10**6, 500_000, 200_000, 100_000, 50_000, 20_000, 10_000, 5000, 2000, 1000]
WORTH = 5  # times the seconds that an exact solution of a regression may take (docs/solvers.md)
ENOUGH = 10_000  # centers with which an exact solution is better than a stochastic one with more
# Seconds that solving may take where nobody said: usually, and where a sample says that every row
# as a center is worth more.
ON_CPU, ON_GPU = (120.0, 240.0), (40.0, 160.0)
EPOCHS = (10, 5, 2)  # of EigenPro 2 then, as many as fit into that time


@dataclass(frozen=True)
class Candidate:
    """A method, what it would take, and why it cannot be taken, if so."""

    label: str
    solver: Solver
    plan: Plan | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        return self.plan is not None and not self.reason

    @property
    def seconds(self) -> float:
        """Predicted; 0 where no cost is known."""
        return (0.0 if self.plan is None else self.plan.seconds) or 0.0


@dataclass(frozen=True)
class Forecast:
    """What every candidate would take.

    `chosen` is the fastest that fits; printing shows the table.
    """

    n: int
    d: int
    c: int
    p: int
    device: str
    budget: int
    candidates: list[Candidate]
    more: Plan | None = None  # every row a center, if a sample says that it is worth the time

    def fastest(self, exact: bool = False) -> Candidate | None:
        """The fastest candidate that fits, of all or of those that go to the exact solution; None
        where there is none.
        """
        fitting = [
            candidate
            for candidate in self.candidates
            if candidate.fits and (candidate.solver.exact or not exact)
        ]
        return min(fitting, key=lambda candidate: candidate.seconds, default=None)

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate that fits.

        An exact solution is worth half of the target for a regression, where WORTH times the
        seconds are worth it too, and on a GPU where every row is a center (docs/solvers.md).
        """
        fastest, exact = self.fastest(), self.fastest(exact=True)
        if fastest is None or exact is None or exact.plan is None:
            return fastest
        plan, quick = exact.plan, fastest.seconds
        worth_half = plan.regression or (plan.on_gpu and plan.every_row)
        limit = max(quick, plan.target / 2) if worth_half else quick
        if plan.regression:
            limit = max(limit, min(WORTH * quick, plan.target))
        return exact if exact.seconds <= limit else fastest

    @property
    def chosen(self) -> Candidate:
        best = self.best
        if best is None:
            raise InputError(
                f"no solver fits {self.p} centers for {self.n} rows × {self.d} features into"
                f" {self.budget / 2**30:.2f} GiB; use fewer centers or a larger memory_budget."
            )
        return best

    @property
    def plan(self) -> Plan:
        plan = self.chosen.plan
        assert plan is not None
        return plan

    def __str__(self) -> str:
        outputs = "1 output" if self.c == 1 else f"{self.c} outputs"
        lines = [
            (
                f"{self.n:,} rows × {self.d} features, {self.p:,} centers, {outputs}, on"
                f" {self.device}, {self.budget / 2**30:.1f} GiB may be used"
            ),
            "",
            f"{'solver':<34} {'seconds':>9} {'GiB':>8}",
        ]
        best = self.best
        why = "" if best is self.fastest() else ": exact, which is worth the time"
        for candidate in self.candidates:
            if candidate.plan is None:
                lines.append(
                    f"{candidate.label:<34} {'–':>9} {'–':>8}  {candidate.reason.split(';')[0]}"
                )
                continue
            note = (
                f"  ← chosen{why}"
                if candidate is best
                else f"  {candidate.reason}"
                if candidate.reason
                else ""
            )
            lines.append(
                f"{candidate.label:<34} {candidate.plan.seconds or 0:>9.3g}"
                f" {candidate.plan.bytes / 2**30:>8.2f}{note}"
            )
        if self.more is not None:
            lines += [
                "",
                f"every row a center, by pcg or in {self.more.epochs} epochs of eigenpro2 in"
                f" {self.more.seconds or 0:.3g} seconds: if the nearest of all rows say more of a"
                " row than the nearest of a few",
            ]
        return "\n".join(lines)

    __repr__ = __str__


def predict_plan(solver: Solver, base: Plan) -> Plan:
    """The solver's plan, with seconds."""
    plan = solver.plan(replace(base, solver=solver.name, settings=solver.settings()))
    return plan if plan.rates is None else replace(plan, seconds=solver.seconds(plan, plan.rates))


def forecast(base: Plan) -> Forecast:
    """Every candidate's plan for these sizes, the machine's rates among them.

    `base.epochs` are those that were asked for, or 0.
    """
    candidates = []
    for label, solver, start in (offer for kind in NAMED.values() for offer in kind.offers(base)):
        try:
            plan = predict_plan(solver, start)
        except InputError as error:
            candidates.append(Candidate(label, solver, None, str(error)))
            continue
        reason = (
            f"more than the {plan.budget / 2**30:.1f} GiB that may be used"
            if plan.bytes > plan.budget
            else ""
        )
        candidates.append(Candidate(label, solver, plan, reason))
    return Forecast(base.n, base.d, base.c, base.p, base.device, base.budget, candidates)


def seconds_to_solve(device: str, time_limit: float | None = None) -> tuple[float, float]:
    """What solving may take: usually, and at most. Of a time limit half is for choosing."""
    if time_limit is not None:
        return time_limit / 2, time_limit / 2
    return ON_GPU if device.startswith("cuda") else ON_CPU


def affordable(base: Plan) -> Plan:
    """The same problem with as many centers as are predicted to meet the target: every row, or
    the largest of a few round numbers. For a regression with as many as can be solved exactly, if
    these are not few.
    """
    sizes = [
        replace(base, p=p, every_row=p == base.n)
        for p in [base.n, *(p for p in SIZES if p < base.n)]
    ]
    for size in sizes if base.regression else []:
        exact = forecast(size).fastest(exact=True)
        if exact and exact.seconds <= base.target and (size.every_row or size.p >= ENOUGH):
            return size
    for size in sizes:
        best = forecast(size).fastest()
        if best and best.seconds <= base.target:
            return size
    return sizes[-1]


def with_every_row(base: Plan, longest: float) -> Plan | None:
    """The same problem with every row a center, for some epochs of EigenPro 2 with features as
    short as the precision allows; None where it does not fit, or they are predicted to take longer.
    """
    for epochs in (base.epochs,) if base.epochs else EPOCHS:
        every = replace(base, p=base.n, every_row=True, epochs=epochs, fine=None)
        plan = predict_plan(EigenPro2(), every)
        seconds = plan.seconds or 0.0
        if seconds <= longest and plan.bytes <= plan.budget:
            return replace(every, seconds=seconds)
    return None


def plan(  # noqa: PLR0913
    *,
    n: int,
    d: int,
    n_centers: int | None = None,
    n_outputs: int = 1,
    kernel: object = "auto",
    epochs: int | None = None,
    ridge: float | None = None,
    device: str = "auto",
    precision: str | None = "auto",
    memory_budget: int | str | None = None,
    x_bytes: int = 4,
    regression: bool = False,
    ranks: int = 1,
    network: Network | None = None,
    time_limit: float | None = None,
) -> Forecast:
    """What a fit of this size would take on this machine, without any data: a table of solvers,
    seconds and memory, with the fastest that fits marked. `.plan` is the chosen plan.

    Parameters
    ----------
    n : int
        Rows.
    d : int
        Features.
    n_centers : int, optional
        Centers. None: as many as a fit would take.
    n_outputs : int
        Targets or classes.
    kernel : "auto", str, kernel object or callable
        As in the estimators, like the next five.
    epochs : int, optional
        Passes over the data.
    ridge : float, optional
        λ of the objective.
    device : str
        "auto", "cpu", "cuda", …
    precision : str, optional
        What features are rounded to.
    memory_budget : int or str, optional
        Bytes, or a string such as "8GB", that the fit may take beyond X and y.
    x_bytes : int
        Bytes of one feature as it will be given.
    regression : bool
        Whether targets are numbers, not classes.
    ranks : int
        Processes or GPUs like this one that would share the centers.
    network : Network, optional
        What connects them, `kernelmill.planning.machine.Network(latency, bandwidth)`. None: sums
        over ranks are taken to cost nothing.
    time_limit : float, optional
        Seconds that the fit may take.
    """
    for name, value in (("n", n), ("d", d), ("n_outputs", n_outputs)):
        whole(name, value, 1)
    whole("n_centers", n_centers, 1)
    whole("epochs", epochs, 1)
    whole("ranks", ranks, 1)
    device = device_of(device)
    chosen = None if unless_auto(kernel) is None else kernels.resolve(kernel)
    precision = check_precision(unless_auto(precision))
    budget = parse_bytes(unless_auto(memory_budget), device)
    rounded = precision_of(precision, x_bytes, d, chosen or kernels.Laplacian(), device)
    p = min(n, n_centers or n)
    usual, longest = seconds_to_solve(device, time_limit)
    base = Plan(
        "auto",
        n,
        d,
        n_outputs,
        p,
        precision=rounded,
        fine=fine_precision(precision, regression),
        regression=regression,
        device=device,
        x_bytes=x_bytes,
        epochs=epochs or 0,
        ridge=1.0 if ridge is None else ridge,  # one will be chosen: it costs a second factor
        every_row=p == n,
        tile_bytes=tile_bytes(budget, device),
        budget=budget,
        target=usual,
        ranks=ranks,
        rates=replace(measure(chosen, d, rounded, device), network=network),
    )
    if n_centers:
        return forecast(base)
    taken = affordable(base)
    more = None if taken.every_row else with_every_row(base, longest)
    return replace(forecast(taken), more=more)
