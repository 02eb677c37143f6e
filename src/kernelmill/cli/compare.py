"""kernelmill compare."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import InputError, KernelmillError
from .console import as_json, command, duration, escape, results, words
from .inputs import table_of, target_of, task_of
from .options import AsJson, Data, Debug, Part, Target, Task

if TYPE_CHECKING:
    import numpy as np

    from ..data import Table as DataTable
    from ..kernels import Kernel

LEFT_OUT = ("eigenpro1", "eigenpro4_exact")  # for small data: n² numbers, n³ operations
MEASURES = ("accuracy", "log_loss", "r2", "rmse")  # that are shown; solvers are sorted by the first


@dataclass(frozen=True)
class Outcome:
    """What came of one solver: how it did, or why it could not."""

    solver: str
    error: str | None = None
    seconds: float = 0.0
    centers: int = 0
    chosen: str = ""  # the solver that "auto" became
    metrics: dict[str, float] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        if self.error is not None:
            return {"solver": self.solver, "error": self.error}
        cost = {"seconds": self.seconds, "centers": self.centers}
        return {"solver": self.solver, **cost, "chosen": self.chosen, **self.metrics}


@command
def compare(
    data: Data,
    target: Target = None,
    task: Task = None,
    rows: Annotated[
        int,
        typer.Option(min=20, help="Use at most this many rows; a fifth of them are for the score."),
    ] = 20_000,
    n_centers: Annotated[
        int, typer.Option(help="Centers, for solvers that take fewer of them than rows.")
    ] = 2000,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train the same data with every solver, and show seconds, and scores of held-out rows."""
    import numpy as np

    say = words(quiet=json_)
    table = table_of(data, part or "train")
    name = target_of(table, target)
    kind, why = task_of(table.column(name), name, task)
    order = np.random.default_rng(0).permutation(table.n)[:rows]
    held, learned = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    say.print(
        f"{len(learned):,} rows to learn from, {len(held):,} for the score. This is a {kind}:"
        f" {escape(why)}."
    )
    train, test = _rows(table, learned), _rows(table, held)
    found: list[Outcome] = []
    kernel: Kernel | str = "auto"
    for solver in _solvers(kind):
        outcome, kernel = _try(solver, kind, train, test, name, n_centers, kernel)
        found.append(outcome)
        took = duration(outcome.seconds) if outcome.error is None else escape(outcome.error)
        say.print(f"{solver}: {took}")
    if all(outcome.error is not None for outcome in found):
        raise InputError(found[0].error)
    if json_:
        solvers = [outcome.facts() for outcome in found]
        as_json({"task": kind, "rows": len(learned), "solvers": solvers})
    else:
        _print(found, f"{len(learned):,} rows of {escape(str(data))}")


def _solvers(kind: str) -> list[str]:
    """Names of the solvers that take this kind of task; "auto" first, which chooses the kernel."""
    from .. import solvers

    named = {name: solver for name, solver in solvers.NAMED.items() if name not in LEFT_OUT}
    regression = kind == "regression"
    return ["auto", *(name for name in named if not (regression and named[name]().for_classes))]


def _rows(table: DataTable, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Some rows of a table, its columns by name: read by blocks, so that only they are held."""
    import numpy as np

    parts: dict[str, list[np.ndarray]] = {name: [] for name in table.fields}
    for start, stop in itertools.pairwise(table.cuts):
        wanted = numbers[(numbers >= start) & (numbers < stop)] - start
        if len(wanted):
            for name, values in table.read(list(parts), start, stop).items():
                parts[name].append(table.natural(name, values)[wanted])
    return {name: np.concatenate(values) for name, values in parts.items()}


def _try(
    solver: str,
    kind: str,
    train: dict[str, np.ndarray],
    test: dict[str, np.ndarray],
    target: str,
    n_centers: int,
    kernel: Kernel | str,
) -> tuple[Outcome, Kernel | str]:
    """The outcome of one solver, and its kernel, which the next ones are given: solvers are
    compared, not the choice of a kernel."""
    from .. import KernelClassifier, KernelRegressor, solvers
    from ..estimators.evaluation import evaluate

    features = {name: values for name, values in test.items() if name != target}
    count: int | None = min(n_centers, len(train[target]))
    if solver != "auto" and solvers.NAMED[solver].every_row:
        count = None
    estimator = KernelClassifier if kind == "classification" else KernelRegressor
    model = estimator(solver=solver, random_state=0, kernel=kernel, n_centers=count)
    start = time.perf_counter()
    try:
        model.fit(train, target)
        seconds = time.perf_counter() - start
        metrics = evaluate(model, features, test[target]).metrics
    except (KernelmillError, MemoryError) as error:
        return Outcome(solver, str(error)), kernel
    centers, chosen = model.model_.n_centers, model.plan_.solver
    return Outcome(solver, None, seconds, centers, chosen, metrics), model.model_.kernel


def _print(found: list[Outcome], title: str) -> None:
    measures = [name for name in MEASURES if any(name in outcome.metrics for outcome in found)]
    table = Table("solver", "centers", "seconds", *measures, title=title, title_justify="left")
    for outcome in sorted(found, key=lambda each: -each.metrics.get(measures[0], -1e9)):
        if outcome.error is not None:
            table.add_row(outcome.solver, "–", "–", *["–"] * len(measures))
            continue
        label = f"auto ({outcome.chosen})" if outcome.solver == "auto" else outcome.solver
        scores = (f"{outcome.metrics[name]:.4f}" for name in measures)
        table.add_row(label, f"{outcome.centers:,}", f"{outcome.seconds:.1f}", *scores)
    results().print(table)
