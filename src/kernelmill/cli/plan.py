"""kernelmill plan."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from .console import as_json, command, duration, results
from .inputs import table_of, target_of, task_of, with_target
from .options import AsJson, Debug, Device, MemoryBudget, Target

if TYPE_CHECKING:
    import numpy as np

    from ..data import Table
    from ..solvers.auto import Forecast


@command
def plan(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="A data file; or say --rows and --features."),
    ] = None,
    target: Target = None,
    rows: Annotated[int | None, typer.Option(help="How many rows there would be.")] = None,
    features: Annotated[int | None, typer.Option(help="How many features.")] = None,
    outputs: Annotated[int, typer.Option(help="How many classes, or columns of targets.")] = 1,
    n_centers: Annotated[
        int | None, typer.Option(help="(default: as many as take about two minutes)")
    ] = None,
    device: Device = None,
    memory_budget: MemoryBudget = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Predict what a fit would take, solver by solver, before anything is trained."""
    from .. import plan as forecast

    regression = outputs == 1
    if data is not None:
        n, d, outputs, regression = _sizes(data, target, memory_budget)
        rows, features = rows or n, features or d
    if rows is None or features is None:
        raise InputError("plan needs a data file, or --rows and --features.")
    found = forecast(
        n=rows,
        d=features,
        n_centers=n_centers,
        n_outputs=outputs,
        device=device or "auto",
        memory_budget=memory_budget,
        regression=regression,
    )
    choosing = _choosing(found)
    if not json_:
        results().print(str(found), markup=False)
        results().print(f"\nBefore that a kernel is chosen, in about {duration(choosing)}.")
        return
    solvers = [
        {
            "solver": candidate.label,
            "seconds": candidate.plan and candidate.plan.seconds,
            "bytes": candidate.plan and candidate.plan.bytes,
            "reason": candidate.reason,
        }
        for candidate in found.candidates
    ]
    facts = {"rows": rows, "features": features, "centers": found.p, "chosen": found.plan.solver}
    as_json({**facts, "choosing_seconds": round(choosing, 1), "solvers": solvers})


def _sizes(data: Path, target: str | None, memory_budget: str | None) -> tuple[int, int, int, bool]:
    """Rows, features and outputs of a data file, and whether it is a regression."""
    import numpy as np

    table = table_of(data, "train", memory_budget)
    name = target_of(table, target)
    table = with_target(table, name, None, None)
    values = table.column(name)
    if task_of(values, name, None)[0] == "regression":
        outputs = 1 if values.ndim == 1 else values.shape[1]
        Y = values.reshape(table.n, -1).astype(float)
        return table.n, _features(table, name, Y), outputs, True
    labels, codes = np.unique(values.astype(str), return_inverse=True)
    return table.n, _features(table, name, codes), len(labels), False


def _features(table: Table, target: str, Y: np.ndarray) -> int:
    """How many features the columns become: an encoder is learned, as in training."""
    import numpy as np

    from ..data import Columns, learn

    every = np.ones(table.n, bool)
    with warnings.catch_warnings():  # which training says again
        warnings.simplefilter("ignore")
        return learn(Columns(), table, [target], Y, every, said=False).d


def _choosing(found: Forecast) -> float:
    """Seconds that choosing a kernel takes, by the rates of the machine."""
    import torch

    from ..planning.machine import measure
    from ..tuning.sample import Effort

    plan = found.plan
    rates = plan.rates or measure(None, plan.d, plan.precision, plan.device)
    effort = Effort.on(torch.device(plan.device), plan.budget)
    return effort.seconds(plan.n, plan.p, rates.products)
