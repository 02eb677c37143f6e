"""kernelmill plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .console import as_json, command, results
from .inputs import table_of, target_of, task_of
from .options import AsJson, Debug, Device, MemoryBudget, Target


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
    """Say what a fit would take, solver by solver, before anything is trained."""
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
    if not json_:
        results().print(str(found), markup=False)
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
    as_json({**facts, "solvers": solvers})


def _sizes(data: Path, target: str | None, memory_budget: str | None) -> tuple[int, int, int, bool]:
    """Rows, features and outputs of a data file, and whether it is a regression."""
    table = table_of(data, "train", memory_budget)
    name = target_of(table, target)
    values = table.column(name)
    features = sum(field.width for field in table.fields.values() if field.name != name)
    if task_of(values, name, None)[0] == "regression":
        return table.n, features, 1 if values.ndim == 1 else values.shape[1], True
    labels = {v for v in values.ravel().tolist() if v is not None and v == v}  # not NaN
    return table.n, features, len(labels), False
