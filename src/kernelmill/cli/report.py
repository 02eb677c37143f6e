"""kernelmill report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .console import as_json, command, escape, results, words
from .evaluate import evaluate_file
from .options import AsJson, Debug, Model, Part, Target, Weight
from .outputs import check_writable, write_page


@command
def report(
    model: Model,
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA", help="Data with known targets: adds scores, curves and residuals."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The same as DATA.")] = None,
    target: Target = None,
    weight: Weight = None,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file. (default: the model's name + .html)")
    ] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file about a model: how it was trained, and how good it is on DATA."""
    from .. import load

    if table is not None and data is not None:
        raise InputError(
            f"two data files were given, {str(table)!r} and --data {str(data)!r}; give one."
        )
    data = data or table

    path = out or model.resolve().with_name(model.resolve().name + ".html")
    check_writable(path)
    estimator = load(model, ranks=1)
    found, where = None, ""
    if data is not None:
        found, where = evaluate_file(estimator, data, target, part, weight)
    write_page(path, estimator, model, found, where)
    if json_:
        as_json({"out": str(path)})
        return
    results().print(f"Report written to {escape(str(path))}.")
    if data is None:
        words().print("With a data file it also shows how good the model is on those rows.")
